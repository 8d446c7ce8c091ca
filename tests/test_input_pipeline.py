import collections
import os
import pathlib
import subprocess
import sys

import numpy as np
import pictures
import pytest
import tensorflow as tf

from tf_goyal import datasets, image_order, input_pipeline, records
from tf_goyal.samples import InputError, Labels, Sampler
from tf_goyal.shards import ShardSplit

ROOT = pathlib.Path(datasets.__file__).parents[1]


def make_split(folder, images: int, files: int, interleaved=False) -> ShardSplit:
    """Distinct 8x8 images labelled 0 ... images - 1, in that order over the files."""
    encoded = [pictures.jpeg(8, 8, seed) for seed in range(images)]
    paths = pictures.write_shards(folder, encoded, files)
    if interleaved:
        datas = [path.read_bytes() for path in paths]
        for path in paths:
            path.unlink()
        order = np.concatenate([np.arange(f, images, files) for f in range(files)])
        paths = pictures.write_shards(
            folder, [encoded[i] for i in order], files, labels=order
        )
        assert [path.read_bytes() for path in paths] != datas
    return ShardSplit("train", records.index_files(map(str, paths)))


def batches(split, n, workers, steps, k=None, label_offset=0, classes=2**30, **kwargs):
    """`TrainBatches` of images of 8x8 pixels."""
    steps = range(steps) if isinstance(steps, int) else steps
    order = kwargs.pop("order", None) or image_order.shuffled(
        len(split), kwargs.get("seed", 0)
    )
    sampler = Sampler(
        split,
        order,
        Labels(classes, label_offset),
        seed=kwargs.get("seed", 0),
        total_images=kwargs.get("total_images", 2**62),
        min_crop_area=kwargs.get("min_crop_area", 0.08),
        horizontal_flip=kwargs.get("horizontal_flip", True),
    )
    return input_pipeline.TrainBatches(
        sampler,
        global_batch=n * (k or len(workers)),
        worker_batch=n,
        workers=workers,
        first_step=steps.start,
        last_step=steps.stop,
        image_size=kwargs.get("image_size", 8),
        threads=kwargs.get("threads"),
    )


def train(*args, with_replaced=False, **kwargs):
    """Images [steps, m, n, 8, 8, 3] and labels [steps, m, n] as NumPy."""
    elements = list(batches(*args, **kwargs))
    steps = args[3]
    assert len(elements) == (steps if isinstance(steps, int) else len(steps))
    images, labels, replaced = (np.stack(parts) for parts in zip(*elements))
    if with_replaced:
        return images, labels, replaced
    assert (replaced == -1).all()
    return images, labels


# --- training batches


@pytest.mark.parametrize("files, workers", [(3, 4), (1, 2)])
def test_every_record_once_per_epoch(tmp_path, files, workers):
    """D1: 3 files and 4 workers, 1 file and 2 workers."""
    images, n, epochs = 24, 3, 2
    split = make_split(tmp_path, images, files)
    steps = epochs * images // (n * workers)
    parts = [train(split, n, range(w, w + 1), steps, workers) for w in range(workers)]
    labels = np.concatenate([labels for _, labels in parts], axis=1)  # [steps, k, n]
    assert labels.shape == (steps, workers, n) and labels.dtype == np.int32
    first, second = labels.reshape(epochs, images)
    assert np.array_equal(np.sort(first), np.arange(images))
    assert np.array_equal(np.sort(second), np.arange(images))
    assert not np.array_equal(first, second)


def test_batches_run_across_epoch_ends(tmp_path):
    """D2: 7 images, n = 2, 2 workers, 3 epochs.

    21 images are 5.25 steps of 4: six steps are run, and the first 21 positions hold
    every image exactly three times. The three beyond are marked: they do not count.
    """
    split = make_split(tmp_path, 7, 1)
    _, labels = train(split, 2, range(2), 6, total_images=21)
    counts = collections.Counter(labels.ravel().tolist())
    assert counts == {-1: 3, **dict.fromkeys(range(7), 3)}
    assert (labels.ravel()[21:] == -1).all()
    for epoch in labels.ravel()[:21].reshape(3, 7):
        assert np.array_equal(np.sort(epoch), np.arange(7))


