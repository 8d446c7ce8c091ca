"""One encoded image in, one uint8 image out; for training, evaluation and export.

Decoding uses libjpeg's fast integer DCT, which is also TensorFlow's default; its pixels
differ from the exact ones by 1 level on average, by 8 at most. Resizing is bilinear
without antialiasing in training and in evaluation: as in the software of the paper's
time, and the same in both, so that the network is evaluated on the kind of image that
it was trained on. Pixels stay uint8; the model subtracts the mean.
"""

import math

import tensorflow as tf

_DCT = "INTEGER_FAST"
_ATTEMPTS = 10
_MAX_ASPECT = 4 / 3  # and at least its inverse


def train_image(
    encoded: tf.Tensor,
    seed: tf.Tensor,
    *,
    image_size: int,
    min_crop_area: float = 0.08,
    horizontal_flip: bool = True,
) -> tf.Tensor:
    """Random crop, resize, random flip (§5.1, scale and aspect ratio augmentation).

    At most 10 times, an area is drawn uniformly from [min_crop_area, 1] of the image
    and an aspect ratio log-uniformly from [3/4, 4/3]; the first crop that fits is
    taken, at a uniform place. If none fits: the central square of the shorter side,
    which is the same as resizing the shorter side and cropping the centre.

    `tf.image.stateless_sample_distorted_bounding_box` is another rule: it draws the
    height uniformly, not the area, and falls back to the whole, distorted image.

    Args:
      encoded: string scalar, a JPEG (a grey one gets three equal channels).
      seed: int64 [2]. The result is a pure function of `encoded` and `seed`.
      image_size: S, pixels.
      min_crop_area: smallest area of the crop, as a fraction of the image.
      horizontal_flip: whether to mirror every other image.

    Returns:
      uint8 [S, S, 3].
    """
    uniform = tf.random.stateless_uniform([2 * _ATTEMPTS + 3], seed)
    shape = tf.io.extract_jpeg_shape(encoded)  # [3]: height, width, channels
    window = crop_window(shape[0], shape[1], uniform[:-1], min_crop_area)
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3, dct_method=_DCT)
    image = _to_uint8(_resize(image, [image_size, image_size]))
    if horizontal_flip:
        flip = uniform[-1] < 0.5
        image = tf.raw_ops.Reverse(tensor=image, dims=tf.stack([False, flip, False]))
    return tf.ensure_shape(image, [image_size, image_size, 3])


def crop_window(
    height: tf.Tensor, width: tf.Tensor, uniform: tf.Tensor, min_crop_area: float
) -> tf.Tensor:
    """The crop rule of `train_image`, applied to given random numbers.

    Args:
      height: int32 scalar, pixels.
      width: int32 scalar, pixels.
      uniform: float32 [22] in [0, 1): 10 for areas, 10 for aspect ratios, y and x.
      min_crop_area: smallest area of the crop, as a fraction of the image.

    Returns:
      int32 [4]: y, x, height, width of the crop in pixels.
    """
    areas, aspects, place = tf.split(uniform, [_ATTEMPTS, _ATTEMPTS, 2])
    area = tf.cast(height, tf.float32) * tf.cast(width, tf.float32)
    areas = area * (min_crop_area + (1 - min_crop_area) * areas)
    aspects = tf.exp(math.log(_MAX_ASPECT) * (2 * aspects - 1))  # width / height
    widths = tf.cast(tf.round(tf.sqrt(areas * aspects)), tf.int32)
    heights = tf.cast(tf.round(tf.sqrt(areas / aspects)), tf.int32)
    fits = (widths <= width) & (heights <= height) & (widths > 0) & (heights > 0)
    # One more, which always fits: the central square.
    side = tf.minimum(height, width)
    fits = tf.concat([tf.cast(fits, tf.int32), [1]], 0)
    first = tf.argmax(fits, output_type=tf.int32)
    size = tf.stack(
        [tf.concat([heights, [side]], 0)[first], tf.concat([widths, [side]], 0)[first]]
    )
    margin = tf.stack([height, width]) - size
    corner = tf.cast(tf.floor(place * tf.cast(margin + 1, tf.float32)), tf.int32)
    corner = tf.where(first < _ATTEMPTS, corner, margin // 2)
    return tf.concat([corner, size], 0)


def eval_image(encoded: tf.Tensor, *, image_size: int, eval_resize: int) -> tf.Tensor:
    """Resizes the shorter side and crops the centre (§5.1: 256, then 224).

    The longer side is rounded to whole pixels; of an odd margin the smaller half comes
    off above and on the left. No state and no Python: it may be part of an exported
    model (`tf.map_fn` over a batch of strings).

    Args:
      encoded: string scalar, a JPEG (a grey one gets three equal channels).
      image_size: S, pixels of the crop.
      eval_resize: pixels of the shorter side before the crop, at least S.

    Returns:
      uint8 [S, S, 3].

    Raises:
      ValueError: eval_resize < image_size.
    """
    if eval_resize < image_size:
        raise ValueError(
            f"eval_resize must be at least the image size {image_size}; received "
            f"{eval_resize}."
        )
    image = tf.io.decode_jpeg(encoded, channels=3, dct_method=_DCT)
    size = tf.shape(image)[:2]
    shorter = tf.reduce_min(size)
    # eval_resize * size / shorter, rounded half up, in integers.
    size = (2 * eval_resize * size + shorter) // (2 * shorter)
    image = _resize(image, size)
    y, x = tf.unstack((size - image_size) // 2)
    image = image[y : y + image_size, x : x + image_size]
    return tf.ensure_shape(_to_uint8(image), [image_size, image_size, 3])


def _resize(image: tf.Tensor, size: tf.Tensor | list[int]) -> tf.Tensor:
    """Bilinear: uint8 [H, W, 3] to float32 [h, w, 3], half-pixel centres."""
    # The same numbers as from uint8, but TensorFlow's kernel is faster from float32.
    return tf.image.resize(tf.cast(image, tf.float32), size)


def _to_uint8(image: tf.Tensor) -> tf.Tensor:
    """float32 to uint8: nearest level (half to even), clipped."""
    return tf.saturate_cast(tf.round(image), tf.uint8)
