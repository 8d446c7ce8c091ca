"""The paper's recipe against every recipe that ships, and one setting at a time."""

import pytest

from tf_goyal import flags
from tf_goyal.config import Config
from tf_goyal.deviations import ERRORS, OPEN, RECIPE, deviations, paper_error, written

IMAGENET = {"train_images": 1_281_167, "eval_images": 50_000, "classes": 1000}
DIGITS = {"train_images": 1500, "eval_images": 297, "classes": 10}

ABLATIONS = {
    "goyal_256_gamma1": ("last γ of each block", "23.84 ± 0.18"),
    "goyal_8k_gamma1": ("last γ of each block", "24.11 ± 0.07"),
    "goyal_8k_no_warmup": ("warmup", "24.84 ± 0.37"),
    "goyal_8k_constant_warmup": ("warmup", "25.88 ± 0.56"),
    "goyal_8k_unscaled": ("scaling of the rate", "41.67 ± 0.10"),
    "goyal_8k_sqrt": ("scaling of the rate", "26.22 ± 0.03"),
}


def recipe(name: str) -> Config:
    flags.parse(["doctor", f"--recipe={name}"])
    return flags.config_from_flags()


def names(data=IMAGENET, **changes) -> list[str]:
    return [each.name for each in deviations(Config(**changes), **data)]


OTHERS = {"digits", "digits_resnet50"}


@pytest.mark.parametrize("name", sorted({*flags.recipes()} - OTHERS))
def test_recipes_of_the_paper_deviate_in_their_ablation_only(name):
    found = deviations(recipe(name), **IMAGENET)
    if name not in ABLATIONS:
        assert found == []
        return
    (deviation,) = found
    item, price = ABLATIONS[name]
    assert deviation.name == item
    assert price in deviation.price
    assert deviation.section.startswith("§")


def test_every_ablation_ships():
    assert set(ABLATIONS) < set(flags.recipes())


def test_small_images_deviate_in_all_that_is_set():
    small = Config(
        dataset="digits",
        model="resnet20",
        image_size=32,
        eval_resize=32,
        min_crop_area=0.5,
        horizontal_flip=False,
        global_batch=64,
        worker_batch=16,
        base_batch=64,
        epochs=20.0,
        lr_boundaries=(10.0, 15.0, 18.0),
    )
    found = {each.name: each for each in deviations(small, **DIGITS)}
    assert set(found) == {
        "data",
        "model",
        "images per worker",
        "minibatch",
        "length",
        "reference rate",
        "decay of the rate",
        "random crop",
        "horizontal flip",
        "image size",
        "evaluation",
    }
    assert found["data"].run == (
        "1,500 and 297 images of 10 classes (--dataset=digits)"
    )
    assert found["reference rate"].run == "--base_lr=0.1 --base_batch=64"
    assert found["horizontal flip"].run == "--nohorizontal_flip"
    assert found["decay of the rate"].run == "--lr_boundaries=10,15,18 --lr_decay=0.1"
    assert found["decay of the rate"].paper == "divided by 10 at epochs 30, 60 and 80"


def test_every_setting_that_changes_the_mathematics_is_compared():
    """A new field of the recipe has to be given its place here."""
    compared = {flag for item in RECIPE for flag in item.flags}
    exact = Config(reduction="exact")
    assert set(exact.recipe_fields) <= compared | OPEN
    assert not compared & OPEN


