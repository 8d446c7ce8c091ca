"""The facts of doctor against numbers worked out by hand."""

import pytest
from doctor_run import IMAGENET, goyal_8k
from doctor_run import facts as facts_of_goyal_8k

from tf_goyal import cluster, doctor_facts, records, reduction_choice
from tf_goyal.datasets import Dataset
from tf_goyal.image_folder import FolderSplit
from tf_goyal.shards import ShardSplit


@pytest.fixture(scope="module")
def facts() -> dict:
    return facts_of_goyal_8k()


def test_recipe_and_sizes_of_goyal_8k(facts):
    recipe = facts["recipe"]
    assert recipe["worker_batch"] == 32
    assert recipe["virtual_workers"] == 256
    assert recipe["global_batch"] == 8192
    assert recipe["scaled_lr"] == 3.2
    assert recipe["steps_per_epoch"] == pytest.approx(156.39, abs=5e-3)
    assert recipe["total_steps"] == 14_076
    assert recipe["paper_top1_error"] == {"mean": 23.74, "std": 0.09}
    assert recipe["flags"]["lr_boundaries"] == (30.0, 60.0, 80.0)
    assert facts["deviations"] == []


def test_rates_of_goyal_8k(facts):
    """M5: 0.1 at step 0, 3.2 at epoch 5, divided at epochs 30, 60 and 80 exactly.

    5 epochs are 781.96 steps, 30, 60 and 80 are 4691.77, 9383.55 and 12511.40; the
    781 steps of warmup add 781 · 8192 / (5 · 1,281,167) of 3.1.
    """
    rows = facts["learning_rate"]
    assert [row["step"] for row in rows] == [
        *(0, 781, 782, 4691, 4692, 9383, 9384, 12_511, 12_512, 14_075)
    ]
    expected = [0.1, 3.196185, 3.2, 3.2, 0.32, 0.32, 0.032, 0.032, 0.0032, 0.0032]
    assert [row["rate"] for row in rows] == pytest.approx(expected, rel=1e-6)
    assert rows[3]["epoch"] < 30 <= rows[4]["epoch"]


def test_rates_that_a_short_run_does_not_reach():
    """Divided by 10 from epoch 0 on, and not at epoch 30, which is past the end."""
    settings = goyal_8k(epochs=0.0, steps=4692, lr_boundaries=(0.0, 30.0))
    rows = doctor_facts.learning_rate(settings, IMAGENET)
    assert [(row["at"], row["step"]) for row in rows] == [
        ("first step", 0),
        ("last step of warmup", 781),
        ("first after warmup", 782),
        ("first from epoch 0", 0),  # with nothing before it
        ("last before epoch 30", 4691),
        ("first from epoch 30", 4692),
        ("last step", 4691),
    ]
    expected = [0.01, 0.3196185, 0.32, 0.01, 0.32, None, 0.32]
    assert [row["rate"] for row in rows] == [
        rate and pytest.approx(rate, rel=1e-6) for rate in expected
    ]


def test_resnet50(facts):
    """M4: decay on the 53 convolutions and the fully connected layer, on no more."""
    model = facts["model"]
    assert model["parameters"] == 25_557_032
    assert model["trainable_variables"] == 53 + 2 * 53 + 2
    names = model["decayed_variables"]
    assert len(names) == len(set(names)) == 54
    assert sum("conv" in name for name in names) == 53
    assert names[-1] == "head/kernel"
    # A mean and a variance for the γ and β of each channel of the 53 BatchNorms.
    assert model["running_statistics"] == 53_120
    assert model["decayed_parameters"] == 25_557_032 - 53_120 - 1000


def test_memory_of_goyal_8k(facts):
    memory = facts["memory"]
    assert memory["gradients"] == 25_557_032 * 4
    assert memory["weights"] == (25_557_032 + 53_120) * 4
    # A velocity for each parameter; the step and two rates are a few bytes.
    assert 0 < memory["optimizer_state"] - 25_557_032 * 4 <= 24
    # 8 devices with one worker of 32 images each, and as many int32 labels.
    assert memory["input_per_step"] == 8 * 32 * (224 * 224 * 3 + 4)
    assert memory["buckets"] == facts["messages"]["bytes"]