@pytest.mark.parametrize("total", [7, 8, 9])
def test_what_fills_the_last_step_up_is_marked(tmp_path, total):
    """Position total - 1 counts and total does not, whatever the label offset."""
    split = make_split(tmp_path, 5, 1)
    _, labels = train(split, 2, range(2), 3, total_images=total, label_offset=-3)
    expected = image_order.shuffled(5, 0).records_at(np.arange(12)) + 3
    expected[total:] = -1
    np.testing.assert_array_equal(labels.ravel(), expected)


def test_fewer_images_than_a_batch(tmp_path):
    split = make_split(tmp_path, 3, 1)
    _, labels = train(split, 4, range(2), 3)
    assert collections.Counter(labels.ravel().tolist()) == {0: 8, 1: 8, 2: 8}


def test_records_do_not_depend_on_the_files(tmp_path):
    """D3: 4, 8 and 16 files.

    Consecutive parts of the same sequence keep every record's number, so images, order
    and augmentation are the same to the bit. Records dealt out in another order get
    other numbers: each epoch then holds the same multiset in another order.
    """
    images = 48
    runs = [
        train(make_split(tmp_path / f"{files}", images, files), 4, range(3), 8)
        for files in (4, 8, 16)
    ]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0][0], other[0])
        np.testing.assert_array_equal(runs[0][1], other[1])
    dealt = make_split(tmp_path / "dealt", images, 8, interleaved=True)
    _, labels = train(dealt, 4, range(3), 8)
    assert not np.array_equal(labels, runs[0][1])
    for epoch in labels.reshape(2, images):
        assert np.array_equal(np.sort(epoch), np.arange(images))


def test_start_at_any_step(tmp_path):
    """D10: stopped at step 37 of 100, the rest is what it would have been."""
    split = make_split(tmp_path, 30, 2)
    images, labels = train(split, 2, range(2), 100)
    for step in (36, 37, 38):
        rest = train(split, 2, range(2), range(step, 100))
        np.testing.assert_array_equal(rest[0], images[step:])
        np.testing.assert_array_equal(rest[1], labels[step:])


def test_start_at_a_late_step_reads_nothing_before_it(tmp_path):
    """Step 2^40 of an endless run: found at once, and int64 all the way."""
    split = make_split(tmp_path, 30, 2)
    _, labels = train(split, 2, range(2), range(2**40, 2**40 + 3))
    positions = 2**42 + np.arange(12)
    expected = image_order.shuffled(30, 0).records_at(positions)
    np.testing.assert_array_equal(labels.ravel(), expected)


@pytest.mark.parametrize("workers", [range(1), range(1, 3), range(3, 5), range(5)])
def test_layout_does_not_matter(tmp_path, workers):
    """Worker w has the same images, to the bit, whoever else is read for."""
    split = make_split(tmp_path, 24, 2)
    images, labels = train(split, 2, range(5), 6)
    part = train(split, 2, workers, 6, k=5)
    np.testing.assert_array_equal(part[0], images[:, workers.start : workers.stop])
    np.testing.assert_array_equal(part[1], labels[:, workers.start : workers.stop])


def test_augmentation_depends_on_seed_epoch_and_record_only(tmp_path):
    """Another batch size moves a record elsewhere and changes nothing else."""
    split = make_split(tmp_path, 24, 2)
    small, large = train(split, 2, range(3), 8), train(split, 4, range(3), 4)
    np.testing.assert_array_equal(small[0].ravel(), large[0].ravel())
    np.testing.assert_array_equal(small[1].ravel(), large[1].ravel())
    images = small[0].reshape(2, 24, -1)
    order = small[1].reshape(2, 24).argsort(axis=1)
    epochs = [images[epoch][order[epoch]] for epoch in range(2)]
    differ = (epochs[0] != epochs[1]).any(axis=1)
    assert differ.sum() > 20  # the same records, another crop
    other_seed = train(split, 2, range(3), 8, seed=1)
    assert not np.array_equal(other_seed[1], small[1])


def test_crop_flip_and_label_offset_are_passed_on(tmp_path):
    split = make_split(tmp_path, 8, 1)
    options = {"min_crop_area": 1.0, "horizontal_flip": False, "label_offset": -1}
    images, labels = train(split, 4, range(1), 2, **options)
    order = labels.ravel() - 1
    assert np.array_equal(np.sort(order), np.arange(8))
    plain = next(iter(evaluate(split, 8, range(1))))[0]
    np.testing.assert_array_equal(images.reshape(8, 8, 8, 3), plain.numpy()[order])


