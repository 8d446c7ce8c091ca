"""doctor: the facts against numbers worked out by hand, and its refusals."""

import dataclasses
import errno
import itertools
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from tf_goyal import checkpoint, cluster, datasets, doctor, flags, records, train
from tf_goyal.config import Config

IMAGENET = 1_281_167


def split(name: str, images: int, files: int) -> datasets.Split:
    """A split of records of 1000 bytes that are nowhere."""
    names = tuple(f"/images/{name}-{i:05d}-of-{files:05d}" for i in range(files))
    index = records.Index(
        files=names,
        file=np.zeros(images, np.int32),
        offset=np.zeros(images, np.int64),
        length=np.full(images, 1000, np.int64),
    )
    return datasets.Split(name, index)


def imagenet() -> datasets.Dataset:
    labels = tuple(map(str, range(1000)))
    train_split = split("train", IMAGENET, 1024)
    validation = split("validation", 50_000, 128)
    return datasets.Dataset("imagenet", train_split, validation, labels)


def goyal_8k(**changes) -> Config:
    return Config(**{"model_dir": "run", "data_dir": "/images"} | changes)


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> dict:
    """All of goyal_8k on 32 processes of 8 devices (§5.1), with a fake ImageNet."""
    settings = goyal_8k(model_dir=str(tmp_path_factory.mktemp("doctor") / "run"))
    storage = doctor.storage_facts(settings, 0, IMAGENET, is_chief=True)
    layout = doctor.layout_facts(settings, 32, 8)
    return doctor.gather(settings, cluster.Cluster(), imagenet(), storage, layout)


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
    settings = goyal_8k(epochs=0.0, steps=4692, lr_boundaries=(0.0, 30.0))
    rows = doctor.rate_facts(settings, IMAGENET, lambda step: step / 2)
    assert [(row["step"], row["rate"]) for row in rows] == [
        (0, 0.0),  # first step
        (781, 390.5),  # warmup
        (782, 391.0),
        (0, 0.0),  # epoch 0, with nothing before it
        (4691, 2345.5),  # last before epoch 30
        (4692, None),
        (4691, 2345.5),  # last step
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
    """Each bucket of 8 MB closes with the tensor that fills it, the head first."""
    messages = facts["messages"]
    assert messages["dtype"] == "float32"
    # Loss, error, faults and stop; running statistics; gradients.
    assert messages["bytes"] == 4 * (4 + 53_120 + 25_557_032)
    assert sum(messages["buckets"]) == messages["bytes"]
    assert all(size >= 2**23 for size in messages["buckets"][:-1])
    first = 4 + 53_120 + 1000 + 2048 * 1000  # ... head bias, head kernel
    bn3, bn2, bn1 = 2 * 2048, 2 * 512, 2 * 512
    second = (bn3 + 512 * 2048) + (bn2 + 9 * 512 * 512)  # last block's conv3, conv2
    third = (bn1 + 2048 * 512) + (bn3 + 512 * 2048)  # its conv1, the next one's conv3
    assert messages["buckets"][:3] == [4 * first, 4 * second, 4 * third]


class Variable:
    """As much of a Keras variable as sizes need."""

    def __init__(self, *shape: int):
        self.shape, self.dtype = shape, "float32"


class Network:
    trainable_variables = (Variable(3, 3, 2, 5), Variable(5), Variable(5))
    non_trainable_variables = (Variable(7), Variable(7))
    variables = (*trainable_variables, *non_trainable_variables)


def test_exact_sums_are_twice_as_long():
    """Order: four scalars, statistics, and gradients from the last to the first."""
    elements = [1, 1, 1, 1, 7, 7, 5, 5, 90]
    fast = doctor.message_sizes(goyal_8k(), Network)
    exact = doctor.message_sizes(goyal_8k(reduction="exact"), Network)
    assert fast == [4 * count for count in elements]
    assert exact == [8 * count for count in elements]
    messages = doctor.message_facts(goyal_8k(reduction="exact"), Network)
    assert (messages["dtype"], messages["buckets"]) == ("int64", [8 * 118])
    # C3, bucket size 0: every tensor alone.
    alone = doctor.message_facts(goyal_8k(bucket_mb=0.0), Network)
    assert alone["buckets"] == fast


@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_messages_are_those_of_the_step(monkeypatch, reduction):
    """What doctor counts is what a step hands to the all-reduce, in its order."""
    import keras
    import tensorflow as tf

    from tf_goyal import allreduce, step
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

    def all_reduce(tensors, bucket_bytes):
        sent.extend(t.shape.num_elements() * t.dtype.size for t in tensors)
        return list(tensors)

    monkeypatch.setattr(allreduce, "all_reduce", all_reduce)
    train_step = step.train_step(
        model,
        optimizer,
        tf.distribute.get_strategy(),
        global_batch=2,
        groups=1,
        together=False,
        exact=reduction == "exact",
        bucket_bytes=0,
    )
    images, labels = tf.zeros([1, 2, 4, 4, 3], tf.uint8), tf.zeros([1, 2], tf.int32)
    train_step.get_concrete_function(images, labels, tf.constant(0.0))
    assert sent == doctor.message_sizes(goyal_8k(reduction=reduction), model)


def test_layouts():
    layout = doctor.layout_facts(goyal_8k(), 32, 8)
    assert layout["devices"] == 256
    assert layout["devices_by_workers"] == [{"workers": 1, "devices": 256}]
    assert layout["workers"][255] == [255, 256]

    uneven = doctor.layout_facts(goyal_8k(), 3, 1)
    assert uneven["devices_by_workers"] == [
        {"workers": 86, "devices": 1},
        {"workers": 85, "devices": 2},
    ]
    assert uneven["workers"] == [[0, 85], [85, 170], [170, 256]]
    with pytest.raises(ValueError, match="257 devices"):
        doctor.layout_facts(goyal_8k(), 257, 1)


def test_memory_of_uneven_layouts():
    """256 workers over 3 processes: 86 in the fullest, each 32 images of 4 × 4."""
    settings = goyal_8k(image_size=4)
    uneven = doctor.layout_facts(settings, 3, 1)
    memory = doctor.memory_facts(settings, Network, Network, uneven)
    assert memory["input_per_step"] == 86 * 32 * (4 * 4 * 3 + 4)
    assert memory["gradients"] == 100 * 4
    assert memory["buckets"] == 118 * 4
    alone = doctor.layout_facts(settings, 1, 1)
    memory = doctor.memory_facts(settings, Network, Network, alone)
    assert memory["input_per_step"] == 256 * 32 * (4 * 4 * 3 + 4)
    assert memory["buckets"] == 0  # one device sends nothing


def test_tables_for_people(facts, capsys):
    doctor.show(facts, list_variables=True)
    text = capsys.readouterr().out
    assert "\x1b" not in text  # plain when not on a terminal
    for line in (
        "Deviations from the paper: none",
        "256 devices with 1 each",
        "32 processes of 8 devices",
        "14,076",
        "156.39",
        "23.74 ± 0.09 % without deviations",
        "54 of 161 variables",
        "stem_conv/kernel",
        "97.5 MB",  # 25,557,032 · 4 / 2^20
        "1,281,167 images, 1,221.8 MB in 1,024 files of /images",
        "run (will be created)",
        "starts at step 0",
    ):
        assert line in text
    doctor.show(facts)
    assert "stem_conv/kernel" not in capsys.readouterr().out


def test_deviations_are_shown_with_section_and_price(facts, capsys):
    settings = goyal_8k(warmup="none")
    found = doctor.deviation_facts(settings, imagenet())
    doctor.show(facts | {"deviations": found})
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "24.84" in x)
    assert line.startswith("warmup")
    for cell in ("§2.2", "over 5 epochs", "none", "instead of 23.74 ± 0.09 %"):
        assert cell in line


