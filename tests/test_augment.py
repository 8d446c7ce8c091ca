import math

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import augment

LOG_ASPECT = math.log(4 / 3)


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


@tf.function
def windows(height, width, uniforms, min_crop_area):
    """int32 [P, 4] crops for float32 [P, 22] random numbers."""
    return tf.map_fn(
        lambda uniform: augment.crop_window(height, width, uniform, min_crop_area),
        uniforms,
        fn_output_signature=tf.int32,
    )


def uniform(areas=0.0, aspects=0.5, y=0.0, x=0.0) -> tf.Tensor:
    """Random numbers of one image; aspects of 0.5 mean a square."""
    ten = np.ones(10)
    values = np.concatenate([areas * ten, aspects * ten, [y, x]])
    return tf.constant(values, tf.float32)


# --- the crop rule, §5.1


def test_crop_by_hand():
    # Area 0.25 of 40 x 90 = 900, square: 30 x 30. Places: 11 x 61.
    u = uniform(y=0.999, x=0.5)
    assert augment.crop_window(40, 90, u, 0.25).numpy().tolist() == [10, 30, 30, 30]
    # Aspect 4/3, area 0.75 * 1600 = 1200: 30 high, 40 wide: fits to the pixel.
    u = uniform(aspects=1.0)
    assert augment.crop_window(40, 40, u, 0.75).numpy().tolist() == [0, 0, 30, 40]
    # Aspect 3/4 of the same: 40 high.
    u = uniform(aspects=0.0, x=0.9999)
    assert augment.crop_window(40, 40, u, 0.75).numpy().tolist() == [0, 10, 40, 30]


def test_first_try_that_fits_is_taken():
    # Tries 0 to 8: all of the area, aspect 4/3: 46 wide in 40. Then a quarter, square.
    u = uniform(areas=1.0, aspects=1.0).numpy()
    u[9], u[19] = 0, 0.5
    assert augment.crop_window(40, 40, u, 0.25).numpy().tolist() == [0, 0, 20, 20]


@pytest.mark.parametrize(
    "height, width, window",
    [
        (10, 1000, [0, 495, 10, 10]),
        (1001, 10, [495, 0, 10, 10]),
        (40, 40, [0, 0, 40, 40]),
        (1, 1, [0, 0, 1, 1]),
    ],
)
def test_central_square_when_no_try_fits(height, width, window):
    u = uniform(aspects=1.0, y=0.3, x=0.9)
    assert augment.crop_window(height, width, u, 1.0).numpy().tolist() == window


def test_crop_is_never_empty():
    # 0.01 of 3 x 3 pixels would be 0 x 0.
    u = uniform(areas=0.0)
    assert augment.crop_window(3, 3, u, 0.01).numpy().tolist() == [0, 0, 3, 3]


def test_crop_statistics():
    """Areas and aspect ratios stay in range and follow the stated distributions."""
    tries, size, smallest = 4000, 1000, 0.08
    uniforms = np.random.default_rng(0).random((tries, 22), np.float32)
    y, x, height, width = windows(size, size, uniforms, smallest).numpy().T
    assert (y >= 0).all() and (x >= 0).all()
    assert (y + height <= size).all() and (x + width <= size).all()
    # Rounding moves a side by half a pixel of at least 244.
    area, log_aspect = height * width / size**2, np.log(width / height)
    assert smallest * 0.995 < area.min() < 0.085 and 0.98 < area.max() <= 1
    assert LOG_ASPECT * 0.99 < np.abs(log_aspect).max() < LOG_ASPECT * 1.02
    # Up to half of the area every aspect ratio fits: both are still uniform there.
    free = area < 0.5
    deviations = (
        (area[free].mean() - 0.29) / (0.42 / math.sqrt(12)),
        log_aspect[free].mean() / (2 * LOG_ASPECT / math.sqrt(12)),
        (y / (size - height + 1))[free].mean() * math.sqrt(12) - math.sqrt(3),
        (x / (size - width + 1))[free].mean() * math.sqrt(12) - math.sqrt(3),
    )
    assert np.abs(deviations).max() * math.sqrt(free.sum()) < 4
    assert area[free].std() == pytest.approx(0.42 / math.sqrt(12), rel=0.05)
    assert log_aspect[free].std() == pytest.approx(
        2 * LOG_ASPECT / math.sqrt(12), rel=0.05
    )


# --- training images


def test_training_image_is_the_resized_crop():
    # Grey: libjpeg smooths the chroma of a part differently along the part's edge.
    encoded, size = jpeg(120, 90, channels=1), 32
    seed = tf.constant([3, 4], tf.int64)
    image = augment.train_image(encoded, seed, image_size=size, horizontal_flip=False)
    assert image.shape == (size, size, 3) and image.dtype == tf.uint8
    u = tf.random.stateless_uniform([23], seed)
    y, x, height, width = augment.crop_window(120, 90, u[:-1], 0.08).numpy()
    crop = decoded(encoded)[y : y + height, x : x + width]
    assert np.abs(image.numpy() - bilinear(crop, size, size)).max() < 0.501


def test_training_image_is_a_function_of_image_and_seed():
    encoded = jpeg(60, 80)
    call = tf.function(lambda seed: augment.train_image(encoded, seed, image_size=24))
    seeds = tf.constant([[0, 1], [0, 2], [1, 1], [0, 2**40 + 1]], tf.int64)
    first = [call(seed).numpy() for seed in seeds]
    second = [call(seed).numpy() for seed in seeds[::-1]][::-1]
    np.testing.assert_array_equal(first, second)
    assert len({image.tobytes() for image in first}) == 4


def test_half_of_the_images_are_mirrored():
    # No crop of a square image can have all of its area but itself.
    encoded, size = jpeg(32, 32), 32
    call = tf.function(
        lambda seed: augment.train_image(
            encoded, seed, image_size=size, min_crop_area=1.0
        )
    )
    plain = decoded(encoded)
    flipped = 0
    for number in range(400):
        image = call(tf.constant([0, number], tf.int64)).numpy()
        mirrored = not np.array_equal(image, plain)
        np.testing.assert_array_equal(image, plain[:, ::-1] if mirrored else plain)
        flipped += mirrored
    assert abs(flipped - 200) < 40  # 4 standard deviations


def test_grey_becomes_three_equal_channels():
    encoded = jpeg(40, 40, channels=1)
    for image in (
        augment.train_image(encoded, tf.constant([0, 0], tf.int64), image_size=16),
        augment.eval_image(encoded, image_size=16, eval_resize=20),
    ):
        assert image.shape == (16, 16, 3)
        np.testing.assert_array_equal(image[..., 0], image[..., 1])
        np.testing.assert_array_equal(image[..., 0], image[..., 2])


# --- evaluation images


def test_evaluation_pixels_by_hand():
    """Half the size: each pixel is the mean of four, half to even; exact."""
    encoded = jpeg(64, 96)
    image = augment.eval_image(encoded, image_size=28, eval_resize=32)
    pixels = decoded(encoded).astype(np.float64)
    mean = pixels.reshape(32, 2, 48, 2, 3).mean(axis=(1, 3))  # [32, 48, 3]
    np.testing.assert_array_equal(image, np.round(mean[2:30, 10:38]))


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
