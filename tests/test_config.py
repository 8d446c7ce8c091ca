"""The settings: derived sizes by hand, JSON, and every refusal."""

import dataclasses
import json
import math

import pytest

from tf_goyal.config import MODELS, Config, validate

IMAGENET = 1_281_167
DATA = {"train_images": IMAGENET, "eval_images": 50_000, "classes": 1000}


def paper(**changes) -> Config:
    return Config(**{"model_dir": "run", "data_dir": "data"} | changes)


def check(config: Config, **data) -> None:
    validate(config, **DATA | {"processes": 1} | data)


def allowed(config: Config, **data) -> bool:
    """Whether nothing is said against these settings."""
    try:
        check(config, **data)
    except ValueError:
        return False
    return True


def refusal(config: Config, **data) -> str:
    """The sentence that refuses these settings."""
    with pytest.raises(ValueError) as caught:
        check(config, **data)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_defaults_are_the_paper():
    """PAPER.md, recipe: 8192 images, 256 workers of 32, 3.2, 90 epochs."""
    config = paper()
    check(config, processes=256)
    assert config.virtual_workers == 256
    assert config.scaled_lr == 3.2
    assert config.warms_up
    assert config.eval_shorter_side == 256
    assert config.steps_per_epoch(IMAGENET) == pytest.approx(156.392, abs=1e-3)
    assert (config.momentum, config.nesterov, config.weight_decay) == (0.9, True, 1e-4)
    assert (config.warmup_epochs, config.lr_boundaries) == (5.0, (30.0, 60.0, 80.0))


@pytest.mark.parametrize(
    ("scaling", "kn", "rate"),
    [
        ("linear", 128, 0.05),
        ("linear", 256, 0.1),
        ("linear", 65536, 25.6),
        ("sqrt", 8192, 0.1 * math.sqrt(32)),
        ("none", 8192, 0.1),
    ],
)
def test_scaled_lr(scaling, kn, rate):
    config = paper(lr_scaling=scaling, global_batch=kn)
    assert config.scaled_lr == pytest.approx(rate, rel=1e-15)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"global_batch": 256 - 32}, False),
        ({"global_batch": 256}, False),
        ({"global_batch": 256 + 32}, True),
        ({"warmup": "none"}, False),
        ({"warmup": "constant"}, True),
        ({"warmup_epochs": 0.0}, False),
    ],
)
def test_warmup_only_above_the_base_batch(changes, expected):
    """M7: no warmup of 0 epochs, none at kn <= 256."""
    assert paper(**changes).warms_up is expected


@pytest.mark.parametrize("epoch", [5.0, 30.0, 60.0, 80.0, 90.0, 7.1, 0.1])
def test_first_step_of_is_the_first_at_or_after_the_epoch(epoch):
    """M5: s*kn >= epoch*N holds at the step and not one before."""
    tenths = round(epoch * 10)
    step = paper().first_step_of(epoch, IMAGENET)
    assert step * 8192 * 10 >= tenths * IMAGENET
    assert (step - 1) * 8192 * 10 < tenths * IMAGENET


def test_first_step_of_reads_the_decimal_text():
    # 7.1 as a float is above 71/10: 71 steps of 100 images are exactly enough.
    config = paper(global_batch=100, worker_batch=100)
    assert config.first_step_of(7.1, 1000) == 71
    assert config.first_step_of(0.0, 1000) == 0
    assert config.first_step_of(1e-05, 1000) == 1
    assert config.first_step_of(1, 10**17 + 1) == 10**15 + 1  # no float rounding


def test_length():
    """D2: 7 images, kn = 4: 3 epochs are 21 images, 5.25 steps, so 6."""
    config = paper(global_batch=4, worker_batch=2, epochs=3.0)
    assert config.total_steps(7) == 6
    assert config.total_images(7) == 21
    short = dataclasses.replace(config, steps=5)
    assert (short.total_steps(7), short.total_images(7)) == (5, 20)
    assert paper().total_steps(IMAGENET) == 14_076  # 90 * 1281167 / 8192 = 14075.3
    assert config.epoch_of(7, 7) == 4.0


def test_eval_shorter_side():
    assert paper(image_size=32).eval_shorter_side == 37  # 36.57
    assert paper(image_size=32, eval_resize=32).eval_shorter_side == 32


def test_op_threads():
    assert paper().op_threads == 0
    assert paper(reduction="exact").op_threads == 1
    assert paper(reduction="exact", intra_op_threads=2).op_threads == 2


