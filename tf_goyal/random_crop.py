"""The random crop and flip of training (§5.1, scale and aspect ratio augmentation).

Which part of an image is taken, for a batch of images in NumPy: as operations of a
TensorFlow graph the same sums take ten times as long. No TensorFlow.
"""

import math

import numpy as np

_ATTEMPTS = 10
_MAX_ASPECT = 4 / 3  # and at least its inverse
NUMBERS = 2 * _ATTEMPTS + 3  # uniform random numbers for one image


def windows(
    heights: np.ndarray, widths: np.ndarray, uniform: np.ndarray, min_crop_area: float
) -> np.ndarray:
    """Crops of some images.

    At most 10 times, an area is drawn uniformly from [min_crop_area, 1] of the image
    and an aspect ratio log-uniformly from [3/4, 4/3]; the first crop that fits is
    taken, at a uniform place. If none fits: the central square of the shorter side,
    which is the same as resizing the shorter side and cropping the centre.

    `tf.image.stateless_sample_distorted_bounding_box` is another rule: it draws the
    height uniformly, not the area, and falls back to the whole, distorted image.

    Args:
      heights: integers [n], pixels.
      widths: integers [n], pixels.
      uniform: float64 [n, NUMBERS] in [0, 1): 10 for areas, 10 for aspect ratios, y and
        x; the last, for `flips`, is not used.
      min_crop_area: smallest area of a crop, as a fraction of the image.

    Returns:
      int32 [n, 4]: y, x, height, width of each crop in pixels.
    """
    size = np.stack([heights, widths], -1).astype(np.int64)  # [n, 2]
    areas = uniform[:, :_ATTEMPTS]
    aspects = uniform[:, _ATTEMPTS : 2 * _ATTEMPTS]
    areas = size.prod(-1)[:, np.newaxis] * (min_crop_area + (1 - min_crop_area) * areas)
    aspects = np.exp(math.log(_MAX_ASPECT) * (2 * aspects - 1))  # width / height
    tries = np.rint(np.sqrt(np.stack([areas / aspects, areas * aspects], -1)))
    fits = ((tries > 0) & (tries <= size[:, np.newaxis])).all(-1)  # [n, attempts]
    images = np.arange(len(size))
    first = fits.argmax(1)
    found = fits[images, first][:, np.newaxis]
    square = np.repeat(size.min(-1, keepdims=True), 2, -1)
    crop = np.where(found, tries[images, first].astype(np.int64), square)
    margin = size - crop
    place = uniform[:, 2 * _ATTEMPTS : 2 * _ATTEMPTS + 2]
    corner = np.floor(place * (margin + 1)).astype(np.int64)
    corner = np.where(found, corner, margin // 2)
    return np.concatenate([corner, crop], -1).astype(np.int32)


def flips(uniform: np.ndarray) -> np.ndarray:
    """Bool [n]: which images are mirrored, one half of them."""
    return uniform[:, -1] < 0.5