@pytest.mark.parametrize(
    ("classes", "label_offset", "wrong"),
    [(4, 0, []), (3, 0, [3]), (3, 1, [0]), (2, 1, [0, 3])],
)
def test_a_label_out_of_range_is_a_broken_record(
    tmp_path, classes, label_offset, wrong
):
    """D7: labels 0 to 3; in training and in evaluation."""
    split = make_split(tmp_path, 4, 2)
    sizes = {"classes": classes, "label_offset": label_offset}
    _, labels, replaced = train(split, 2, range(2), 1, with_replaced=True, **sizes)
    assert sorted(replaced[replaced >= 0]) == wrong
    good = [record - label_offset for record in range(4) if record not in wrong]
    assert set(labels.ravel()) == set(good)
    ((_, labels, counts, broken),) = evaluate(split, 4, [0], **sizes)
    assert labels.numpy()[counts.numpy()].tolist() == good
    assert broken.numpy()[~counts.numpy()].tolist() == wrong
    for record in wrong:
        why = input_pipeline.fault(split, record, labels=Labels(classes, label_offset))
        assert f"its label is {record}" in why and "--label_offset" in why


def test_threads_and_prefetch_do_not_matter(tmp_path):
    split = make_split(tmp_path, 24, 2)
    expected = train(split, 2, range(3), 8)
    for count, prefetch in ((1, 1), (7, 3)):
        threads = input_pipeline.Threads(count, prefetch)
        other = train(split, 2, range(3), 8, threads=threads)
        np.testing.assert_array_equal(other[0], expected[0])
        np.testing.assert_array_equal(other[1], expected[1])


def test_steps_made_ahead():
    """Two, or one where a step takes more than 256 MB; what is asked for wins."""
    threads, cores = input_pipeline.Threads(), input_pipeline.cores()
    assert threads.count == cores == len(os.sched_getaffinity(0))
    assert [threads.ahead(2**28 + more) for more in (-1, 0, 1)] == [2, 2, 1]
    assert input_pipeline.Threads(prefetch=5).ahead(2**40) == 5


def test_the_threads_are_the_pipelines_own():
    """No autotuning: as many as were asked for, and one inside of an operation."""
    made = input_pipeline.Threads(3).finish(tf.data.Dataset.range(4), 1)
    options = made.options()
    assert options.threading.private_threadpool_size == 3
    assert options.threading.max_intra_op_parallelism == 1
    assert options.autotune.enabled is False


def test_the_streaming_order_goes_through_the_same_pipeline(tmp_path):
    """D4: any split of the workers over processes reads every record once."""
    split = make_split(tmp_path, 24, 3)
    order = image_order.streaming(split.part_sizes, 0, global_batch=8, worker_batch=2)
    images, labels = train(split, 2, range(4), 6, order=order)
    for epoch in labels.reshape(2, 24):
        assert np.array_equal(np.sort(epoch), np.arange(24))
    for workers in (range(1), range(1, 4)):
        part = train(split, 2, workers, 6, k=4, order=order)
        here = slice(workers.start, workers.stop)
        np.testing.assert_array_equal(part[0], images[:, here])
        np.testing.assert_array_equal(part[1], labels[:, here])


# --- broken records

KINDS = {
    "truncated": pictures.truncated(8, 8),
    "empty": b"",
    "text": b"<html>not found</html>",
    "undecodable": pictures.undecodable(),
    "broken png": pictures.encode(pictures.pixels(8, 8), "PNG")[:60],
}


def with_broken(folder, images=12, shards=2, flipped=()):
    """Records 2, 3, 5, 8 and 9 hold no image; `flipped` have a wrong byte as well."""
    encoded = [pictures.jpeg(8, 8, seed) for seed in range(images)]
    for record, image in zip((2, 3, 5, 8, 9), KINDS.values(), strict=True):
        encoded[record] = image
    split = pictures.split(folder, encoded, shards)
    for record in flipped:
        path = pathlib.Path(split.files[split.index.file[record]])
        data = bytearray(path.read_bytes())
        data[split.index.offset[record] + 40] ^= 1
        path.write_bytes(data)
    return split, {2, 3, 5, 8, 9, *flipped}