def test_buckets_of_goyal_8k(facts):
    """Each bucket of 8 MB closes with the tensor that fills it, the head first.

    The numbers and statistics, which stay float32, travel before them.
    """
    messages = facts["messages"]
    assert messages["dtype"] == "float32"
    # Loss, error, faults, stop and replaced; running statistics; gradients.
    assert messages["bytes"] == 4 * (5 + 53_120 + 25_557_032)
    assert sum(messages["buckets"]) == messages["bytes"]
    numbers, *gradients = messages["buckets"]
    assert numbers == 4 * (5 + 53_120)  # they never share one with gradients
    assert all(size >= 2**23 for size in gradients[:-1])
    bn3, bn2, bn1 = 2 * 2048, 2 * 512, 2 * 512
    first = 1000 + 2048 * 1000 + (bn3 + 512 * 2048)  # head, the last block's conv3
    second = bn2 + 9 * 512 * 512  # its conv2
    third = (bn1 + 2048 * 512) + (bn3 + 512 * 2048)  # its conv1, the next one's conv3
    assert gradients[:3] == [4 * first, 4 * second, 4 * third]


class Variable:
    """As much of a Keras variable as sizes need."""

    def __init__(self, *shape: int):
        self.shape, self.dtype = shape, "float32"


class Network:
    trainable_variables = (Variable(3, 3, 2, 5), Variable(5), Variable(5))
    non_trainable_variables = (Variable(7), Variable(7))
    variables = (*trainable_variables, *non_trainable_variables)


def test_exact_sums_are_twice_as_long():
    """Three scalars, two signals, statistics, gradients from the last to the first."""
    elements = [1, 1, 1, 2, 7, 7, 5, 5, 90]
    fast = reduction_choice.message_sizes(goyal_8k(), Network)
    exact = reduction_choice.message_sizes(goyal_8k(reduction="exact"), Network)
    assert fast == [4 * count for count in elements]
    assert exact == [8 * count for count in elements]
    messages = doctor_facts.messages(goyal_8k(reduction="exact"), Network)
    assert (messages["dtype"], messages["buckets"]) == ("int64", [8 * 19, 8 * 100])
    # Gradients of two bytes; all else keeps its four.
    half = goyal_8k(gradient_dtype="bfloat16")
    sizes = reduction_choice.message_sizes(half, Network)
    assert sizes == [4 * count for count in elements[:6]] + [10, 10, 180]
    assert doctor_facts.messages(half, Network)["buckets"] == [4 * 19, 200]
    # C3, bucket size 0: every tensor alone.
    alone = doctor_facts.messages(goyal_8k(bucket_mb=0.0), Network)
    assert alone["buckets"] == fast


