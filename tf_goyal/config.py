"""The settings of a run: declared once, checked once, written as JSON.

`Config` is flat: one field is one flag (flags.py reads the declarations). Its
defaults are the paper's recipe for a minibatch of 8192 (§5.1). People write epochs
and images; the derived sizes turn them into steps, in exact arithmetic.

This module imports no TensorFlow, so that bad input is refused before it starts.
"""

import dataclasses
import itertools
import json
import math
import typing
from fractions import Fraction
from typing import Any

MODELS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet20",
    "resnet32",
    "resnet56",
)

ALLREDUCE = ("auto", "ring", "nccl", "halving_doubling", "hierarchical")

SMALLEST_IMAGE = 8  # pixels: the ResNets' strides leave nothing of less
LARGEST_IMAGE = 4096  # pixels: more is a slip of the keyboard

# (path, layout and frequency fields); every other field is part of the recipe, but for
# the whole section "Cluster", which says how the processes of a run find each other.
_NOT_RECIPE = frozenset(
    {
        "model_dir",
        "data_dir",
        "max_bad_records",
        "cache",
        "input_threads",
        "prefetch",
        "epochs",  # how far a run goes changes none of its steps
        "steps",
        "allreduce",
        "bucket_mb",
        "collective_timeout",
        "intra_op_threads",
        "devices",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_every",
        "eval_every",
        "log_every",
        "resume",
    }
)


