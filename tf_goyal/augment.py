"""One encoded image in, one uint8 image out; for training, evaluation and export.

JPEGs are decoded with libjpeg's fast integer DCT, which is also TensorFlow's default;
its pixels differ from the exact ones (`dct="exact"`, Pillow's) by one or two levels of
256. Resizing is without antialiasing (the paper does not say), in training and in
evaluation, so that the network is evaluated on the kind of image that it was trained
on. EXIF's orientation is ignored everywhere, as the usual software for ImageNet does.
Pixels stay uint8; the model subtracts the mean.
"""

import functools
from typing import Any

import tensorflow as tf

DCT = {"fast": "INTEGER_FAST", "exact": "INTEGER_ACCURATE"}
_MAX_ASPECT = 32  # in evaluation; what is longer is cut off before resizing
_KERNELS = {
    "bilinear": tf.raw_ops.ResizeBilinear,
    "bicubic": tf.raw_ops.ResizeBicubic,
}


def train_image(
    encoded: tf.Tensor,
    is_jpeg: tf.Tensor,
    window: tf.Tensor,
    flip: tf.Tensor,
    *,
    image_size: int,
    resize: str = "bilinear",
    dct: str = "fast",
) -> tf.Tensor:
    """A crop of an image (§5.1; `random_crop` draws it), resized, perhaps mirrored.

    Args:
      encoded: string scalar, a JPEG, PNG, GIF (its first picture) or BMP. Grey becomes
        three equal channels, CMYK and an alpha channel become RGB.
      is_jpeg: bool scalar: of a JPEG only the crop is decoded.
      window: int32 [4], y, x, height, width of the crop in pixels.
      flip: bool scalar, whether to mirror left to right.
      image_size: S, pixels.
      resize: "bilinear" or "bicubic".
      dct: "fast" or "exact".

    Returns:
      uint8 [S, S, 3].
    """
    # Not tf.cond: TensorFlow would take its branches apart, and then run all of the
    # graph on a slower executor.
    (image,) = tf.raw_ops.StatelessIf(
        cond=is_jpeg,
        input=[encoded, window],
        Tout=[tf.uint8],
        then_branch=_crop_jpeg(DCT[dct]),
        else_branch=_crop_other(),
    )
    image = tf.ensure_shape(image, [None, None, 3])
    image = _to_uint8(_resize(image, [image_size, image_size], resize))
    image = tf.raw_ops.Reverse(tensor=image, dims=tf.stack([False, flip, False]))
    return tf.ensure_shape(image, [image_size, image_size, 3])


_CROP = (tf.TensorSpec([], tf.string), tf.TensorSpec([4], tf.int32))


@functools.cache
def _crop_jpeg(dct_method: str) -> Any:
    """Encoded JPEG and window -> uint8 pixels of the window."""
    return tf.function(
        lambda encoded, window: tf.io.decode_and_crop_jpeg(
            encoded, window, channels=3, dct_method=dct_method
        )
    ).get_concrete_function(*_CROP)


@functools.cache
def _crop_other() -> Any:
    """Another encoded image and window -> uint8 pixels of the window."""
    return tf.function(
        lambda encoded, window: tf.slice(
            _decode_other(encoded),
            tf.concat([window[:2], [0]], 0),
            tf.concat([window[2:], [3]], 0),
        )
    ).get_concrete_function(*_CROP)


def eval_image(
    encoded: tf.Tensor,
    *,
    image_size: int,
    eval_resize: int,
    resize: str = "bilinear",
    dct: str = "fast",
) -> tf.Tensor:
    """Resizes the shorter side and crops the centre (§5.1: 256, then 224).

    The longer side is rounded to whole pixels; of an odd margin the smaller half comes
    off above and on the left. No state and no Python: it may be part of an exported
    model (`tf.map_fn` over a batch of strings).

    Args:
      encoded: string scalar, as `train_image`'s.
      image_size: S, pixels of the crop.
      eval_resize: pixels of the shorter side before the crop, at least S.
      resize: "bilinear" or "bicubic".
      dct: "fast" or "exact".

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
    image = decode(encoded, dct)
    size = tf.shape(image)[:2]
    shorter = tf.reduce_min(size)
    # Of a thread of an image only the middle is resized: all of it takes gigabytes.
    longest = tf.minimum(size, _MAX_ASPECT * shorter)
    y, x = tf.unstack((size - longest) // 2)
    image = image[y : y + longest[0], x : x + longest[1]]
    size = longest
    # eval_resize * size / shorter, rounded half up, in integers.
    size = (2 * eval_resize * size + shorter) // (2 * shorter)
    image = _resize(image, size, resize)
    y, x = tf.unstack((size - image_size) // 2)
    image = image[y : y + image_size, x : x + image_size]
    return tf.ensure_shape(_to_uint8(image), [image_size, image_size, 3])


def decode(encoded: tf.Tensor, dct: str) -> tf.Tensor:
    """A whole image, as `train_image` takes it: uint8 [H, W, 3]."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_jpeg(encoded, channels=3, dct_method=DCT[dct]),
        lambda: _decode_other(encoded),
    )


def _decode_other(encoded: tf.Tensor) -> tf.Tensor:
    """uint8 [H, W, 3] of a PNG, GIF or BMP."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def _resize(image: tf.Tensor, size: tf.Tensor | list[int], method: str) -> tf.Tensor:
    """uint8 [H, W, 3] to float32 [h, w, 3] in 0 ... 255, half-pixel centres."""
    # The same numbers as from uint8, but TensorFlow's kernel is faster from float32.
    # And the kernel itself: tf.image.resize does a tenth more in asking for shapes.
    kernel = _KERNELS[method]
    images = tf.cast(image, tf.float32)[tf.newaxis]
    image = kernel(images=images, size=size, half_pixel_centers=True)[0]
    # A cubic goes beyond the levels on both sides of an edge.
    return tf.clip_by_value(image, 0, 255) if method == "bicubic" else image


def _to_uint8(image: tf.Tensor) -> tf.Tensor:
    """float32 in 0 ... 255 to uint8: the nearest level, half up."""
    return tf.cast(image + 0.5, tf.uint8)