def test_recipe_fields():
    fields = set(paper().recipe_fields)
    assert {"global_batch", "worker_batch", "base_lr", "seed", "model"} <= fields
    assert not {"model_dir", "data_dir", "epochs", "steps", "devices"} & fields
    assert not {"worker_hosts", "task_index", "expected_workers"} & fields
    assert "intra_op_threads" not in fields
    assert "intra_op_threads" in paper(reduction="exact").recipe_fields


def test_json_round_trip():
    config = paper(lr_boundaries=(1.5, 2.0), nesterov=False, seed=-3, base_lr=0.3)
    assert Config.from_json(config.to_json()) == config
    assert Config.from_json("{}") == Config()
    assert Config.from_json('{"epochs": 5}').epochs == 5.0
    assert set(json.loads(config.to_json())) == {
        field.name for field in dataclasses.fields(Config)
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "JSON"),
        ("[1]", "list"),
        ('{"gobal_batch": 1}', "gobal_batch"),
        ('{"global_batch": "8192"}', "'8192'"),
        ('{"global_batch": 8192.0}', "global_batch"),
        ('{"seed": true}', "seed"),
        ('{"nesterov": 1}', "nesterov"),
        ('{"lr_boundaries": 30}', "lr_boundaries"),
        ('{"lr_boundaries": [30, "60"]}', "lr_boundaries"),
    ],
)
def test_json_that_is_no_configuration(text, named):
    with pytest.raises(ValueError, match=named):
        Config.from_json(text)