def proof(n: int, k: int, devices: int, images: int, **changes) -> dict:
    settings = goyal_8k(worker_batch=n, global_batch=k * n, **changes)
    layout = doctor.layout_facts(settings, devices, 1)
    return doctor.order_proof(settings, images, layout)


@pytest.mark.parametrize(
    ("n", "k", "devices", "images"),
    [
        (2, 3, 1, 7),  # an epoch ends inside of a step
        (2, 3, 2, 7),
        (2, 3, 3, 7),
        (4, 3, 3, 12),  # an epoch is one step
        (4, 3, 3, 13),
        (4, 3, 2, 11),  # an epoch is less than a step
        (5, 8, 3, 1000),
        (1, 1, 1, 1),
    ],
)
def test_d4_union_is_the_data_set_and_nothing_overlaps(n, k, devices, images):
    """D4, on 3 virtual workers laid out over 1, 2 and 3 devices, and on others."""
    found = proof(n, k, devices, images)
    assert found["holds"]
    assert [each["epoch"] for each in found["epochs"]] == [0, 1]
    for each in found["epochs"]:
        assert (each["read"], each["union"], each["overlap"]) == (images, images, 0)


def test_d4_records_of_each_device():
    """7 records, steps of 6: device 0 has positions 0, 1 and 6, the others two."""
    assert proof(2, 3, 3, 7)["epochs"][0]["per_device"] == [2, 3]


def test_d4_finds_what_is_missing_and_what_comes_twice():
    sizes = {"train_images": 24, "seed": 0, "global_batch": 12, "worker_batch": 4}
    missing = doctor.count_epoch(0, np.array([0, 2]), np.array([0, 1]), **sizes)
    assert (missing["read"], missing["union"], missing["overlap"]) == (16, 16, 0)
    twice = doctor.count_epoch(0, np.array([0, 1, 1, 2]), np.zeros(4, int), **sizes)
    assert (twice["read"], twice["union"], twice["overlap"]) == (32, 24, 8)