def following(order, position, broken, images):
    """The record for a position, by the rule, in plain Python."""
    epoch, number = divmod(position, images)
    while True:
        (record,) = order.records_at([epoch * images + number % images])
        if record not in broken:
            return record
        number += 1


def test_broken_records_are_replaced_by_the_next_good_one(tmp_path):
    """D5, D6: every kind; the number of steps and their sizes stay."""
    split, broken = with_broken(tmp_path, flipped=[11])
    images, labels, replaced = train(split, 2, range(3), 6, with_replaced=True)
    order = image_order.shuffled(12, 0)
    asked = order.records_at(np.arange(36))
    expected = [following(order, p, broken, 12) for p in range(36)]
    assert labels.ravel().tolist() == expected
    meant = [record if record in broken else -1 for record in asked]
    assert replaced.ravel().tolist() == meant
    assert images.reshape(36, -1).any(axis=1).all()


@pytest.mark.parametrize("workers", [range(1), range(1, 3), range(2, 3)])
@pytest.mark.parametrize("first_step", [0, 1, 4])
def test_replacements_do_not_depend_on_layout_or_restart(tmp_path, workers, first_step):
    """D5, D6, D10: what a process has not seen itself changes nothing."""
    split, _ = with_broken(tmp_path, flipped=[0])
    whole = train(split, 2, range(3), 6, with_replaced=True)
    part = train(split, 2, workers, range(first_step, 6), k=3, with_replaced=True)
    for mine, everything in zip(part, whole, strict=True):
        expected = everything[first_step:, workers.start : workers.stop]
        np.testing.assert_array_equal(mine, expected)


def test_a_replacement_is_cropped_as_itself(tmp_path):
    """Random numbers follow the position: two copies of an image are cropped apart."""
    encoded = [pictures.jpeg(64, 64, 1), pictures.jpeg(64, 64, 1), b""]
    split = pictures.split(tmp_path, encoded)
    images, _, replaced = train(split, 3, range(1), 20, with_replaced=True)
    assert (replaced >= 0).sum() == 20
    for step in images[:, 0]:
        assert len({image.tobytes() for image in step}) == 3


@pytest.mark.parametrize("cut", [1, 10])
def test_a_file_that_is_cut_off_costs_its_last_record(tmp_path, cut):
    """D6: 10 bytes cut off its end."""
    split = make_split(tmp_path, 8, 2)
    path = pathlib.Path(split.files[0])
    path.write_bytes(path.read_bytes()[:-cut])
    split = ShardSplit("train", records.index_files(split.files))
    assert len(split) == 8
    _, labels, replaced = train(split, 4, range(2), 1, with_replaced=True)
    assert set(replaced.ravel()) == {-1, 3}
    assert set(labels.ravel()) == set(range(8)) - {3}


def test_storage_that_is_gone_ends_the_run(tmp_path):
    split = make_split(tmp_path, 4, 1)
    pathlib.Path(split.files[0]).unlink()
    with pytest.raises(InputError, match="train-00000-of-00001.*is the storage there"):
        list(batches(split, 2, range(2), 1))


def test_faults_are_named(tmp_path):
    split, broken = with_broken(tmp_path, flipped=[0])
    reasons = {record: input_pipeline.fault(split, record) for record in range(12)}
    assert {record for record, why in reasons.items() if why} == broken
    for record, words in {
        0: "checksum",
        2: "cut off",
        3: "empty",
        5: "no JPEG, PNG, GIF or BMP",
        8: "cannot be decoded",
        9: "cannot be decoded",
    }.items():
        assert words in reasons[record]
        assert "\n" not in reasons[record]


# --- evaluation batches


def evaluate(split, batch, batches, label_offset=0, classes=2**30):
    return input_pipeline.EvalBatches(
        split,
        Labels(classes, label_offset),
        batch=batch,
        batches=batches,
        image_size=8,
        eval_resize=8,
    )