def test_every_field_has_help():
    for field in dataclasses.fields(Config):
        assert field.metadata["help"].endswith("."), field.name
        assert field.metadata["section"], field.name
        if field.metadata["choices"]:
            assert field.default in field.metadata["choices"], field.name


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_accepted(model):
    assert allowed(paper(model=model))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_dir": ""}, ["--model_dir"]),
        ({"data_dir": ""}, ["--data_dir", "imagenet"]),
        ({"model": "resnet19"}, ["--model ", "resnet18", "resnet19"]),
        ({"shuffle": "none"}, ["--shuffle", "global, streaming", "none"]),
        ({"max_bad_records": -1}, ["--max_bad_records", "at least 0", "-1"]),
        ({"input_threads": -1}, ["--input_threads", "at least 0", "-1"]),
        ({"prefetch": -1}, ["--prefetch", "at least 0", "-1"]),
        ({"task_index": -2}, ["--task_index", "at least -1", "-2"]),
        ({"expected_workers": -1}, ["--expected_workers", "at least 0", "-1"]),
        ({"padding": "valid"}, ["--padding", "symmetric, same", "valid"]),
        ({"lr_scaling": "cubic"}, ["--lr_scaling", "cubic"]),
        ({"warmup": "cosine"}, ["--warmup ", "cosine"]),
        ({"bn_statistics": "all"}, ["--bn_statistics", "all"]),
        ({"reduction": "sum"}, ["--reduction", "sum"]),
        ({"allreduce": "mpi"}, ["--allreduce", "mpi"]),
        ({"precision": "float8"}, ["--precision", "float8"]),
        ({"resume": "yes"}, ["--resume", "yes"]),
        ({"global_batch": 8191}, ["--global_batch", "32", "8191", "8160 or 8192"]),
        ({"global_batch": 8193}, ["--global_batch", "8193", "8192 or 8224"]),
        ({"global_batch": 16}, ["--global_batch", "16", "try 32"]),
        ({"global_batch": 0}, ["--global_batch", "at least 1", "0"]),
        ({"global_batch": -32}, ["--global_batch", "-32"]),
        ({"worker_batch": 0}, ["--worker_batch", "0"]),
        ({"base_batch": 0}, ["--base_batch", "0"]),
        ({"image_size": 7}, ["--image_size", "8", "7"]),
        ({"eval_resize": 223}, ["--eval_resize", "224", "223"]),
        ({"eval_resize": -1}, ["--eval_resize", "-1"]),
        ({"min_crop_area": 0.0}, ["--min_crop_area", "(0, 1]", "0.0"]),
        ({"min_crop_area": 1.01}, ["--min_crop_area", "1.01"]),
        ({"epochs": 0.0}, ["--epochs", "--steps", "0.0"]),
        ({"epochs": -1.0}, ["--epochs", "-1.0"]),
        ({"epochs": math.inf}, ["--epochs", "finite", "inf"]),
        ({"steps": -1}, ["--steps", "-1"]),
        ({"steps": 10, "epochs": 20.0}, ["--steps=10", "--epochs=20.0"]),
        ({"base_lr": -0.1}, ["--base_lr", "-0.1"]),
        ({"base_lr": math.nan}, ["--base_lr", "finite", "nan"]),
        ({"lr_decay": 0.0}, ["--lr_decay", "(0, 1]", "0.0"]),
        ({"lr_decay": 1.5}, ["--lr_decay", "1.5"]),
        ({"momentum": 1.0}, ["--momentum", "[0, 1)", "1.0"]),
        ({"momentum": -0.1}, ["--momentum", "-0.1"]),
        ({"weight_decay": -1e-4}, ["--weight_decay", "-0.0001"]),
        ({"weight_decay": math.inf}, ["--weight_decay", "inf"]),
        ({"bucket_mb": -0.5}, ["--bucket_mb", "-0.5"]),
        (
            {"allreduce": "nccl", "gradient_dtype": "bfloat16"},
            ["--allreduce=nccl", "--gradient_dtype=bfloat16"],
        ),
        ({"devices": -1}, ["--devices", "-1"]),
        ({"intra_op_threads": -1}, ["--intra_op_threads", "-1"]),
        ({"checkpoint_every": 0.0}, ["--checkpoint_every", "0.0"]),
        ({"eval_every": -1.0}, ["--eval_every", "-1.0"]),
        ({"grace_seconds": -1.0}, ["--grace_seconds", "-1.0"]),
        ({"eval_every": math.nan}, ["--eval_every", "nan"]),
        ({"keep_checkpoints": 0}, ["--keep_checkpoints", "0"]),
        ({"log_every": 0}, ["--log_every", "0"]),
        ({"seed": 2**31}, ["--seed", "2147483648"]),
        ({"seed": -(2**31) - 1}, ["--seed", "-2147483649"]),
        ({"warmup_epochs": -1.0}, ["--warmup_epochs", "-1.0"]),
        ({"warmup_epochs": 30.5}, ["--warmup_epochs", "30.0,60.0,80.0", "30.5"]),
        ({"epochs": 4.0}, ["--warmup_epochs", "--epochs=4.0", "5.0"]),
        ({"lr_boundaries": (-1.0, 3.0)}, ["--lr_boundaries", "-1.0,3.0"]),
        ({"lr_boundaries": (30.0, 30.0)}, ["--lr_boundaries", "30.0,30.0"]),
        ({"lr_boundaries": (60.0, 30.0)}, ["--lr_boundaries", "60.0,30.0"]),
        ({"lr_boundaries": (30.0, math.nan)}, ["--lr_boundaries", "nan"]),
        (
            {"reduction": "exact", "bn_statistics": "global"},
            ["--reduction=exact", "--bn_statistics=worker", "global"],
        ),
    ],
)
def test_refused(changes, said):
    """Each sentence names the flag, what came, and what is allowed."""
    message = refusal(paper(**changes))
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    "changes",
    [
        {"image_size": 8},
        {"eval_resize": 224},
        {"min_crop_area": 1.0},
        {"lr_decay": 1.0},
        {"momentum": 0.0},
        {"weight_decay": 0.0},
        {"bucket_mb": 0.0},
        {"allreduce": "nccl", "gradient_dtype": "float16"},
        {"allreduce": "auto", "gradient_dtype": "bfloat16"},
        {"base_lr": 0.0},
        {"seed": -(2**31)},
        {"seed": 2**31 - 1},
        {"lr_boundaries": ()},
        {"warmup_epochs": 30.0},
        {"warmup_epochs": 30.5, "warmup": "none"},
        {"warmup_epochs": 30.5, "global_batch": 256},
        {"epochs": 5.0},
        {"epochs": 0.0, "steps": 1},
        {"steps": 1},
        {"dataset": "digits", "data_dir": ""},
        {"reduction": "exact"},
        {"bn_statistics": "global"},
    ],
)
def test_just_allowed(changes):
    assert allowed(paper(**changes))


def test_every_device_needs_a_virtual_worker():
    """256 virtual workers: 256 devices can work, 257 cannot."""
    check(paper(), processes=256)
    assert "257" in refusal(paper(), processes=257)
    check(paper(devices=8), processes=32)
    message = refusal(paper(devices=8), processes=33)
    assert "264 devices (33 processes of 8)" in message
    assert "at most 256" in message


def test_data_that_is_too_small():
    """A step must not see an image twice: N >= kn."""
    check(paper(), train_images=8192)
    assert "8191" in refusal(paper(), train_images=8191)
    assert "validation" in refusal(paper(), eval_images=0)
    assert "classes" in refusal(paper(), classes=1)


def test_the_models_are_those_of_resnet():
    from tf_goyal import resnet  # brings TensorFlow

    assert set(MODELS) == set(resnet.MODELS)