def _setting(default: Any, section: str, text: str, choices: tuple[str, ...] = ()):
    """A field of Config with what flags.py needs to make a flag of it."""
    metadata = {"section": section, "help": text, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def section(title: str) -> frozenset[str]:
    """The names of the fields of one section of --help."""
    fields = dataclasses.fields(Config)
    return frozenset(f.name for f in fields if f.metadata["section"] == title)


@dataclasses.dataclass(frozen=True)
class Config:
    """Every setting of a run.

    Terms of the paper (§2): n = `worker_batch`, k = `virtual_workers`,
    kn = `global_batch`, η = `base_lr`, η̂ = `scaled_lr`. N below is the number of
    training images.
    """

    model_dir: str = _setting(
        "",
        "Files",
        "Folder of the run: config.json, log.jsonl, checkpoints, export; on a disk or, "
        "written gs://..., in a store that tf.io.gfile reaches. Required.",
    )
    data_dir: str = _setting(
        "",
        "Files",
        "Folder of the data set; not needed for the embedded digits.",
    )
    dataset: str = _setting(
        "imagenet",
        "Data",
        "Data set: digits (embedded), imagenet (1000 classes, complete), tfrecord (any "
        "set in shards of tf.train.Example), folder (a folder per class, in train/ and "
        "validation/) or tfds:NAME (any image classification set that TFDS prepared).",
    )
    label_offset: int = _setting(
        0,
        "Data",
        "Number subtracted from each stored label: 1 where files count from 1.",
    )
    shuffle: str = _setting(
        "global",
        "Data",
        "Order of each epoch: any record anywhere (global), or, for storage on which "
        "far jumps are slow, every shard read nearly from front to end (streaming); "
        "the latter needs shards that were shuffled when they were written.",
        choices=("global", "streaming"),
    )
    verify_records: bool = _setting(
        True, "Data", "Compare each TFRecord with its checksum when it is read."
    )
    max_bad_records: int = _setting(
        100,
        "Data",
        "Records that may turn out broken. Each is named in the log; in training the "
        "next good record of the epoch's order stands for it, in evaluation it does "
        "not count. One more ends the run with exit code 3.",
    )
    cache: str = _setting(
        "none",
        "Data",
        "Where records are kept once they are read: nowhere (none; the system's page "
        "cache does well on local disks), or in each process (memory), for which all "
        "of them must fit.",
        choices=("none", "memory"),
    )
    input_threads: int = _setting(
        0,
        "Data",
        "Threads that read and decode in each process; 0: as many as it has cores.",
    )
    prefetch: int = _setting(
        0,
        "Data",
        "Steps whose images are made ahead; 0: two, or one where a step takes more "
        "than 256 MB.",
    )
    image_size: int = _setting(
        224, "Data", "Side of the square images the model sees, in pixels."
    )
    min_crop_area: float = _setting(
        0.08,
        "Data",
        "Smallest random crop in training, as a fraction of the image's area, in "
        "(0, 1].",
    )
    horizontal_flip: bool = _setting(
        True, "Data", "Flip each training image left to right with probability 1/2."
    )
    eval_resize: int = _setting(
        0,
        "Data",
        "Shorter side in evaluation before the centre crop, in pixels; 0: "
        "round(image_size * 256 / 224).",
    )
    resize: str = _setting(
        "bilinear",
        "Data",
        "Interpolation, without antialiasing, in training, evaluation and export.",
        choices=("bilinear", "bicubic"),
    )
    dct: str = _setting(
        "fast",
        "Data",
        "How JPEGs are decoded, in training, evaluation and export: libjpeg's fast "
        "integer DCT (fast), or the accurate one (exact), which gives Pillow's pixels.",
        choices=("fast", "exact"),
    )
    model: str = _setting(
        "resnet50",
        "Model",
        "Network; resnet20, 32 and 56 are for small images.",
        choices=MODELS,
    )
    padding: str = _setting(
        "symmetric",
        "Model",
        "Padding of convolutions with stride 2: symmetric (the paper's) or same "
        "(TensorFlow's).",
        choices=("symmetric", "same"),
    )
    zero_gamma: bool = _setting(
        True,
        "Model",
        "Start the last BatchNorm of each residual block at gamma 0 (paper, 5.1).",
    )
    bn_statistics: str = _setting(
        "worker",
        "Model",
        "Images that BatchNorm takes its statistics over in training: the n of one "
        "virtual worker, or all kn (global; needs --reduction=fast).",
        choices=("worker", "global"),
    )
    global_batch: int = _setting(
        8192, "Batch and length", "Images per step over all virtual workers: kn."
    )
    worker_batch: int = _setting(
        32,
        "Batch and length",
        "Images per virtual worker and step: n. Part of the loss function, since "
        "BatchNorm sees these n images: keep it when kn changes.",
    )
    epochs: float = _setting(
        90.0,
        "Batch and length",
        "Length of the run, in epochs; 0 when --steps is given.",
    )
    steps: int = _setting(
        0, "Batch and length", "Length of the run, in steps; 0: from --epochs."
    )
    base_lr: float = _setting(
        0.1, "Learning rate", "Learning rate for a batch of --base_batch images: eta."
    )
    base_batch: int = _setting(
        256,
        "Learning rate",
        "Batch that --base_lr holds for, in images; there is warmup only when "
        "--global_batch is larger.",
    )
    lr_scaling: str = _setting(
        "linear",
        "Learning rate",
        "Factor on --base_lr: kn / base_batch (linear), its square root (sqrt), or "
        "1 (none).",
        choices=("linear", "sqrt", "none"),
    )
    warmup: str = _setting(
        "gradual",
        "Learning rate",
        "From --base_lr to the scaled rate: by equal increments every step "
        "(gradual), in one jump after the warmup (constant), or at the first step "
        "(none).",
        choices=("gradual", "constant", "none"),
    )
    warmup_epochs: float = _setting(5.0, "Learning rate", "Warmup, in epochs.")
    lr_boundaries: tuple[float, ...] = _setting(
        (30.0, 60.0, 80.0),
        "Learning rate",
        "Epochs at which the rate is multiplied by --lr_decay, separated by commas; "
        "empty: never.",
    )
    lr_decay: float = _setting(
        0.1, "Learning rate", "Factor on the rate at each boundary, in (0, 1]."
    )
    momentum: float = _setting(0.9, "Optimizer", "Momentum, in [0, 1).")
    nesterov: bool = _setting(True, "Optimizer", "Nesterov momentum.")
    momentum_correction: bool = _setting(
        True,
        "Optimizer",
        "Rescale the stored velocity when the rate changes (paper, remark 2).",
    )
    weight_decay: float = _setting(
        1e-4,
        "Optimizer",
        "Weight decay lambda: lambda * w joins the gradient of each convolution and "
        "fully connected kernel w.",
    )
    precision: str = _setting(
        "float32",
        "Computation",
        "Type of the activations; weights and sums stay float32.",
        choices=("float32", "bfloat16", "float16"),
    )
    reduction: str = _setting(
        "fast",
        "Computation",
        "Sum over the virtual workers: float (fast), or integer and therefore the "
        "same to the bit on every layout (exact).",
        choices=("fast", "exact"),
    )
    allreduce: str = _setting(
        "auto",
        "Computation",
        "Algorithm between processes: TensorFlow's ring or nccl (GPUs only), "
        "halving_doubling (fewer rounds), hierarchical (processes of a host first), or "
        "for each bucket the quickest by a measurement at the start (auto).",
        choices=ALLREDUCE,
    )
    bucket_mb: float = _setting(
        -1.0,
        "Computation",
        "Gradients sent together, in MB (2**20 bytes); 0: each gradient alone; -1: by "
        "the measurement of --allreduce=auto, or else 8.",
    )
    gradient_dtype: str = _setting(
        "float32",
        "Computation",
        "Type in which gradients travel between processes; sums stay float32 with our "
        "algorithms. Has no effect on --reduction=exact.",
        choices=("float32", "bfloat16", "float16"),
    )
    collective_timeout: float = _setting(
        600.0,
        "Computation",
        "Seconds after which an all-reduce that does not end counts as a lost peer "
        "(exit code 138); 0: never.",
    )
    devices: int = _setting(
        0,
        "Computation",
        "Devices of this process; 0: all its GPUs, else one CPU. Without GPUs, N "
        "makes N logical CPUs.",
    )
    intra_op_threads: int = _setting(
        0,
        "Computation",
        "Threads inside one operation on the CPU; 0: TensorFlow's choice, but 1 "
        "with --reduction=exact.",
    )
    worker_hosts: str = _setting(
        "",
        "Cluster",
        "host:port of every process of the run, separated by commas, the first the "
        "chief; brackets hold ranges: run-[0-31].run:2222. By default the cluster is "
        "that of TF_CONFIG, or of the Slurm step, or this process alone.",
    )
    task_index: int = _setting(
        -1,
        "Cluster",
        "Place of this process in --worker_hosts, from 0; -1: by the pod of a "
        "Kubernetes Indexed Job or JobSet, or by SLURM_PROCID.",
    )
    expected_workers: int = _setting(
        0,
        "Cluster",
        "Processes that must train together; any other number, such as 1 where the "
        "cluster's description is missing, is refused. 0: any number.",
    )
    start_timeout: float = _setting(
        300.0,
        "Cluster",
        "Seconds for the processes to reach each other before TensorFlow starts; then "
        "the missing ones are named (exit code 2).",
    )
    peer_timeout: float = _setting(
        45.0,
        "Cluster",
        "Seconds of silence after which another process counts as lost (exit code "
        "138); a stall that is shorter is survived.",
    )
    run_token_file: str = _setting(
        "",
        "Cluster",
        "File with a secret of at least 16 bytes that all processes of the run have, "
        "such as a mounted Kubernetes Secret; by default TF_GOYAL_RUN_TOKEN. Without "
        "one only accidents are kept out, and no attacker.",
    )
    grace_seconds: float = _setting(
        30.0,
        "Cluster",
        "Seconds that a process asked to stop (SIGTERM) may take to finish its step "
        "and to save; then it leaves without; 0: any time.",
    )
    seed: int = _setting(
        0,
        "Computation",
        "Seed of the initial weights, the image order and the augmentation.",
    )
    checkpoint_every: float = _setting(
        1.0, "Evaluation, checkpoints, log", "Epochs between checkpoints."
    )
    keep_checkpoints: int = _setting(
        5, "Evaluation, checkpoints, log", "How many of the newest checkpoints to keep."
    )
    keep_every: float = _setting(
        0.0,
        "Evaluation, checkpoints, log",
        "Epochs between checkpoints that are kept for good, beside the newest ones: a "
        "multiple of --checkpoint_every; 0: none.",
    )
    eval_every: float = _setting(
        1.0,
        "Evaluation, checkpoints, log",
        "Epochs between evaluations, and one at the end; 0: none, as where an "
        "evaluator does it.",
    )
    log_every: int = _setting(
        10, "Evaluation, checkpoints, log", "Steps between lines in log.jsonl."
    )
    resume: str = _setting(
        "auto",
        "Evaluation, checkpoints, log",
        "Go on from the last checkpoint in --model_dir: if there is one (auto), "
        "never, or stop where there is none (must).",
        choices=("auto", "never", "must"),
    )

    @property
    def virtual_workers(self) -> int:
        """The paper's k = kn / n."""
        return self.global_batch // self.worker_batch

    @property
    def scaled_lr(self) -> float:
        """η̂, the rate after warmup (§2.1, linear scaling rule: η·kn/256)."""
        ratio = self.global_batch / self.base_batch
        factor = {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}
        return self.base_lr * factor[self.lr_scaling]

    @property
    def warms_up(self) -> bool:
        """Whether there is a warmup: only above the reference batch (§5.1)."""
        return (
            self.warmup != "none"
            and self.warmup_epochs > 0
            and self.global_batch > self.base_batch
        )

    @property
    def eval_shorter_side(self) -> int:
        """`eval_resize` with its 0 resolved, in pixels: 256 for images of 224."""
        return self.eval_resize or round(self.image_size * 256 / 224)

    @property
    def op_threads(self) -> int:
        """`intra_op_threads` with its 0 resolved; 0 then is TensorFlow's choice."""
        if self.reduction == "exact":
            return self.intra_op_threads or 1
        return self.intra_op_threads

    @property
    def recipe_fields(self) -> tuple[str, ...]:
        """Fields that change what is computed, and must not change in a resume.

        The others are paths, layout, frequencies and the run's length. With
        `reduction="exact"` the thread count belongs to the recipe: it changes the
        bits of TensorFlow's kernels.
        """
        names = (field.name for field in dataclasses.fields(self))
        exact = {"intra_op_threads"} if self.reduction == "exact" else set()
        others = (_NOT_RECIPE | section("Cluster")) - exact
        return tuple(name for name in names if name not in others)

    def steps_per_epoch(self, train_images: int) -> float:
        """N / kn: a real number, since batches run across epoch ends."""
        return train_images / self.global_batch

    def first_step_of(self, epoch: float, train_images: int) -> int:
        """The first step s with s·kn ≥ epoch·N, exactly.

        `epoch` counts as the decimal number that was written: 7.1 is 71/10 and not
        the float next to it.
        """
        images = Fraction(str(epoch)) * train_images
        return math.ceil(images / self.global_batch)

    def total_steps(self, train_images: int) -> int:
        """Steps of the whole run."""
        return self.steps or self.first_step_of(self.epochs, train_images)

    def total_images(self, train_images: int) -> int:
        """Images of the whole run; the last step may be short of kn.

        7 images for 3 epochs are 21, in 6 steps of 4 where the last has 1.
        """
        if self.steps:
            return self.steps * self.global_batch
        return math.ceil(Fraction(str(self.epochs)) * train_images)

    def epoch_of(self, step: int, train_images: int) -> float:
        """Epochs done before `step`: images seen / N."""
        return step * self.global_batch / train_images

    def to_json(self) -> str:
        """All fields as one JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """The inverse of `to_json`; a field that is missing takes its default.

        Raises:
            ValueError: the text is no JSON object, or a field is unknown or has a
                value of another type.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"the configuration is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise ValueError(
                "the configuration must be a JSON object of fields, but is "
                f"{type(values).__name__}"
            )
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise ValueError(
                f"the configuration has unknown fields: {', '.join(unknown)}"
            )
        return cls(
            **{name: _typed(name, fields[name].type, values[name]) for name in values}
        )


