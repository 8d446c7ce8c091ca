"""The crop rule, §5.1: scale and aspect ratio augmentation."""

import math

import numpy as np
import pytest

from tf_goyal import random_crop

LOG_ASPECT = math.log(4 / 3)


def uniform(areas=0.0, aspects=0.5, y=0.0, x=0.0, flip=0.0) -> np.ndarray:
    """Random numbers of one image, [1, 23]; aspects of 0.5 mean a square."""
    ten = np.ones(10)
    return np.concatenate([areas * ten, aspects * ten, [y, x, flip]])[np.newaxis]


def window(height, width, numbers, min_crop_area) -> list[int]:
    """The crop of one image."""
    found = random_crop.windows(
        np.array([height]), np.array([width]), numbers, min_crop_area
    )
    assert found.shape == (1, 4) and found.dtype == np.int32
    return found[0].tolist()


def test_crop_by_hand():
    # Area 0.25 of 40 x 90 = 900, square: 30 x 30. Places: 11 x 61.
    u = uniform(y=0.999, x=0.5)
    assert window(40, 90, u, 0.25) == [10, 30, 30, 30]
    # Aspect 4/3, area 0.75 * 1600 = 1200: 30 high, 40 wide: fits to the pixel.
    u = uniform(aspects=1.0)
    assert window(40, 40, u, 0.75) == [0, 0, 30, 40]
    # Aspect 3/4 of the same: 40 high.
    u = uniform(aspects=0.0, x=0.9999)
    assert window(40, 40, u, 0.75) == [0, 10, 40, 30]


def test_first_try_that_fits_is_taken():
    # Tries 0 to 8: all of the area, aspect 4/3: 46 wide in 40. Then a quarter, square.
    u = uniform(areas=1.0, aspects=1.0)
    u[0, 9], u[0, 19] = 0, 0.5
    assert window(40, 40, u, 0.25) == [0, 0, 20, 20]


@pytest.mark.parametrize(
    "height, width, expected",
    [
        (10, 1000, [0, 495, 10, 10]),
        (1001, 10, [495, 0, 10, 10]),
        (40, 40, [0, 0, 40, 40]),
        (1, 1, [0, 0, 1, 1]),
    ],
)
def test_central_square_when_no_try_fits(height, width, expected):
    u = uniform(aspects=1.0, y=0.3, x=0.9)
    assert window(height, width, u, 1.0) == expected


def test_crop_is_never_empty():
    # 0.01 of 3 x 3 pixels would be 0 x 0.
    u = uniform(areas=0.0)
    assert window(3, 3, u, 0.01) == [0, 0, 3, 3]


def test_crop_statistics():
    """Areas and aspect ratios stay in range and follow the stated distributions."""
    tries, size, smallest = 4000, 1000, 0.08
    uniforms = np.random.default_rng(0).random((tries, random_crop.NUMBERS))
    sizes = np.full(tries, size)
    y, x, height, width = random_crop.windows(sizes, sizes, uniforms, smallest).T
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


def test_images_do_not_see_each_other():
    random = np.random.default_rng(1)
    uniforms = random.random((50, random_crop.NUMBERS))
    heights, widths = random.integers(1, 600, (2, 50))
    together = random_crop.windows(heights, widths, uniforms, 0.08)
    for i in range(50):
        assert together[i].tolist() == window(
            heights[i], widths[i], uniforms[i : i + 1], 0.08
        )
    y, x, height, width = together.T
    assert (height > 0).all() and (y + height <= heights).all() and (y >= 0).all()
    assert (width > 0).all() and (x + width <= widths).all() and (x >= 0).all()


@pytest.mark.parametrize(
    ("number", "flip"), [(0, True), (0.5 - 2**-53, True), (0.5, False)]
)
def test_flip_at_one_half(number, flip):
    assert random_crop.flips(uniform(flip=number)).tolist() == [flip]
