import collections
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import datasets, input_pipeline, records

ROOT = pathlib.Path(datasets.__file__).parents[1]


def make_split(folder, images: int, files: int, interleaved=False) -> datasets.Split:
    """Distinct 8x8 images labelled 0 ... images - 1, in that order over the files."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    examples = []
    for label in range(images):
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        encoded = tf.io.encode_jpeg(pixels).numpy()
        features = {
            "image/encoded": tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[encoded])
            ),
            "image/class/label": tf.train.Feature(
                int64_list=tf.train.Int64List(value=[label])
            ),
        }
        message = tf.train.Example(features=tf.train.Features(feature=features))
        examples.append(message.SerializeToString())
    paths = []
    for number, chosen in enumerate(np.array_split(np.arange(images), files)):
        if interleaved:
            chosen = range(number, images, files)
        paths.append(str(folder / f"train-{number:05d}-of-{files:05d}"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for i in chosen:
                writer.write(examples[i])
    return datasets.Split("train", records.index_files(paths))


def train(split, n, workers, steps, k=None, **kwargs):
    """Images [steps, m, n, 8, 8, 3] and labels [steps, m, n] as NumPy."""
    steps = range(steps) if isinstance(steps, int) else steps
    arguments = {
        "seed": 0,
        "global_batch": n * (k or len(workers)),
        "worker_batch": n,
        "workers": workers,
        "first_step": steps.start,
        "last_step": steps.stop,
        "total_images": 2**62,
        "image_size": 8,
        "classes": 2**40,
    }
    dataset = input_pipeline.train_batches(split, **{**arguments, **kwargs})
    elements = list(dataset.as_numpy_iterator())
    assert len(elements) == len(steps)
    return tuple(np.stack(parts) for parts in zip(*elements, strict=True))


# --- the order of the records


def orders(n, epochs, seed=0) -> np.ndarray:
    """int64 [len(epochs), n]: the records of whole epochs."""
    positions = np.concatenate([e * n + np.arange(n) for e in epochs])
    return input_pipeline.records_at(positions, n, seed).reshape(-1, n)


@pytest.mark.parametrize("n", [1, 2, 7, 1500, 65_536, 65_537])
def test_every_epoch_is_a_permutation(n):
    for order in orders(n, [0, 1, 255]):
        assert np.array_equal(np.sort(order), np.arange(n))


def test_positions_are_exact_beyond_float64():
    n = 1500
    last = (2**63 - 1) // n - 1
    order, next_order = orders(n, [last - 1, last])
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(np.sort(next_order), np.arange(n))
    assert not np.array_equal(order, next_order)


def test_order_is_fixed():
    """Another order would make old checkpoints go on with other data."""
    assert orders(7, [0, 1]).tolist() == [[0, 2, 1, 5, 4, 3, 6], [5, 3, 2, 4, 1, 0, 6]]
    big = [0, 1, 1_281_166, 1_281_167]
    assert input_pipeline.records_at(big, 1_281_167, 1).tolist() == [
        293997,
        912910,
        527182,
        1264405,
    ]


def test_seeds_and_epochs_differ_in_all_their_bits():
    """`tf.random.experimental.index_shuffle` takes only 8 bits of each."""
    seen = {orders(100, [0]).tobytes()}
    for bit in range(0, 63, 7):
        seen.add(orders(100, [0], seed=2**bit).tobytes())
        seen.add(orders(100, [0], seed=-(2**bit)).tobytes())
        if bit < 50:
            seen.add(orders(100, [2**bit]).tobytes())
    assert len(seen) == 1 + 9 + 9 + 8
    assert len({order.tobytes() for order in orders(100, range(1000))}) == 1000


@pytest.mark.parametrize("n, epochs", [(1500, 300), (65_537, 20)])
def test_orders_are_uncorrelated(n, epochs):
    """Within 5 standard deviations of independent uniform permutations."""
    order = orders(n, range(epochs))
    rank = (order - (n - 1) / 2) / np.sqrt((n**2 - 1) / 12)  # mean 0, variance 1
    across = (rank[1:] * rank[:-1]).mean(axis=1)  # record ranks, epoch to epoch
    along = (rank[:, 1:] * rank[:, :-1]).mean(axis=1)  # neighbours in one epoch
    for correlation in (across, along):
        assert abs(correlation.mean()) < 5 / np.sqrt(n * len(correlation))
        assert np.abs(correlation).max() < 5 / np.sqrt(n)
    # Fixed points, and records at the same place twice: Poisson of mean 1.
    fixed, again = order == np.arange(n), order[1:] == order[:-1]
    for same in (fixed, again):
        assert abs(same.sum() - len(same)) < 5 * np.sqrt(len(same))


def test_any_two_records_share_a_batch_equally_often():
    n, batch, epochs = 600, 60, 300
    together = np.zeros((n, n), np.float32)
    for order in orders(n, range(epochs)):
        member = np.zeros((n, n // batch), np.float32)
        member[order, np.arange(n) // batch] = 1
        together += member @ member.T
    pairs = together[np.triu_indices(n, 1)]
    chance = (batch - 1) / (n - 1)
    assert pairs.mean() == pytest.approx(epochs * chance, rel=1e-5)
    assert pairs.var() == pytest.approx(epochs * chance * (1 - chance), rel=0.02)


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
    expected = input_pipeline.records_at(np.arange(12), 5, 0) + 3
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
    expected = input_pipeline.records_at(positions, 30, 0)
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


def test_a_record_that_changed_is_named(tmp_path):
    split = make_split(tmp_path, 4, 1)
    pathlib.Path(split.files[0]).write_bytes(b"")
    with pytest.raises(tf.errors.InvalidArgumentError, match="train-00000-of-00001"):
        train(split, 2, range(2), 1)


@pytest.mark.parametrize(
    ("classes", "label_offset", "wrong"),
    [(4, 0, None), (3, 0, "has 3"), (3, 1, "has 0"), (4, 1, "has 0")],
)
def test_a_label_out_of_range_is_named(tmp_path, classes, label_offset, wrong):
    """D7: labels 0 to 3; in training and in evaluation."""
    split = make_split(tmp_path, 4, 2)
    sizes = {"classes": classes, "label_offset": label_offset}
    arguments = {"image_size": 8, **sizes}
    train_set = input_pipeline.train_batches(
        split,
        seed=0,
        global_batch=4,
        worker_batch=2,
        workers=range(2),
        first_step=0,
        last_step=1,
        total_images=4,
        **arguments,
    )
    eval_set = input_pipeline.eval_batches(
        split, batch=4, batches=[0], eval_resize=8, **arguments
    )
    for dataset in (train_set, eval_set):
        named = input_pipeline.named_errors(dataset)
        if wrong is None:
            assert len(list(named)) == 1
            continue
        with pytest.raises(input_pipeline.InputError, match=wrong) as caught:
            list(named)
        assert "train-0000" in str(caught.value)
        assert "--label_offset" in str(caught.value)
        assert "\n" not in str(caught.value)


# --- evaluation batches


def evaluate(split, batch, batches, **kwargs):
    arguments = {"image_size": 8, "eval_resize": 8, "classes": 2**40, **kwargs}
    return input_pipeline.eval_batches(split, batch=batch, batches=batches, **arguments)


@pytest.mark.parametrize("images", [7, 8, 9])
def test_every_image_counts_once(tmp_path, images):
    """One image less, as many as, and one more than two batches of 4."""
    split = make_split(tmp_path, images, 2)
    seen = []
    for number, (pixels, labels, counts) in enumerate(evaluate(split, 4, range(4))):
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
        for _, label, counts in evaluate(split, 16, range(process, 4, 2)):
            labels += label.numpy()[counts.numpy()].tolist()
    assert sorted(labels) == list(range(50))


def test_batches_in_any_order(tmp_path):
    split = make_split(tmp_path, 5, 1)
    labels = [label.numpy().tolist() for _, label, _ in evaluate(split, 2, [2, 0, 7])]
    assert labels == [[4, 0], [0, 1], [0, 0]]
    assert not list(evaluate(split, 2, []))


def test_evaluation_repeats_and_takes_the_label_offset_off(tmp_path):
    split = make_split(tmp_path, 5, 1)
    dataset = evaluate(split, 4, range(2), label_offset=-1)
    first, second = list(dataset), list(dataset)
    assert first[0][1].numpy().tolist() == [1, 2, 3, 4]
    assert first[1][1].numpy().tolist() == [5, 0, 0, 0]  # padding stays 0
    for (a, _, _), (b, _, _) in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


# --- memory


EPOCHS = """
import os, resource
from tf_goyal import datasets, input_pipeline
digits = datasets.load("digits")
for epoch in range(5):
    train = input_pipeline.train_batches(
        digits.train, seed=0, global_batch=60, worker_batch=30, workers=range(2),
        first_step=25 * epoch, last_step=25 * epoch + 25, total_images=7500,
        image_size=32, classes=10)
    evaluation = input_pipeline.eval_batches(
        digits.validation, batch=60, batches=range(5), image_size=32, eval_resize=32,
        classes=10)
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
        timeout=120,
        stdout=subprocess.PIPE,
        text=True,
    )
    memory, open_files = np.array(done.stdout.split(), int).reshape(5, 2).T
    assert memory[4] - memory[1] < 16 * 1024  # KiB; a decoded epoch is 4,500
    assert open_files[4] == open_files[1]
