r"""Mask R-CNN (ResNet-FPN) of the Model Garden from our backbone: train and evaluate.

    .venv-detection/bin/python tools/detection/mask_rcnn.py --model_dir=OUT \
      --train_annotations=A.json --train_images=FOLDER \
      --validation_annotations=B.json --validation_images=FOLDER \
      --backbone=RUN/export/backbone

Without --backbone it trains from scratch. The defaults are the paper's (§5.4): 2 images
a device, a rate of 0.02 for 16 images a step and linearly more or less for others,
2.56 million images in all, a tenth of the rate from three quarters on. From the export
it takes epsilon, mean, standard deviation and depth, and freezes BatchNorm of the
backbone, as one does with 2 images a device; from scratch BatchNorm is trained.

Started again it goes on from its last checkpoint. Prints box and mask AP of pycocotools
and writes them, with all settings, to OUT/metrics.json; OUT/detections.json has the
detections in COCO's format.
"""

import dataclasses
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import coco_ap
import coco_file
import coco_records
import garden
import tensorflow as tf
from absl import app, flags, logging
from official.core import exp_factory, task_factory, train_lib
from official.vision.configs import maskrcnn  # registers the experiment  # noqa: F401
from official.vision.tasks import maskrcnn as tasks  # and its task  # noqa: F401

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "Folder of this run.", required=True)
flags.DEFINE_string("backbone", "", "RUN/export/backbone; empty: from scratch.")
for split in ("train", "validation"):
    flags.DEFINE_string(
        f"{split}_annotations", None, "In COCO's format.", required=True
    )
    flags.DEFINE_string(f"{split}_images", None, "Their folder.", required=True)
flags.DEFINE_integer(
    "image_size", 1024, "Longest side; images are padded to a square.", lower_bound=64
)
flags.DEFINE_integer("images_per_step", 16, "Of all devices.", lower_bound=1)
flags.DEFINE_integer("images_seen", 2_560_000, "In the whole training.", lower_bound=1)
flags.DEFINE_float("base_lr", 0.02, "Rate for --base_images a step.", lower_bound=0.0)
flags.DEFINE_integer("base_images", 16, "See --base_lr.", lower_bound=1)
flags.DEFINE_enum(
    "lr_scaling", "linear", ["linear", "none"], "With the images of a step, or not."
)
flags.DEFINE_bool(
    "frozen_bn",
    None,
    "Leave the backbone's BatchNorm as it was trained. By default where there is a "
    "--backbone.",
)
flags.DEFINE_bool("flip", True, "Flip half of the training images.")
flags.DEFINE_integer(
    "rois", 512, "Regions per image that heads learn from.", lower_bound=8
)
flags.DEFINE_float("anchor_size", 8.0, "Side of an anchor, in strides.")
flags.DEFINE_integer("depth", 50, "Of the ResNet, from scratch.")
flags.DEFINE_integer("seed", 0, "Of new weights and of the order.")