@pytest.mark.parametrize("images", [7, 8, 9])
def test_every_image_counts_once(tmp_path, images):
    """One image less, as many as, and one more than two batches of 4."""
    split = make_split(tmp_path, images, 2)
    seen = []
    for number, element in enumerate(evaluate(split, 4, range(4))):
        pixels, labels, counts, broken = element
        assert (broken.numpy() == -1).all()
        assert pixels.shape == (4, 8, 8, 3) and pixels.dtype == tf.uint8
        assert labels.shape == (4,) and labels.dtype == tf.int32
        assert counts.shape == (4,) and counts.dtype == tf.bool
        valid = min(max(images - 4 * number, 0), 4)
        assert counts.numpy().tolist() == [True] * valid + [False] * (4 - valid)
        assert not pixels.numpy()[valid:].any() and not labels.numpy()[valid:].any()
        assert pixels.numpy()[:valid].any(axis=(1, 2, 3)).all()
        seen += labels.numpy()[:valid].tolist()
    assert number == 3
    assert seen == list(range(images))


def test_processes_share_the_batches(tmp_path):
    """D8: 50 images, batches of 16, two processes: each image on one of them."""
    split = make_split(tmp_path, 50, 3)
    labels = []
    for process in range(2):
        for _, label, counts, _ in evaluate(split, 16, range(process, 4, 2)):
            labels += label.numpy()[counts.numpy()].tolist()
    assert sorted(labels) == list(range(50))


def test_batches_in_any_order(tmp_path):
    split = make_split(tmp_path, 5, 1)
    labels = [label.numpy().tolist() for _, label, *_ in evaluate(split, 2, [2, 0, 7])]
    assert labels == [[4, 0], [0, 1], [0, 0]]
    assert not list(evaluate(split, 2, []))


def test_evaluation_repeats_and_takes_the_label_offset_off(tmp_path):
    split = make_split(tmp_path, 5, 1)
    dataset = evaluate(split, 4, range(2), label_offset=-1)
    first, second = list(dataset), list(dataset)
    assert first[0][1].numpy().tolist() == [1, 2, 3, 4]
    assert first[1][1].numpy().tolist() == [5, 0, 0, 0]  # padding stays 0
    for (a, *_), (b, *_) in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_broken_records_do_not_count(tmp_path):
    """D5, D6: left out and told, whichever process reads them; and again."""
    split, broken = with_broken(tmp_path, flipped=[0])
    for numbers in (range(3), [1], [2, 0]):
        dataset = evaluate(split, 5, numbers)
        for _ in range(2):
            seen, told = [], []
            for pixels, labels, counts, left_out in dataset:
                seen += labels.numpy()[counts.numpy()].tolist()
                told += left_out.numpy()[left_out.numpy() >= 0].tolist()
                assert not pixels.numpy()[~counts.numpy()].any()
                assert not (counts.numpy() & (left_out.numpy() >= 0)).any()
            here = {r for b in numbers for r in range(5 * b, min(5 * b + 5, 12))}
            assert sorted(told) == sorted(here & broken)
            assert sorted(seen) == sorted(here - broken)


# --- memory


EPOCHS = """
import os, resource
from tf_goyal import datasets, image_order, input_pipeline
from tf_goyal.samples import Labels, Sampler
digits = datasets.load("digits")
order = image_order.shuffled(1500, 0)
labels = Labels(10, 0)
sampler = Sampler(digits.train, order, labels, seed=0, total_images=7500,
                  min_crop_area=0.08, horizontal_flip=True)
for epoch in range(5):
    train = input_pipeline.TrainBatches(
        sampler, global_batch=60, worker_batch=30, workers=range(2),
        first_step=25 * epoch, last_step=25 * epoch + 25, image_size=32)
    evaluation = input_pipeline.EvalBatches(
        digits.validation, labels, batch=60, batches=range(5), image_size=32,
        eval_resize=32)
    assert sum(1 for _ in train) == 25 and sum(1 for _ in evaluation) == 5
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(memory, len(os.listdir("/dev/fd")))
"""


def test_memory_and_open_files_are_flat():
    """D11: five epochs and evaluations; the last three add nothing of note."""
    done = subprocess.run(
        [sys.executable, "-c", EPOCHS],
        cwd=ROOT,
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
    )
    memory, open_files = np.array(done.stdout.split(), int).reshape(5, 2).T
    assert memory[4] - memory[1] < 16 * 1024  # KiB; a decoded epoch is 4,500
    assert open_files[4] == open_files[1]