def test_d4_failure_is_refused():
    storage = {"free_bytes": 1, "needed_bytes": 0}
    doctor.refuse_failures({"storage": storage, "proof": {"holds": True}})
    with pytest.raises(ValueError, match="exactly once an epoch"):
        doctor.refuse_failures(
            {"storage": storage, "proof": {"holds": False, "epochs": []}}
        )


def test_d4_for_imagenet():
    """256 workers over 100 devices: of 156.39 steps each 12,500 to 15,000 records."""
    found = proof(32, 256, 100, IMAGENET)
    assert found["holds"]
    fewest, most = found["epochs"][0]["per_device"]
    assert 156 * 2 * 32 <= fewest < most <= 157 * 3 * 32


def test_d4_is_what_the_input_pipeline_reads(tmp_path):
    """The counts of the proof are those of images really read: label = record."""
    import tensorflow as tf

    from tf_goyal import input_pipeline

    images, n, k = 50, 4, 3
    jpeg = tf.io.encode_jpeg(tf.zeros([8, 8, 3], tf.uint8)).numpy()
    path = str(tmp_path / "train-00000-of-00001")
    with tf.io.TFRecordWriter(path) as writer:
        for label in range(images):
            features = {
                "image/encoded": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[jpeg])
                ),
                "image/class/label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[label])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    data = datasets.Split("train", records.index_files([path]))
    seen = []  # records of each device
    for workers in cluster.assign(k, 2):
        batches = input_pipeline.train_batches(
            data,
            seed=0,
            global_batch=n * k,
            worker_batch=n,
            workers=workers,
            first_step=0,
            last_step=math.ceil(images / (n * k)),
            total_images=images,  # what fills the last step up has label -1
            image_size=8,
        )
        labels = np.concatenate([labels.numpy().ravel() for _, labels in batches])
        seen.append(labels[labels >= 0])
    assert sorted(itertools.chain(*seen)) == list(range(images))
    found = proof(n, k, 2, images)["epochs"][0]
    assert found["per_device"] == sorted(map(len, seen))


def test_cluster_facts():
    members = cluster.Cluster(("a:1", "[::1]:2"), 1, ("a note",))
    facts = doctor.cluster_facts(members)
    assert facts == {
        "processes": 2,
        "addresses": ["a:1", "[::1]:2"],
        "rank": 1,
        "notes": ["a note"],
    }