EPSILON = 1e-5
WEIGHT_DECAY = 1e-4


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Rates of a training, by linear scaling from those of --base_images a step."""

    steps: int
    rate: float
    warmup_steps: int

    @property
    def decay_at(self) -> int:
        """The step from which the rate is a tenth: three quarters."""
        return self.steps * 3 // 4


def schedule(
    images_seen: int,
    images_per_step: int,
    base_lr: float,
    base_images: int,
    scale: bool,
) -> Schedule:
    """The paper's (§5.4), for any number of images a step.

    Args:
      images_seen: in the whole training, whatever the images a step.
      images_per_step: over all devices.
      base_lr: rate for `base_images` a step.
      base_images: see `base_lr`.
      scale: the rate with the images of a step; else it stays `base_lr`.
    """
    steps = math.ceil(images_seen / images_per_step)
    rate = base_lr * images_per_step / base_images if scale else base_lr
    return Schedule(steps, rate, min(500, steps // 10))


def experiment(
    train: coco_file.Coco,
    validation: coco_file.Coco,
    records: tuple[str, str],
    rates: Schedule,
) -> Any:
    """The Model Garden's configuration, with all that has to match set."""
    config = exp_factory.get_exp_config("maskrcnn_resnetfpn_coco")
    gpus = len(tf.config.list_physical_devices("GPU"))
    config.runtime.distribution_strategy = "mirrored" if gpus > 1 else "one_device"
    config.runtime.num_gpus = gpus
    config.runtime.mixed_precision_dtype = "float32"
    config.runtime.enable_xla = False

    about = garden.metadata(Path(FLAGS.backbone)) if FLAGS.backbone else None
    task, model = config.task, config.task.model
    task.init_checkpoint = None  # garden.read checks more than the task would
    task.annotation_file = None
    task.use_coco_metrics = False
    model.num_classes = train.classes
    model.input_size = [FLAGS.image_size, FLAGS.image_size, 3]
    model.anchor.anchor_size = FLAGS.anchor_size
    model.norm_activation.use_sync_bn = gpus > 1
    model.norm_activation.norm_epsilon = (
        about["batch_norm"]["epsilon"] if about else EPSILON
    )
    model.norm_activation.norm_momentum = 0.97
    model.backbone.resnet.model_id = garden.model_id(about) if about else FLAGS.depth
    model.backbone.resnet.bn_trainable = not frozen()
    model.roi_sampler.num_sampled_rois = FLAGS.rois
    model.mask_sampler.num_sampled_masks = max(4, FLAGS.rois // 4)
    model.roi_generator.num_proposals = min(1000, 4 * FLAGS.rois)
    model.roi_generator.test_num_proposals = min(1000, 4 * FLAGS.rois)
    task.losses.l2_weight_decay = WEIGHT_DECAY

    task.train_data.input_path = records[0]
    task.train_data.global_batch_size = FLAGS.images_per_step
    task.train_data.dtype = "float32"
    task.train_data.seed = FLAGS.seed
    task.train_data.shuffle_buffer_size = min(10_000, len(train.pictures))
    task.train_data.parser.aug_rand_hflip = FLAGS.flip
    task.train_data.parser.aug_scale_min = task.train_data.parser.aug_scale_max = 1.0
    task.validation_data.input_path = records[1]
    task.validation_data.global_batch_size = 1
    task.validation_data.dtype = "float32"

    trainer = config.trainer
    trainer.train_steps = rates.steps
    each = max(1, min(500, rates.steps // 10))
    trainer.steps_per_loop = trainer.summary_interval = each
    trainer.checkpoint_interval = each
    trainer.max_to_keep = 1
    trainer.validation_steps = len(validation.pictures)
    optimizer = trainer.optimizer_config
    optimizer.learning_rate.stepwise.boundaries = [rates.decay_at]
    optimizer.learning_rate.stepwise.values = [rates.rate, rates.rate / 10]
    optimizer.warmup.linear.warmup_steps = rates.warmup_steps
    optimizer.warmup.linear.warmup_learning_rate = rates.rate / 3
    return config


def frozen() -> bool:
    """Whether the backbone's BatchNorm stays as it is.

    Raises:
      ValueError: it would stay as it was initialised.
    """
    if FLAGS.frozen_bn and not FLAGS.backbone:
        raise ValueError(
            "--frozen_bn must come with a --backbone: new statistics have to be trained"
        )
    return bool(FLAGS.backbone) if FLAGS.frozen_bn is None else FLAGS.frozen_bn


def main(_: list[str]) -> None:
    """Trains, evaluates and writes."""
    try:
        run(Path(FLAGS.model_dir))
    except ValueError as error:
        raise SystemExit(f"mask_rcnn: {error}") from error


def run(model_dir: Path) -> None:
    """All of it, in a folder."""
    frozen()
    train, validation = (
        coco_file.read(Path(annotations), Path(images))
        for annotations, images in (
            (FLAGS.train_annotations, FLAGS.train_images),
            (FLAGS.validation_annotations, FLAGS.validation_images),
        )
    )
    if train.categories != validation.categories:
        raise ValueError(
            f"{FLAGS.validation_annotations} must have the categories of "
            f"{FLAGS.train_annotations}"
        )
    for name, coco in (("training", train), ("validation", validation)):
        for reason, count in coco.left_out.items():
            print(f"{count} {name} annotations left out: {reason}")
    tf.keras.utils.set_random_seed(FLAGS.seed)
    records = [
        coco_records.write(coco, model_dir / "records" / name, training=name == "train")
        for name, coco in (("train", train), ("validation", validation))
    ]
    rates = schedule(
        FLAGS.images_seen,
        FLAGS.images_per_step,
        FLAGS.base_lr,
        FLAGS.base_images,
        FLAGS.lr_scaling == "linear",
    )
    print(
        f"{rates.steps} steps of {FLAGS.images_per_step} images, of {records[0][1]} "
        f"with objects; learning rate {rates.rate:g}, {rates.rate / 10:g} from step "
        f"{rates.decay_at}, after {rates.warmup_steps} of warmup; "
        f"{'from ' + FLAGS.backbone if FLAGS.backbone else 'from scratch'}",
        flush=True,
    )
    config = experiment(train, validation, (records[0][0], records[1][0]), rates)
    task = task_factory.get_task(config.task, logging_dir=str(model_dir))
    if FLAGS.backbone:
        task.initialize = lambda model: garden.read(
            Path(FLAGS.backbone), model.backbone
        )
    gpus = config.runtime.num_gpus
    strategy = (
        tf.distribute.MirroredStrategy()
        if gpus > 1
        else tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0")
    )
    model, _ = train_lib.run_experiment(
        strategy, task, "train", config, str(model_dir), save_summary=True
    )
    ap, detections = coco_ap.evaluate(
        task, model, config.task.validation_data, Path(FLAGS.validation_annotations)
    )
    (model_dir / "detections.json").write_text(json.dumps(detections))
    about = garden.metadata(Path(FLAGS.backbone)) if FLAGS.backbone else None
    result = {"ap": ap, "schedule": dataclasses.asdict(rates), "settings": _settings()}
    if about:
        result["backbone"] = {
            name: about.get(name) for name in ("model", "evaluation", "weights_sha256")
        }
    (model_dir / "metrics.json").write_text(json.dumps(result, indent=1) + "\n")
    print(coco_ap.table(ap))


def _settings() -> dict[str, Any]:
    """Every flag of this command."""
    return {flag.name: flag.value for flag in FLAGS.get_flags_for_module(sys.argv[0])}


if __name__ == "__main__":
    logging.set_verbosity(logging.WARNING)
    app.run(main)
