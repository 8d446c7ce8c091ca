import io

import numpy as np
import pictures
import pytest
import tensorflow as tf
from PIL import Image

from tf_goyal import augment


def jpeg(height, width, channels=3, seed=0) -> tf.Tensor:
    """A smooth random image, so that JPEG keeps most of it."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 255, (height // 8 + 2, width // 8 + 2, channels))
    image = tf.image.resize(coarse, [height, width])
    return tf.io.encode_jpeg(tf.cast(image, tf.uint8), quality=95)


def decoded(encoded) -> np.ndarray:
    """Pixels of the whole image by the DCT that augment uses."""
    return tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST").numpy()


def bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Half-pixel centres, edges repeated, no antialiasing; float64."""

    def along(image, size):
        length = image.shape[0]
        at = (np.arange(size) + 0.5) * length / size - 0.5
        low = np.floor(at).astype(int)
        weight = (at - low)[:, None, None]
        first = image[np.clip(low, 0, length - 1)]
        second = image[np.clip(low + 1, 0, length - 1)]
        return first * (1 - weight) + second * weight

    rows = along(image.astype(np.float64), height)
    return along(rows.swapaxes(0, 1), width).swapaxes(0, 1)


# --- training images


def train_image(encoded, window, flip=False, **options) -> np.ndarray:
    """One image through a compiled `train_image`."""
    encoded = tf.constant(encoded)
    call = tf.function(
        lambda *image: augment.train_image(*image, **options)  # image_size, resize, dct
    )
    is_jpeg = tf.io.is_jpeg(encoded)
    return call(encoded, is_jpeg, tf.constant(window, tf.int32), flip).numpy()


@pytest.mark.parametrize("flip", [False, True])
def test_training_image_is_the_resized_crop(flip):
    # Grey: libjpeg smooths the chroma of a part differently along the part's edge.
    encoded, size = jpeg(120, 90, channels=1), 32
    image = train_image(encoded, [7, 20, 90, 61], flip, image_size=size)
    assert image.shape == (size, size, 3) and image.dtype == np.uint8
    crop = decoded(encoded)[7:97, 20:81]
    expected = bilinear(crop, size, size)
    if flip:
        expected = expected[:, ::-1]
    assert np.abs(image - expected).max() < 0.501


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_other_formats_are_cropped_and_mirrored_too(kind):
    """D5: a PNG named .JPEG is a PNG."""
    pixels = pictures.pixels(40, 56)
    image = Image.fromarray(pixels)
    if kind == "GIF":
        image = image.quantize(64)
    encoded = pictures.encode(image, kind)
    expected = np.array(image.convert("RGB"))[3:35, 4:36]
    plain = train_image(encoded, [3, 4, 32, 32], image_size=32)
    mirrored = train_image(encoded, [3, 4, 32, 32], True, image_size=32)
    np.testing.assert_array_equal(plain, expected)
    np.testing.assert_array_equal(mirrored, expected[:, ::-1])


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "I;16", "1"])
def test_png_of_every_colour_type_becomes_rgb(mode):
    """D5. Alpha is left out, as Pillow's convert("RGB") does."""
    rng = np.random.default_rng(0)
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 2**16, (32, 32), np.uint16))
        expected = np.repeat((np.array(image) >> 8)[..., None], 3, 2)
    else:
        image = Image.fromarray(pictures.pixels(32, 32)).convert(
            "RGB" if mode == "P" else mode
        )
        image = image.quantize(32) if mode == "P" else image
        expected = np.array(image.convert("RGB"))
    encoded = pictures.encode(image, "PNG")
    result = train_image(encoded, [0, 0, 32, 32], image_size=32)
    assert np.abs(result.astype(int) - expected).max() <= (mode == "I;16")
    whole = augment.eval_image(tf.constant(encoded), image_size=32, eval_resize=32)
    np.testing.assert_array_equal(whole, result)


def test_cmyk_becomes_the_rgb_that_pillow_makes():
    """D5: within the rounding of two conversions."""
    encoded = pictures.cmyk(64, 64)
    expected = np.array(Image.open(io.BytesIO(encoded)).convert("RGB"), int)
    for result in (
        train_image(encoded, [0, 0, 64, 64], image_size=64, dct="exact"),
        augment.eval_image(
            tf.constant(encoded), image_size=64, eval_resize=64, dct="exact"
        ).numpy(),
    ):
        difference = np.abs(result - expected)
        assert difference.max() <= 2 and difference.mean() < 0.6


def test_exif_orientation_is_ignored():
    """As in the paper's software: the pixels as they are stored."""
    plain, turned = pictures.jpeg(40, 56), pictures.rotated(40, 56)
    np.testing.assert_array_equal(
        train_image(plain, [1, 2, 30, 40], image_size=24),
        train_image(turned, [1, 2, 30, 40], image_size=24),
    )
    both = [
        augment.eval_image(tf.constant(e), image_size=24, eval_resize=24)
        for e in (plain, turned)
    ]
    np.testing.assert_array_equal(*both)


def test_the_exact_dct_gives_pillows_pixels():
    encoded = pictures.jpeg(64, 64, subsampling=0)
    expected = np.array(Image.open(io.BytesIO(encoded)), int)
    exact = train_image(encoded, [0, 0, 64, 64], image_size=64, dct="exact")
    fast = train_image(encoded, [0, 0, 64, 64], image_size=64)
    np.testing.assert_array_equal(exact, expected)
    difference = np.abs(fast - expected)
    assert 0 < difference.max() <= 12 and difference.mean() < 3


