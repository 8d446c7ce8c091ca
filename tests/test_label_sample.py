import numpy as np
import pytest
from pictures import bmp

from tf_goyal import label_sample
from tf_goyal.records import BadRecord


class Split:
    """Labels that are the record's number; some are broken, and some no images."""

    def __init__(self, count, broken=(), other=()):
        self.count, self.broken, self.other = count, set(broken), set(other)
        self.asked = []

    def __len__(self):
        return self.count

    def read(self, record):
        self.asked.append(record)
        if record in self.broken:
            raise BadRecord("it is torn")
        return b"text" if record in self.other else bmp(record), record

    def where(self, record):
        return f"FILE, record {record}"


def sample_of(*labels):
    numbers = np.arange(len(labels))
    return label_sample.LabelSample(("image", "label"), numbers, np.array(labels))


@pytest.mark.parametrize("count", [1, 2, 2047, 2048, 2049, 5000, 1_281_167])
def test_up_to_2048_records_at_an_even_stride(count):
    split = Split(count)
    sample = label_sample.take(split, ("image", "label"))
    assert len(sample.record) == min(count, 2048) == len(split.asked)
    assert sample.record[0] == 0 and sample.record[-1] < count
    steps = np.diff(sample.record)
    assert len(steps) == 0 or steps.max() - steps.min() <= 1
    assert np.array_equal(sample.label, sample.record)
    assert sample.record.dtype == sample.label.dtype == np.int64


def test_broken_records_are_passed_over():
    split = Split(6, broken=[0, 3], other=[2])
    sample = label_sample.take(split, ("image", "label"))
    assert sample.record.tolist() == sample.label.tolist() == [1, 4, 5]


@pytest.mark.parametrize(
    "broken, other, why",
    [
        ([0, 1, 2], [], "it is torn"),
        ([], [0, 1, 2], "the image is no JPEG, PNG, GIF or BMP"),
        ([1, 2], [0], "the image is no JPEG"),
    ],
)
def test_nothing_but_broken_records(broken, other, why):
    """D5: the first one is named."""
    split = Split(3, broken, other)
    for refuse in (
        lambda: label_sample.take(split, ("image", "label")),
        lambda: label_sample.require_image(split),
    ):
        with pytest.raises(ValueError, match=f"record 0: .*all 3 .*because {why}"):
            refuse()


@pytest.mark.parametrize(
    "split, asked",
    [
        (Split(5000), [0]),
        (Split(6, broken=[0, 3], other=[1]), [0, 1, 2]),
        (Split(4096, broken=range(4094)), list(range(0, 4096, 2))),
    ],
)
def test_one_good_image_will_do(split, asked):
    label_sample.require_image(split)
    assert split.asked == asked


@pytest.mark.parametrize("offset", [-3, 0, 1])
def test_the_range_is_whole(offset):
    label_sample.check(Split(2), sample_of(offset, offset + 9), 10, offset)
    for wrong in (offset - 1, offset + 10):
        with pytest.raises(ValueError, match=f"is {wrong},"):
            label_sample.check(Split(2), sample_of(offset, wrong), 10, offset)


@pytest.mark.parametrize(
    "labels, offset, fits",
    [
        ((1, 500, 1000), 0, "set --label_offset=1,"),  # D7
        ((0, 999), 1, "set --label_offset=0,"),
        ((2, 999), 1000, "set --label_offset=0,"),
        ((2, 1000), 0, "set --label_offset=1,"),  # 2 fits, too
        ((-999, 0), 0, "set --label_offset=-999,"),
        ((-5, -3), 0, "set --label_offset=-5,"),
        ((0, 1000), 0, "there must be more classes"),
        ((-1, -1, 1000), 1, "there must be more classes"),
        ((-(2**63), 2**63 - 1), 0, "there must be more classes"),
    ],
)
def test_the_offset_that_fits(labels, offset, fits):
    with pytest.raises(ValueError) as error:
        label_sample.check(Split(3), sample_of(*labels), 1000, offset)
    message = str(error.value)
    assert fits in message and message.startswith("FILE, record ")
    assert f"--label_offset={offset}" in message


def test_the_first_wrong_record_is_named():
    with pytest.raises(ValueError, match="FILE, record 2: .* is 7, and labels from 0"):
        label_sample.check(Split(4), sample_of(0, 1, 7, 8), 3, 0)
