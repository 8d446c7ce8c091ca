"""The paper's recipe as data, and what a run does otherwise.

`RECIPE` holds what Goyal et al. state; `deviations` holds a run against it. What the
paper leaves open (`OPEN`), and settings that have no effect in the run, such as a
warmup towards the very rate that it starts from, are no deviations.

This module imports no TensorFlow.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from tf_goyal.config import Config


class Run(NamedTuple):
    """The settings of a run and the data that it is for."""

    config: Config
    train_images: int
    eval_images: int
    classes: int


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing that the paper states.

    Attributes:
        name: what it is about.
        section: of the paper.
        paper: what the paper does.
        flags: the fields of Config that decide it.
        keeps: whether a run does the same.
        does: what another run does, in words; None: its flags.
        price: what the paper's numbers say another run costs; "" where it has none.
    """

    name: str
    section: str
    paper: str
    flags: tuple[str, ...]
    keeps: Callable[[Run], bool]
    does: Callable[[Run], str] | None = None
    price: Callable[[Run], str] = lambda run: ""


@dataclasses.dataclass(frozen=True)
class Deviation:
    """One thing that a run does differently; texts as in `Item`."""

    name: str
    section: str
    paper: str
    run: str
    price: str
    flags: tuple[str, ...]


# Top-1 error in per cent, mean and standard deviation of 5 runs (§5.3, tables 1, 2).
ERRORS = {
    "resnet50": {
        128: (23.49, 0.12),
        256: (23.60, 0.12),
        512: (23.48, 0.09),
        1024: (23.53, 0.08),
        2048: (23.49, 0.11),
        4096: (23.56, 0.12),
        8192: (23.74, 0.09),
        16384: (24.79, 0.27),
        32768: (27.55, 0.28),
        65536: (33.96, 0.80),
    },
    "resnet101": {256: (22.08, 0.06), 8192: (22.36, 0.09)},
}

# Fields of the recipe about which the paper says nothing.
OPEN = frozenset(
    {
        "label_offset",
        "seed",
        "verify_records",
        # fb.resnet.torch, whose augmentation the paper takes over, resizes bicubically;
        # Caffe2's image operator, which the paper may have used, by areas.
        "resize",
        "dct",
        "reduction",
        "intra_op_threads",
    }
)


def paper_error(config: Config) -> tuple[float, float] | None:
    """The paper's top-1 error (mean, standard deviation, %) at this model and kn.

    It holds for a run without deviations; None where the paper has no number.
    """
    return ERRORS.get(config.model, {}).get(config.global_batch)


def deviations(
    config: Config, *, train_images: int, eval_images: int, classes: int
) -> list[Deviation]:
    """Everything in which a run differs from the paper, in the order of `RECIPE`."""
    run = Run(config, train_images, eval_images, classes)
    return [
        Deviation(
            name=item.name,
            section=item.section,
            paper=item.paper,
            run=item.does(run) if item.does else _flags(run, item.flags),
            price=item.price(run),
            flags=item.flags,
        )
        for item in RECIPE
        if not item.keeps(run)
    ]


def written(name: str, value: object) -> str:
    """A setting as a command line gives it: --zero_gamma, --lr_boundaries=30,60."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    if isinstance(value, tuple):
        value = ",".join(f"{number:g}" for number in value)
    return f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"


def _flags(run: Run, names: tuple[str, ...]) -> str:
    return " ".join(written(name, getattr(run.config, name)) for name in names)


def _is(name: str, *allowed: object) -> Callable[[Run], bool]:
    """Whether one field has one of the paper's values."""
    return lambda run: getattr(run.config, name) in allowed


def _instead(error: str, global_batch: int = 8192) -> str:
    mean, std = ERRORS["resnet50"][global_batch]
    return (
        f"top-1 error {error} % instead of {mean:.2f} ± {std:.2f} % (ResNet-50, "
        f"kn = {global_batch})"
    )


def _scales_linearly(run: Run) -> bool:
    config = run.config
    return config.lr_scaling == "linear" or config.global_batch == config.base_batch


def _scaling_price(run: Run) -> str:
    errors = {"sqrt": "26.22 ± 0.03", "none": "41.67 ± 0.10"}
    return _instead(errors[run.config.lr_scaling])


def _warms_up_as_the_paper(run: Run) -> bool:
    config = run.config
    # Another reference batch than 256 is a deviation of its own; the rule is kept.
    if config.global_batch <= config.base_batch:
        return True  # no warmup, whatever the flags
    if config.scaled_lr == config.base_lr:
        return True  # a warmup from a rate to itself
    return (
        config.warms_up and config.warmup == "gradual" and config.warmup_epochs == 5.0
    )


def _warmup(run: Run) -> str:
    config = run.config
    if not config.warms_up:
        return "none"
    return f"{config.warmup}, {config.warmup_epochs:g} epochs"


def _warmup_price(run: Run) -> str:
    config = run.config
    if not config.warms_up:
        return _instead("24.84 ± 0.37")
    if config.warmup == "constant":
        return _instead("25.88 ± 0.56")
    return ""


def _data(run: Run) -> str:
    return (
        f"{run.train_images:,} and {run.eval_images:,} images of {run.classes:,} "
        f"classes (--dataset={run.config.dataset})"
    )


def _runs_90_epochs(run: Run) -> bool:
    whole = run.config.first_step_of(90.0, run.train_images)
    return run.config.total_steps(run.train_images) == whole