def test_trial_write_leaves_nothing(tmp_path):
    missing = tmp_path / "a" / "b"
    assert doctor.trial_write(missing) == tmp_path
    assert doctor.trial_write(tmp_path) == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_f6_storage_that_cannot_be_written(tmp_path, monkeypatch):
    """F6: found before step 1, for a file in the way, a read-only and a full disk."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="Not a directory"):
        doctor.trial_write(tmp_path / "file" / "run")
    with pytest.raises(ValueError, match="/proc/no/run failed in /proc:"):
        doctor.trial_write(Path("/proc/no/run"))

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="No space left on device"):
        doctor.trial_write(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_another_rank_leaves_the_storage_alone(tmp_path):
    settings = goyal_8k(model_dir="/proc/no/run")
    storage = doctor.storage_facts(settings, 0, IMAGENET, is_chief=False)
    assert storage["trial_write"] is None
    room = doctor.room_facts(settings, storage, Network, Network)
    assert room["needed_bytes"] == 0


def test_room_for_checkpoints(tmp_path):
    """--keep_checkpoints=5 and the one being written; those there are there."""
    for step in (10, 20):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    settings = goyal_8k(model_dir=str(tmp_path))
    storage = doctor.storage_facts(settings, 20, IMAGENET, is_chief=True)
    assert storage["checkpoints"] == [10, 20]
    assert (storage["resumes"], storage["start_step"]) == (True, 20)
    assert not storage["already_done"]
    assert not storage["will_be_created"]

    class Holder:
        variables = (Variable(10), Variable(2, 5))

    room = doctor.room_facts(settings, storage, Holder, Holder)
    assert room["checkpoint_bytes"] == 2 * 20 * 4
    assert room["needed_bytes"] == 4 * room["checkpoint_bytes"]
    assert room["free_bytes"] > 0

    short = storage | {"free_bytes": 2**20 - 1, "needed_bytes": 2**20}
    with pytest.raises(ValueError, match="lower --keep_checkpoints"):
        doctor.refuse_failures({"storage": short})
    doctor.refuse_failures({"storage": short | {"free_bytes": 2**20}})
    done = doctor.storage_facts(settings, 14_076, IMAGENET, is_chief=True)
    assert done["already_done"]


def refusal(module, arguments: list[str], capsys) -> str:
    """The sentence with which a command exits with 2."""
    define = getattr(module, "define", None)
    with pytest.raises(SystemExit) as caught:
        flags.run(module.main, [module.__name__, *arguments], define=define)
    out, error = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    assert error.count("\n") == 1
    return error.split(": ", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "tf_config", "part"),
    [
        (["--recipe=digits"], "", "--model_dir"),
        (["--recipe=digits", "--model_dir=m", "--global_batch=63"], "", "multiple"),
        (["--recipe=goyal_8k", "--model_dir=m"], "", "--data_dir"),
        (["--recipe=goyal_8k", "--model_dir=m", "--data_dir=no"], "", "no"),
        (["--recipe=digits", "--model_dir=m", "--resume=must"], "", "must"),
        (["--recipe=digits", "--model_dir=m"], "{", "TF_CONFIG"),
        (
            ["--recipe=digits", "--model_dir=m"],
            json.dumps(
                {
                    "cluster": {"worker": [f"h:{i}" for i in range(1, 6)]},
                    "task": {"type": "worker", "index": 0},
                }
            ),
            "5 devices",
        ),
    ],
)
def test_refuses_as_train_does(
    arguments, tf_config, part, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CONFIG", tf_config)
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert part in found
    assert list(tmp_path.iterdir()) == []


def test_s9_refuses_nccl_without_gpus_as_train_does(tmp_path, monkeypatch, capsys):
    """S9: TensorFlow runs already when it is found that there is no GPU."""
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [])
    monkeypatch.delenv("TF_CONFIG", raising=False)
    arguments = ["--recipe=digits", f"--model_dir={tmp_path}", "--allreduce=nccl"]
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert "--allreduce=nccl needs GPUs" in found


@pytest.fixture
def stopped_run(tmp_path, monkeypatch) -> str:
    """The folder of a run of the digits recipe that was stopped at step 7."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    flags.parse(["train", "--recipe=digits"])
    settings = dataclasses.asdict(flags.config_from_flags())
    metadata = {"flags": settings, "owes_evaluation": False}
    checkpoint.save(str(tmp_path), 7, {"model/w": np.zeros(2)}, metadata, keep=1)
    return str(tmp_path)


def test_refuses_another_recipes_checkpoint_as_train_does(stopped_run, capsys):
    arguments = ["--recipe=digits", f"--model_dir={stopped_run}", "--momentum=0.8"]
    found = refusal(doctor, arguments, capsys)
    assert found == refusal(train, arguments, capsys)
    assert "--momentum was 0.9, now 0.8" in found


def test_shows_the_step_that_a_run_goes_on_from(stopped_run, capsys):
    def shown(*arguments: str) -> str:
        argv = ["doctor", "--recipe=digits", f"--model_dir={stopped_run}", *arguments]
        with pytest.raises(SystemExit) as caught:
            flags.run(doctor.main, argv, define=doctor.define)
        assert caught.value.code == 0
        return capsys.readouterr().out

    before = sorted(Path(stopped_run).rglob("*"))
    assert "goes on from step 7" in shown()
    assert "nothing to do: step 7 is the last" in shown("--steps=7")
    assert sorted(Path(stopped_run).rglob("*")) == before


def test_more_processes_than_virtual_workers(tmp_path, capsys):
    """--processes asks for a layout; the digits have k = 4."""
    arguments = ["--recipe=digits", f"--model_dir={tmp_path}", "--processes=3"]
    arguments.append("--devices=2")
    found = refusal(doctor, arguments, capsys)
    assert "6 devices (3 processes of 2)" in found


def test_digits_end_to_end(tmp_path, python):
    """A fresh process: JSON and nothing else on stdout, nothing left behind."""
    done = python(
        *["-m", "tf_goyal.doctor", "--recipe=digits", f"--model_dir={tmp_path}/run"],
        *["--json", "--data", "--processes=3"],
        environment={"TF_CONFIG": "", "CUDA_VISIBLE_DEVICES": "-1"},
        seconds=120.0,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["recipe"]["virtual_workers"] == 4
    assert facts["layout"]["workers"] == [[0, 1], [1, 2], [2, 4]]
    assert facts["data"]["splits"]["train"]["images"] == 1500
    assert facts["proof"]["holds"]
    assert facts["proof"]["epochs"][0]["union"] == 1500
    assert len(facts["model"]["decayed_variables"]) == 19 + 2 + 1
    assert facts["storage"]["trial_write"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_tensorflow_at_import(python):
    """Bad input is refused before TensorFlow starts."""
    check = (
        "import sys; from tf_goyal import doctor; "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert python("-c", check, seconds=60.0).returncode == 0