def test_bicubic_is_another_interpolation():
    """Keys' cubic, a = -0.5, half-pixel centres: one pixel by hand, and no wrapping."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, 4:] = 255
    encoded = pictures.encode(pixels, "PNG")
    image = train_image(encoded, [0, 0, 8, 8], image_size=16, resize="bicubic")
    # Output column 7 lies at 3.25: weights of columns 2 ... 5 at distances
    # 1.25, 0.25, 0.75, 1.75 are -0.0703, 0.8672, 0.2266, -0.0234.
    weights = np.array([-0.0703125, 0.8671875, 0.2265625, -0.0234375])
    assert image[8, 7, 0] == round(255 * weights[2:].sum())
    # Beyond the edge it overshoots, and is clipped.
    assert image[8, 5].tolist() == [0, 0, 0] and image[8, 10].tolist() == [255] * 3
    linear = train_image(encoded, [0, 0, 8, 8], image_size=16)
    assert linear[8, 7, 0] == round(255 * 0.25) and not np.array_equal(image, linear)
    evaluated = augment.eval_image(
        tf.constant(encoded), image_size=16, eval_resize=16, resize="bicubic"
    )
    np.testing.assert_array_equal(evaluated, image)


def test_grey_becomes_three_equal_channels():
    encoded = jpeg(40, 40, channels=1)
    for image in (
        train_image(encoded, [0, 0, 30, 30], image_size=16),
        augment.eval_image(encoded, image_size=16, eval_resize=20),
    ):
        assert image.shape == (16, 16, 3)
        np.testing.assert_array_equal(image[..., 0], image[..., 1])
        np.testing.assert_array_equal(image[..., 0], image[..., 2])


# --- evaluation images


def test_evaluation_pixels_by_hand():
    """Half the size: each pixel is the mean of four, half up; exact."""
    encoded = jpeg(64, 96)
    image = augment.eval_image(encoded, image_size=28, eval_resize=32)
    pixels = decoded(encoded).astype(np.float64)
    mean = pixels.reshape(32, 2, 48, 2, 3).mean(axis=(1, 3))  # [32, 48, 3]
    np.testing.assert_array_equal(image, np.floor(mean[2:30, 10:38] + 0.5))


@pytest.mark.parametrize(
    "height, width, image_size, eval_resize, resized",
    [
        (500, 375, 224, 256, (341, 256)),  # 341.33
        (375, 500, 224, 256, (256, 341)),
        (100, 131, 32, 50, (50, 66)),  # 65.5: half up; margins 9 and 17
        (40, 56, 48, 48, (48, 67)),  # enlarged; 67.2; cropped though sizes are equal
        (40, 40, 40, 40, (40, 40)),  # nothing to do
    ],
)
def test_evaluation_pixels(height, width, image_size, eval_resize, resized):
    """Resize of the shorter side and centre crop against NumPy."""
    encoded = jpeg(height, width)
    image = augment.eval_image(
        encoded, image_size=image_size, eval_resize=eval_resize
    ).numpy()
    y, x = (resized[0] - image_size) // 2, (resized[1] - image_size) // 2
    whole = bilinear(decoded(encoded), *resized)
    expected = whole[y : y + image_size, x : x + image_size]
    assert image.shape == expected.shape and image.dtype == np.uint8
    # The nearest level; 0.001 for float32.
    assert np.abs(image - expected).max() < 0.501


@pytest.mark.parametrize("longer", [31, 32, 33, 20_000])
@pytest.mark.parametrize("turned", [False, True])
def test_evaluation_of_a_thread(longer, turned):
    """Beyond an aspect of 32 only the middle is resized; the crop is the same."""
    pixels = np.zeros((longer, 1, 3), np.uint8)
    middle = longer // 2
    pixels[middle - 3 : middle + 3] = 200  # even and odd lengths: off by half a pixel
    image = np.ascontiguousarray(pixels.swapaxes(0, 1) if turned else pixels)
    result = augment.eval_image(
        tf.constant(pictures.encode(image, "PNG")), image_size=8, eval_resize=8
    ).numpy()
    assert result.shape == (8, 8, 3) and (result == 200).all()


def test_evaluation_needs_room_for_the_crop():
    with pytest.raises(ValueError, match="at least the image size 32; received 31"):
        augment.eval_image(jpeg(40, 40), image_size=32, eval_resize=31)


def test_evaluation_in_a_saved_model(tmp_path):
    """X4: the preprocessing travels with an exported model, pixel for pixel."""

    class Preprocessing(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, encoded):
            return tf.map_fn(
                lambda one: augment.eval_image(one, image_size=32, eval_resize=36),
                encoded,
                fn_output_signature=tf.uint8,
            )

    images = [jpeg(50, 70, seed=1), jpeg(90, 40, seed=2), jpeg(36, 36, 1, seed=3)]
    tf.saved_model.save(Preprocessing(), str(tmp_path))
    batch = tf.saved_model.load(str(tmp_path))(tf.stack(images))
    for image, one in zip(batch, images, strict=True):
        alone = augment.eval_image(one, image_size=32, eval_resize=36)
        np.testing.assert_array_equal(image, alone)