RECIPE = (
    Item(
        "data",
        "§5.1",
        "ImageNet: 1,281,167 training and 50,000 validation images of 1,000 classes",
        ("dataset",),
        keeps=lambda run: run[1:] == (1_281_167, 50_000, 1000),
        does=_data,
    ),
    Item(
        "model",
        "§5.1",
        "ResNet-50, also ResNet-101",
        ("model",),
        keeps=_is("model", *ERRORS),
    ),
    Item(
        "padding",
        "§5.1",
        "symmetric, as in fb.resnet.torch",
        ("padding",),
        keeps=_is("padding", "symmetric"),
    ),
    Item(
        "last γ of each block",
        "§5.1",
        "starts at 0, every other γ at 1",
        ("zero_gamma",),
        keeps=_is("zero_gamma", True),
        does=lambda run: "every γ starts at 1 (--nozero_gamma)",
        price=lambda run: (
            f"{_instead('23.84 ± 0.18', 256)}; {_instead('24.11 ± 0.07')}"
        ),
    ),
    Item(
        "BatchNorm statistics",
        "§2.3",
        "over the n images of one worker, never across workers",
        ("bn_statistics",),
        keeps=lambda run: (
            run.config.bn_statistics == "worker" or run.config.virtual_workers == 1
        ),
    ),
    Item(
        "images per worker",
        "§2.3",
        "n = 32",
        ("worker_batch",),
        keeps=_is("worker_batch", 32),
    ),
    Item(
        "minibatch",
        "§5.3",
        "kn from 128 to 65,536",
        ("global_batch",),
        keeps=lambda run: 128 <= run.config.global_batch <= 65_536,
    ),
    Item(
        "length",
        "§5.1",
        "90 epochs for every kn",
        ("epochs", "steps"),
        keeps=_runs_90_epochs,
    ),
    Item(
        "reference rate",
        "§5.1",
        "η = 0.1 for kn = 256",
        ("base_lr", "base_batch"),
        keeps=lambda run: (run.config.base_lr, run.config.base_batch) == (0.1, 256),
    ),
    Item(
        "scaling of the rate",
        "§2.1",
        "linear: η̂ = η kn / 256",
        ("lr_scaling",),
        keeps=_scales_linearly,
        price=_scaling_price,
    ),
    Item(
        "warmup",
        "§2.2",
        "gradual from η to η̂ over 5 epochs for kn > 256, else none",
        ("warmup", "warmup_epochs"),
        keeps=_warms_up_as_the_paper,
        does=_warmup,
        price=_warmup_price,
    ),
    Item(
        "decay of the rate",
        "§5.1",
        "divided by 10 at epochs 30, 60 and 80",
        ("lr_boundaries", "lr_decay"),
        keeps=lambda run: (
            (run.config.lr_boundaries, run.config.lr_decay) == ((30.0, 60.0, 80.0), 0.1)
        ),
    ),
    Item("momentum", "§5.1", "0.9", ("momentum",), keeps=_is("momentum", 0.9)),
    Item(
        "kind of momentum",
        "§5.1",
        "Nesterov",
        ("nesterov",),
        keeps=lambda run: run.config.nesterov or run.config.momentum == 0,
        does=lambda run: "plain (--nonesterov)",
        price=lambda run: "none: plain momentum worked as well in the paper",
    ),
    Item(
        "momentum correction",
        "§3",
        "the stored velocity is rescaled when the rate changes",
        ("momentum_correction",),
        keeps=lambda run: run.config.momentum_correction or run.config.momentum == 0,
    ),
    Item(
        "weight decay",
        "§5.1",
        "λ = 0.0001 on convolution and fully connected kernels",
        ("weight_decay",),
        keeps=_is("weight_decay", 1e-4),
    ),
    Item(
        "gradients on the wire",
        "§4",
        "single precision",
        ("gradient_dtype",),
        keeps=lambda run: (
            run.config.gradient_dtype == "float32" or run.config.reduction == "exact"
        ),
    ),
    Item(
        "order of the images",
        "§3",
        "one random shuffle of all training images per epoch",
        ("shuffle",),
        keeps=_is("shuffle", "global"),
        does=lambda run: (
            "shards in random order, images shuffled among their neighbours "
            "(--shuffle=streaming)"
        ),
    ),
    Item(
        "random crop",
        "§5.1",
        "8 to 100 % of the image's area",
        ("min_crop_area",),
        keeps=_is("min_crop_area", 0.08),
    ),
    Item(
        "horizontal flip",
        "§5.1",
        "each training image with probability 1/2",
        ("horizontal_flip",),
        keeps=_is("horizontal_flip", True),
    ),
    Item(
        "image size",
        "§5.1",
        "224 × 224 pixels",
        ("image_size",),
        keeps=_is("image_size", 224),
    ),
    Item(
        "evaluation",
        "§5.1",
        "shorter side to 256 pixels, one centre crop",
        ("eval_resize",),
        keeps=lambda run: run.config.eval_shorter_side == 256,
        does=lambda run: f"shorter side to {run.config.eval_shorter_side} pixels",
    ),
    Item(
        "reported error",
        "§5.1",
        "median over the ends of the last 5 epochs",
        ("eval_every",),
        keeps=_is("eval_every", 1.0),
    ),
    Item(
        "precision",
        "§4",
        "float32",
        ("precision",),
        keeps=_is("precision", "float32"),
    ),
)