@pytest.mark.parametrize(
    ("changes", "item"),
    [
        ({"worker_batch": 64}, "images per worker"),
        ({"gradient_dtype": "bfloat16"}, "gradients on the wire"),
        ({"global_batch": 64}, "minibatch"),
        ({"global_batch": 131_072}, "minibatch"),
        ({"epochs": 89.0}, "length"),
        ({"epochs": 0.0, "steps": 14_075}, "length"),
        ({"lr_boundaries": (30.0, 60.0)}, "decay of the rate"),
        ({"lr_decay": 0.2}, "decay of the rate"),
        ({"momentum": 0.8}, "momentum"),
        ({"nesterov": False}, "kind of momentum"),
        ({"momentum_correction": False}, "momentum correction"),
        ({"weight_decay": 5e-5}, "weight decay"),
        ({"bn_statistics": "global"}, "BatchNorm statistics"),
        ({"padding": "same"}, "padding"),
        ({"eval_resize": 224}, "evaluation"),
        ({"eval_every": 5.0}, "reported error"),
        ({"precision": "bfloat16"}, "precision"),
        ({"warmup_epochs": 0.0}, "warmup"),
        ({"warmup_epochs": 4.0}, "warmup"),
        ({"model": "resnet152"}, "model"),
        ({"shuffle": "streaming"}, "order of the images"),
    ],
)
def test_one_setting(changes, item):
    assert names(**changes) == [item]


def test_settings_without_effect_are_no_deviation():
    """η̂ = η at kn = 256: nothing to scale, nothing to warm up to."""
    assert names(global_batch=256, lr_scaling="none", warmup="none") == []
    assert names(global_batch=256, lr_scaling="sqrt", warmup="constant") == []
    # §2.2: no warmup for kn <= 256, so one that is switched off there is none.
    assert names(global_batch=128, warmup="none") == []
    # The unscaled rate stays at η, whatever the warmup.
    assert names(lr_scaling="none", warmup="none") == ["scaling of the rate"]
    # Without momentum there is no velocity to correct and no look-ahead.
    assert names(momentum=0.0, nesterov=False, momentum_correction=False) == [
        "momentum"
    ]
    # One worker is all workers.
    assert names(global_batch=128, worker_batch=128, bn_statistics="global") == [
        "images per worker"
    ]
    # 14,076 steps are the 90 epochs at kn = 8192.
    assert names(epochs=0.0, steps=14_076) == []


def test_the_reference_batch_decides_on_the_warmup():
    """§2.2: there is a warmup above the batch that η holds for, at it and below none.

    Another such batch than 256 is one deviation, not two.
    """
    smaller = {"global_batch": 256, "base_batch": 255}
    assert names(**smaller) == ["reference rate"]
    assert names(**smaller, warmup="none") == ["reference rate", "warmup"]
    assert names(global_batch=256, warmup="none") == []
    assert names(global_batch=257, worker_batch=32, warmup="none") == ["warmup"]


def test_what_the_paper_leaves_open_is_no_deviation():
    assert names(reduction="exact", seed=7, label_offset=1, intra_op_threads=2) == []
    assert names(resize="bicubic", dct="exact", verify_records=False) == []
    assert names(max_bad_records=0, cache="memory", input_threads=3, prefetch=1) == []
    assert names(allreduce="ring", bucket_mb=0.0, devices=8, data_dir="elsewhere") == []


def test_other_images_are_a_deviation_under_any_name():
    assert names(dataset="tfrecord") == []
    assert names({**IMAGENET, "train_images": 1_281_166}, dataset="tfrecord") == [
        "data"
    ]


def test_the_papers_error():
    assert paper_error(Config()) == (23.74, 0.09)
    assert paper_error(Config(global_batch=16_384)) == (24.79, 0.27)
    assert paper_error(Config(global_batch=256, model="resnet101")) == (22.08, 0.06)
    assert paper_error(Config(global_batch=8224)) is None
    assert paper_error(Config(model="resnet20")) is None
    assert list(ERRORS["resnet50"]) == [2**i for i in range(7, 17)]


def test_a_setting_as_it_is_written():
    assert written("nesterov", True) == "--nesterov"
    assert written("nesterov", False) == "--nonesterov"
    assert written("lr_boundaries", (30.0, 60.5)) == "--lr_boundaries=30,60.5"
    assert written("weight_decay", 1e-4) == "--weight_decay=0.0001"
    assert written("global_batch", 65_536) == "--global_batch=65536"


def test_no_tensorflow(python):
    """Bad input is refused before TensorFlow starts."""
    check = (
        "import sys; from tf_goyal import deviations; "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert python("-c", check, seconds=180.0).returncode == 0