def _typed(name: str, wanted: Any, value: Any) -> Any:
    """`value` from JSON as `wanted`; an integer may stand for a float."""
    if typing.get_origin(wanted) is tuple:
        if isinstance(value, list):
            return tuple(_typed(name, float, element) for element in value)
    elif wanted is float and type(value) is int:
        return float(value)
    elif type(value) is wanted:
        return value
    kind = getattr(wanted, "__name__", str(wanted))
    raise ValueError(f"field {name} of the configuration must be {kind}, got {value!r}")


def validate(
    config: Config,
    *,
    train_images: int,
    eval_images: int,
    classes: int,
    processes: int,
) -> None:
    """Refuses settings that cannot work; called before TensorFlow starts.

    Args:
        config: the settings.
        train_images: N, images in the training set.
        eval_images: images in the validation set.
        classes: number of classes of the data set.
        processes: processes of the cluster, evaluators not counted.

    Raises:
        ValueError: one sentence saying what came and what is allowed.
    """
    _check_values(config)
    _check_batch(config, train_images, processes)
    _check_length_and_schedule(config)
    _require(
        eval_images >= 1,
        f"the validation set must have at least 1 image, but --dataset="
        f"{config.dataset} has {eval_images}",
    )
    _require(
        classes >= 2,
        f"the data set must have at least 2 classes, but --dataset="
        f"{config.dataset} has {classes}",
    )
    _require(
        not (config.reduction == "exact" and config.bn_statistics == "global"),
        "--reduction=exact needs --bn_statistics=worker: statistics over all kn "
        "images are a float sum whose order depends on the layout, got "
        "--bn_statistics=global",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _check_values(config: Config) -> None:
    """Each field by itself."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        choices = field.metadata["choices"]
        _require(
            not choices or value in choices,
            f"--{field.name} must be one of {', '.join(choices)}, got {value!r}",
        )
        numbers = value if isinstance(value, tuple) else (value,)
        _require(
            all(math.isfinite(x) for x in numbers if isinstance(x, float)),
            f"--{field.name} must be finite, got {value}",
        )
    _require(
        bool(config.model_dir), "--model_dir is required: the folder of the run's files"
    )
    _require(
        bool(config.data_dir) or config.dataset == "digits",
        f"--data_dir is required with --dataset={config.dataset}: the folder of its "
        "files",
    )
    for name, least in (
        ("image_size", SMALLEST_IMAGE),
        ("global_batch", 1),
        ("worker_batch", 1),
        ("base_batch", 1),
        ("keep_checkpoints", 1),
        ("keep_every", 0),
        ("eval_every", 0),
        ("grace_seconds", 0),
        ("log_every", 1),
        ("steps", 0),
        ("epochs", 0),
        ("eval_resize", 0),
        ("base_lr", 0),
        ("warmup_epochs", 0),
        ("weight_decay", 0),
        ("collective_timeout", 0),
        ("devices", 0),
        ("task_index", -1),
        ("expected_workers", 0),
        ("start_timeout", 1),
        ("peer_timeout", 5),
        ("intra_op_threads", 0),
        ("max_bad_records", 0),
        ("input_threads", 0),
        ("prefetch", 0),
        ("label_offset", -(2**31)),
    ):
        value = getattr(config, name)
        _require(value >= least, f"--{name} must be at least {least}, got {value}")
    for name, most in (
        ("image_size", LARGEST_IMAGE),
        ("eval_resize", 2 * LARGEST_IMAGE),
        ("label_offset", 2**31),
        ("steps", 2**40),
        ("epochs", 2**20),
        ("global_batch", 2**30),
        ("max_bad_records", 2**40),
        ("input_threads", 1024),
        ("prefetch", 1024),
    ):
        value = getattr(config, name)
        _require(value <= most, f"--{name} must be at most {most}, got {value}")
    _require(
        config.bucket_mb >= 0 or config.bucket_mb == -1,
        f"--bucket_mb must be -1 or at least 0, got {config.bucket_mb}",
    )
    _require(
        (config.allreduce, config.gradient_dtype) != ("nccl", "bfloat16"),
        "--allreduce=nccl adds no bfloat16 in TensorFlow, got "
        "--gradient_dtype=bfloat16: use float16, or another --allreduce",
    )
    every = config.checkpoint_every
    _require(every > 0, f"--checkpoint_every must be more than 0 epochs, got {every}")
    _require(
        Fraction(str(config.keep_every)) % Fraction(str(every)) == 0,
        f"--keep_every must be 0 or a multiple of --checkpoint_every={every} epochs, "
        f"since what is kept must have been saved, got {config.keep_every}",
    )
    for name in ("min_crop_area", "lr_decay"):
        value = getattr(config, name)
        _require(0 < value <= 1, f"--{name} must lie in (0, 1], got {value}")
    _require(
        0 <= config.momentum < 1,
        f"--momentum must lie in [0, 1), got {config.momentum}",
    )
    _require(
        -(2**31) <= config.seed < 2**31,
        f"--seed must fit in 32 bits, from {-(2**31)} to {2**31 - 1}, got "
        f"{config.seed}",
    )
    _require(
        config.eval_shorter_side >= config.image_size,
        f"--eval_resize must be 0 or at least --image_size={config.image_size} "
        f"pixels, got {config.eval_resize}",
    )


def _check_batch(config: Config, train_images: int, processes: int) -> None:
    """kn, n, k, the devices and the data against each other."""
    n, kn, k = config.worker_batch, config.global_batch, config.virtual_workers
    near = sorted({max(n, kn // n * n), (kn // n + 1) * n})
    _require(
        kn % n == 0,
        f"--global_batch must be a multiple of --worker_batch={n}, got {kn}: try "
        f"{' or '.join(map(str, near))}",
    )
    devices = max(1, config.devices)
    total = processes * devices
    _require(
        k >= total,
        f"every device needs a virtual worker, but --global_batch={kn} and "
        f"--worker_batch={n} make {k} for {total} devices ({processes} processes of "
        f"{devices}): use a larger --global_batch or at most {k} devices",
    )
    _require(
        train_images >= kn,
        f"the training set must have at least --global_batch={kn} images, but "
        f"--dataset={config.dataset} has {train_images}",
    )


def _check_length_and_schedule(config: Config) -> None:
    """Epochs, steps, warmup and boundaries against each other."""
    default = Config.epochs
    _require(
        config.steps == 0 or config.epochs in (0, default),
        f"--steps and --epochs exclude each other, got --steps={config.steps} and "
        f"--epochs={config.epochs}: give one",
    )
    _require(
        config.steps > 0 or config.epochs > 0,
        f"the run must have a length: --epochs or --steps must be more than 0, got "
        f"--epochs={config.epochs} and --steps={config.steps}",
    )
    boundaries = config.lr_boundaries
    shown = ",".join(map(str, boundaries))
    _require(
        all(epoch >= 0 for epoch in boundaries),
        f"--lr_boundaries must not be negative, got {shown}",
    )
    _require(
        all(a < b for a, b in itertools.pairwise(boundaries)),
        f"--lr_boundaries must be strictly increasing, got {shown}",
    )
    if not config.warms_up:
        return
    _require(
        not boundaries or config.warmup_epochs <= boundaries[0],
        f"--warmup_epochs must end by the first of --lr_boundaries={shown}, got "
        f"{config.warmup_epochs}",
    )
    # --steps may cut a run short, warmup included: that is what it is for.
    _require(
        config.steps > 0 or config.warmup_epochs <= config.epochs,
        f"--warmup_epochs must not be longer than the run of --epochs="
        f"{config.epochs}, got {config.warmup_epochs}",
    )