@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_messages_are_those_of_the_step(reduction):
    """What doctor counts is what a step hands to the all-reduce, in its order."""
    import keras
    import tensorflow as tf

    from tf_goyal import step
    from tf_goyal.batch_norm import BatchNormalization

    model = keras.Sequential(
        [
            keras.Input((4, 4, 3), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(5, 3),
            BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    sent = []

    def all_reduce(tensors):
        sent.extend(t.shape.num_elements() * t.dtype.size for t in tensors)
        return list(tensors)

    train_step = step.train_step(
        model,
        optimizer,
        tf.distribute.get_strategy(),
        global_batch=2,
        groups=1,
        together=False,
        exact=reduction == "exact",
        all_reduce=all_reduce,
    )
    images, labels = tf.zeros([1, 2, 4, 4, 3], tf.uint8), tf.zeros([1, 2], tf.int32)
    train_step.get_concrete_function(images, labels, tf.zeros([2]))
    assert sent == reduction_choice.message_sizes(goyal_8k(reduction=reduction), model)


def test_layouts():
    layout = doctor_facts.layout(32, cluster.assign(256, 256))
    assert (layout["devices_per_process"], layout["devices"]) == (8, 256)
    assert layout["devices_by_workers"] == [{"workers": 1, "devices": 256}]
    assert layout["workers"][255] == [255, 256]

    uneven = doctor_facts.layout(3, cluster.assign(256, 3))
    assert uneven["devices_by_workers"] == [
        {"workers": 86, "devices": 1},
        {"workers": 85, "devices": 2},
    ]
    assert uneven["workers"] == [[0, 85], [85, 170], [170, 256]]


def test_memory_of_uneven_layouts():
    """256 workers over 3 processes: 86 in the fullest, each 32 images of 4 × 4."""
    settings = goyal_8k(image_size=4)
    memory = doctor_facts.memory(settings, Network, Network, processes=3, devices=3)
    assert memory["input_per_step"] == 86 * 32 * (4 * 4 * 3 + 4)
    assert memory["gradients"] == 100 * 4
    assert memory["buckets"] == 119 * 4
    memory = doctor_facts.memory(settings, Network, Network, processes=1, devices=1)
    assert memory["input_per_step"] == 256 * 32 * (4 * 4 * 3 + 4)
    assert memory["buckets"] == 0  # one device sends nothing


@pytest.mark.parametrize(("k", "processes", "devices"), [(256, 3, 5), (7, 3, 2)])
def test_the_fullest_process_by_counting(k, processes, devices):
    """Its devices' workers, added up, are the ones whose images are in memory."""
    assigned = cluster.assign(k, processes * devices)
    counts = [
        sum(map(len, assigned[first : first + devices]))
        for first in range(0, processes * devices, devices)
    ]
    settings = goyal_8k(worker_batch=1, global_batch=k, image_size=4)
    memory = doctor_facts.memory(
        settings, Network, Network, processes, processes * devices
    )
    assert memory["input_per_step"] == max(counts) * (4 * 4 * 3 + 4)


def test_cluster():
    members = cluster.Cluster(("a:1", "[::1]:2"), 1, ("a note",))
    assert doctor_facts.cluster(members) == {
        "processes": 2,
        "addresses": ["a:1", "[::1]:2"],
        "rank": 1,
        "notes": ["a note"],
    }


class Holder:
    variables = (Variable(10), Variable(2, 5))


def storage(settings, tried, start_step) -> dict:
    return doctor_facts.storage(settings, IMAGENET, Holder, Holder, tried, start_step)


def test_another_rank_needs_no_room():
    found = storage(goyal_8k(model_dir="/proc/no/run"), None, 0)
    assert found["trial_write"] is None
    assert found["needed_bytes"] == 0


def test_room_for_checkpoints(tmp_path):
    """--keep_checkpoints=5 and the one being written; those there are there."""
    for step in (10, 20):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    settings = goyal_8k(model_dir=str(tmp_path))
    found = storage(settings, tmp_path, 20)
    assert found["checkpoints"] == [10, 20]
    assert (found["resumes"], found["start_step"]) == (True, 20)
    assert not found["already_done"]
    assert not found["will_be_created"]
    assert found["trial_write"] == str(tmp_path)
    assert found["checkpoint_bytes"] == 2 * 20 * 4
    assert found["needed_bytes"] == 4 * found["checkpoint_bytes"]
    assert found["free_bytes"] > 0
    assert storage(settings, tmp_path, 14_076)["already_done"]


def test_data_of_an_index(tmp_path):
    """Three shards of 2, 1 and 2 records; the header of one of 40 bytes is broken."""
    datas = [bytes(10), bytes(40), bytes(20), bytes(30), bytes(30)]
    paths = []
    for shard, part in enumerate((datas[:2], datas[2:3], datas[3:])):
        paths.append(tmp_path / f"train-{shard:05d}-of-00003")
        paths[-1].write_bytes(b"".join(map(records.framed, part)))
    spoiled = bytearray(paths[0].read_bytes())
    spoiled[12 + 10 + 4] ^= 1
    paths[0].write_bytes(spoiled)
    train = ShardSplit("train", records.index_files(map(str, paths)))
    folder = FolderSplit("validation", ["a", "b"], [0, 1], [["1.jpg"], []])
    vars(folder)["bytes"] = 7  # its files are not there
    found = doctor_facts.data(Dataset("tfrecord", train, folder, ("x", "y")))
    assert found["splits"]["train"] == {
        "folder": str(tmp_path),
        "files": 3,
        "images": 5,
        "bytes": 90,
        "images_per_file": {"smallest": 1, "median": 2, "largest": 2},
        "record_bytes": {"smallest": 10, "median": 25, "largest": 30},
    }
    assert found["splits"]["validation"]["images_per_file"]["largest"] == 1
    assert found["splits"]["validation"]["record_bytes"] is None
