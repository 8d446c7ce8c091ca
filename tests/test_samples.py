"""What the decoder is given, without TensorFlow."""

import concurrent.futures

import numpy as np
import pictures
import pytest

from tf_goyal import image_order, samples
from tf_goyal.records import BadRecord
from tf_goyal.samples import InputError, Labels, Sampler


class Split:
    """Images in memory; those that are None are broken."""

    def __init__(self, images):
        self.name, self.images, self.hints = "train", images, []

    def __len__(self):
        return len(self.images)

    def read(self, record):
        if self.images[record] is None:
            raise BadRecord("broken")
        return self.images[record], record

    def will_read(self, record):
        self.hints.append(record)

    def where(self, record):
        return f"file, record {record}"


def sampler(images, seed=0, order=None, **options):
    split = Split(images)
    return Sampler(
        split,
        order or image_order.shuffled(len(images), seed),
        Labels(len(images), 0),
        seed=seed,
        total_images=options.get("total_images", 2**62),
        min_crop_area=options.get("min_crop_area", 0.08),
        horizontal_flip=options.get("horizontal_flip", True),
    )


IMAGE = pictures.jpeg(500, 375)


def test_crops_are_drawn_uniformly():
    """Means and correlations of 20,000 images' windows and flips, 5 deviations."""
    images = 2_000
    found = sampler([IMAGE] * images).at(np.arange(10 * images))
    y, x, height, width = found.window.T
    assert (y >= 0).all() and (y + height <= 500).all()
    assert (x >= 0).all() and (x + width <= 375).all()
    place = np.stack([y / (501 - height), x / (376 - width), found.flip]).T
    centred = (place - place.mean(0)) / place.std(0)
    assert np.abs(place.mean(0) - [0.5, 0.5, 0.5]).max() < 0.02
    limit = 5 / np.sqrt(len(place))
    assert np.abs(centred.T @ centred / len(place) - np.eye(3)).max() < limit
    # From image to image, and from epoch to epoch of the same record.
    assert np.abs((centred[1:] * centred[:-1]).mean(0)).max() < limit
    by_record = centred[np.argsort(found.label, kind="stable")].reshape(images, 10, 3)
    assert np.abs((by_record[:, 1:] * by_record[:, :-1]).mean((0, 1))).max() < limit


def test_another_seed_is_another_draw():
    order = image_order.shuffled(4, 0)
    seen = {
        sampler([IMAGE] * 4, seed, order=order).at(np.arange(4)).window.tobytes()
        for seed in (0, 1, -1, 2**31 - 1, -(2**31))
    }
    assert len(seen) == 5


def test_the_draw_is_fixed():
    """Another draw would make old checkpoints go on with other crops."""
    found = sampler([IMAGE] * 3, seed=7).at(np.array([0, 5, 2**40]))
    assert found.window.tolist() == [
        [100, 4, 307, 331],
        [15, 5, 451, 340],
        [77, 57, 356, 298],
    ]
    assert found.flip.tolist() == [True, False, False]


def test_draws_do_not_depend_on_what_is_asked_for_together():
    one = sampler([IMAGE] * 7)
    together = one.at(np.arange(30))
    for position in range(30):
        alone = one.at(np.array([position]))
        for all_of, this in zip(together, alone, strict=True):
            np.testing.assert_array_equal(all_of[position], this[0])


def test_no_flip_and_whole_images():
    found = sampler(
        [pictures.jpeg(40, 40)] * 5, min_crop_area=1.0, horizontal_flip=False
    )
    sample = found.at(np.arange(50))
    assert not sample.flip.any()
    assert (sample.window == [0, 0, 40, 40]).all()


@pytest.mark.parametrize("total", [4, 5, 6])
def test_labels_end_with_the_run(total):
    found = sampler([IMAGE] * 3, total_images=total).at(np.arange(3, 7))
    assert (found.label == -1).tolist() == [p >= total for p in range(3, 7)]


@pytest.mark.parametrize(
    ("stored", "offset", "label"), [(0, 0, 0), (2, 0, 2), (1, 1, 0), (-5, -5, 0)]
)
def test_labels_in_range(stored, offset, label):
    """D7: the first and the last class."""
    assert Labels(3, offset).label(stored) == label


@pytest.mark.parametrize(("stored", "offset"), [(-1, 0), (3, 0), (0, 1), (4, 1)])
def test_labels_out_of_range(stored, offset):
    """D7: one below and one above."""
    with pytest.raises(BadRecord, match=f"its label is {stored}.*--label_offset"):
        Labels(3, offset).label(stored)


def test_what_cannot_be_decoded_is_rejected_at_its_position_only():
    """D5: another crop of the same image may be in order."""
    one = sampler([IMAGE] * 6)
    order = image_order.shuffled(6, 0).records_at(np.arange(12))
    one.reject(2)
    found = one.at(np.arange(12))
    assert found.replaced.tolist() == [-1, -1, order[2]] + [-1] * 9
    assert found.label[2] == order[3]
    one.reject(2)  # the replacement neither
    found = one.at(np.arange(12))
    assert (found.replaced[2], found.label[2]) == (order[2], order[4])


def test_replacement_stays_in_its_epoch():
    """D6: the last position's next is the epoch's first."""
    images = [IMAGE] * 5
    order = image_order.shuffled(5, 0).records_at(np.arange(10)).reshape(2, 5)
    images[order[0, 4]] = None
    found = sampler(images).at(np.arange(10)).label.reshape(2, 5)
    assert found[0].tolist() == [*order[0, :4], order[0, 0]]


@pytest.mark.parametrize("good", [0, 1])
def test_all_but_one_may_be_broken(good):
    images = [None] * 7
    if good:
        images[4] = IMAGE
        assert sampler(images).at(np.arange(7)).label.tolist() == [4] * 7
        return
    with pytest.raises(InputError, match="7 records in a row are broken"):
        sampler(images).at(np.arange(7))


def test_bytes_that_are_no_image_are_broken():
    with pytest.raises(BadRecord, match="empty"):
        samples.read(Split([b""]), 0)


def test_hints_come_for_the_records_of_the_positions():
    split = Split([IMAGE] * 5)
    order = image_order.shuffled(5, 0)
    one = Sampler(
        split,
        order,
        Labels(5, 0),
        seed=0,
        total_images=10,
        min_crop_area=1.0,
        horizontal_flip=True,
    )
    one.will_read(np.arange(3, 7))
    assert split.hints == order.records_at(np.arange(3, 7)).tolist()


def test_several_threads_see_the_same():
    images = [IMAGE, None, IMAGE, IMAGE, None, IMAGE, IMAGE]
    expected = [sampler(images).at(np.array([p])).label[0] for p in range(70)]
    one = sampler(images)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda p: one.at(np.array([p])).label[0], range(70)))
    assert found == expected
