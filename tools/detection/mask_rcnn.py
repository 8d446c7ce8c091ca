r"""Mask R-CNN (ResNet-FPN) of the Model Garden from our backbone: train and evaluate.

    .venv-detection/bin/python tools/detection/mask_rcnn.py --model_dir=OUT \
      --train_annotations=A.json --train_images=FOLDER \
      --validation_annotations=B.json --validation_images=FOLDER \
      --backbone=RUN/export/backbone

Without --backbone it trains from scratch. The defaults are the paper's (§5.4): 2 images
a device, a rate of 0.02 for 16 images a step and linearly more or less for others,
2.56 million images in all, a tenth of the rate from three quarters on. From the export
it takes depth, epsilon and padding, and refuses other pixel scales than its own.
BatchNorm is frozen: that of the backbone as it was trained, that of the heads as the
identity, so that nothing depends on the images of a device; from scratch it is trained.

Started again it goes on from its last checkpoint. Prints box and mask AP of pycocotools
and writes them, with all settings, to OUT/metrics.json; OUT/detections.json has the
detections in COCO's format. A loss that is not finite is an outcome too: metrics.json
then says "diverged".
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
import command
import detect
import garden
import rates
import tensorflow as tf
import tf_keras
from absl import flags, logging
from official.core import exp_factory, task_factory, train_lib
from official.vision.configs import maskrcnn  # noqa: F401  registers the experiment
from official.vision.tasks import maskrcnn as tasks  # noqa: F401  and its task

FLAGS = flags.FLAGS
EPSILON = 1e-5
WEIGHT_DECAY = 1e-4
LEVELS = 64  # the coarsest level of the pyramid has one pixel for so many
SPLITS = ("train", "validation")
# Flags that a run may be moved with; what they name is told apart by its content.
PATHS = ("model_dir", "backbone", "train_annotations", "train_images")
PATHS += ("validation_annotations", "validation_images")
# Settings that are no flags, for people.
DERIVED = {
    "train_sha256": "the SHA-256 of the training data",
    "validation_sha256": "the SHA-256 of the validation data",
    "backbone_sha256": "the SHA-256 of the backbone",
    "epsilon": "the backbone's epsilon",
    "padding": "the backbone's padding",
}

flags.DEFINE_string("model_dir", None, "Folder of this run.", required=True)
flags.DEFINE_string("backbone", "", "RUN/export/backbone; empty: from scratch.")
for _split in SPLITS:
    flags.DEFINE_string(f"{_split}_annotations", None, "COCO's format.", required=True)
    flags.DEFINE_string(f"{_split}_images", None, "Their folder.", required=True)
flags.DEFINE_integer(
    "image_size",
    1024,
    f"Longest side, a multiple of {LEVELS}; images are padded to a square.",
    lower_bound=LEVELS,
)
flags.DEFINE_integer(
    "images_per_step", None, "Of all devices; by default 2 a device.", lower_bound=1
)
flags.DEFINE_integer("images_seen", 2_560_000, "In the whole training.", lower_bound=1)
flags.DEFINE_float("base_lr", 0.02, "Rate for --base_images a step.")
flags.DEFINE_integer("base_images", 16, "See --base_lr.", lower_bound=1)
flags.DEFINE_enum(
    "lr_scaling", "linear", ["linear", "none"], "With the images of a step, or not."
)
flags.DEFINE_bool(
    "frozen_bn", None, "See above; by default where there is a --backbone."
)
flags.DEFINE_bool("flip", True, "Flip half of the training images.")
flags.DEFINE_integer(
    "rois", 512, "Regions of an image that heads learn from.", lower_bound=8
)
flags.DEFINE_integer(
    "detections", 100, "Kept of an image, the surest; COCO counts 100.", lower_bound=1
)
flags.DEFINE_float("anchor_size", 8.0, "Side of an anchor, in strides.")
flags.DEFINE_enum(
    "depth", "50", ["50", "101", "152"], "Of the ResNet that is trained from scratch."
)
flags.DEFINE_integer("seed", 0, "Of new weights and of the order.")


def main() -> None:
    """Trains, evaluates and writes."""
    model_dir = Path(FLAGS.model_dir)
    about = garden.metadata(Path(FLAGS.backbone)) if FLAGS.backbone else None
    gpus = len(tf.config.list_physical_devices("GPU"))
    settings = resolved(about, gpus)
    train, validation = data_sets()
    for split, coco in zip(SPLITS, (train, validation)):
        settings[f"{split}_sha256"] = coco.sha256
    settings_file = same_settings(model_dir, settings)
    records = [
        coco_records.write(coco, model_dir / "records" / name, training=name == "train")
        for name, coco in zip(SPLITS, (train, validation))
    ]
    # Not before the images were read: what was refused may be mended and tried again.
    settings_file.write_text(json.dumps(settings, indent=1) + "\n")
    truth = model_dir / "validation.json"
    truth.write_text(json.dumps(validation.described()))
    schedule = rates.schedule(
        images_seen=FLAGS.images_seen,
        images_per_step=settings["images_per_step"],
        base_lr=FLAGS.base_lr,
        base_images=FLAGS.base_images,
        scaled=FLAGS.lr_scaling == "linear",
    )
    print(
        f"{schedule.steps} steps of {settings['images_per_step']} images on "
        f"{f'{gpus} GPUs' if gpus else 'CPUs'}, of "
        f"{records[0][1]} with objects; learning rate {schedule.rate:g}, a tenth from "
        f"step {schedule.decay_at}, after {schedule.warmup_steps} steps of warmup; "
        f"{'from ' + FLAGS.backbone if about else 'from scratch'}",
        flush=True,
    )
    config = experiment(settings, train, records, schedule, model_dir)
    model, task, diverged = trained(config, settings, model_dir)
    result: dict[str, Any] = {
        "ap": None,
        "diverged": diverged,
        "schedule": dataclasses.asdict(schedule),
        "settings": settings,
        "training_images": records[0][1],
        "validation_images": records[1][1],
        "backbone": about
        and {
            name: about.get(name) for name in ("model", "evaluation", "weights_sha256")
        },
    }
    if not diverged:
        found = detect.detections(task, model, config.task.validation_data, truth)
        (model_dir / "detections.json").write_text(json.dumps(found))
        result["ap"] = coco_ap.average_precision(validation.described(), found)
    beside = model_dir / ".metrics.json"
    beside.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(beside, model_dir / "metrics.json")
    print("diverged" if diverged else coco_ap.table(result["ap"]))


def resolved(about: dict | None, gpus: int) -> dict[str, Any]:
    """Every flag, with the defaults that depend on others.

    Raises:
      ValueError: they do not fit together.
    """
    settings = {
        flag.name: flag.value for flag in FLAGS.get_flags_for_module(sys.argv[0])
    }
    if FLAGS.image_size % LEVELS:
        raise ValueError(
            f"--image_size must be a multiple of {LEVELS}, received {FLAGS.image_size}"
        )
    if FLAGS.frozen_bn and not about:
        raise ValueError(
            "--frozen_bn must come with a --backbone: new statistics have to be trained"
        )
    if FLAGS["depth"].present and about:
        raise ValueError(
            "--depth is of a training from scratch; a --backbone has its own"
        )
    for name in ("base_lr", "anchor_size"):
        if not 0 < FLAGS[name].value < math.inf:
            raise ValueError(
                f"--{name} must be above 0 and finite, received {FLAGS[name].value}"
            )
    devices = max(1, gpus)
    settings["images_per_step"] = FLAGS.images_per_step or 2 * devices
    if settings["images_per_step"] % devices:
        raise ValueError(
            f"--images_per_step must be a multiple of the {devices} devices, received "
            f"{FLAGS.images_per_step}"
        )
    settings["frozen_bn"] = bool(about) if FLAGS.frozen_bn is None else FLAGS.frozen_bn
    settings["depth"] = garden.depth(about) if about else int(FLAGS.depth)
    settings["epsilon"] = about["batch_norm"]["epsilon"] if about else EPSILON
    settings["padding"] = about["padding"] if about else "same"
    settings["backbone_sha256"] = about and about.get("weights_sha256")
    return settings


def same_settings(model_dir: Path, settings: dict[str, Any]) -> Path:
    """Where a run's settings are.

    Raises:
      ValueError: the run in the folder has others, or it cannot be written.
    """
    path = model_dir / "settings.json"
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        earlier = dict(json.loads(path.read_text())) if path.exists() else None
    except OSError as error:
        raise ValueError(
            f"--model_dir must be a folder that can be written, received {model_dir}: "
            f"{error.strerror}"
        ) from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if earlier is not None:
        changed = [
            f"{DERIVED.get(name, f'--{name}')} was {earlier.get(name)}, now {value}"
            for name, value in settings.items()
            if name not in PATHS and earlier.get(name) != value
        ]
        if changed:
            raise ValueError(
                f"the run in {model_dir} has other settings: {'; '.join(changed)}: "
                "choose another --model_dir"
            )
    return path


def data_sets() -> tuple[coco_file.Coco, coco_file.Coco]:
    """Those to train on and to evaluate on; says what was left out of them."""
    train, validation = (
        coco_file.read(Path(annotations), Path(images))
        for annotations, images in (
            (FLAGS.train_annotations, FLAGS.train_images),
            (FLAGS.validation_annotations, FLAGS.validation_images),
        )
    )
    if train.categories != validation.categories:
        raise ValueError(
            f"{validation.file} must have the categories of {train.file}, "
            f"{list(train.categories.values())}, got "
            f"{list(validation.categories.values())}"
        )
    for coco in (train, validation):
        for reason, count in coco.left_out.items():
            print(f"{coco.file}: {count} annotations left out: {reason}")
    return train, validation


def experiment(
    settings: dict[str, Any],
    train: coco_file.Coco,
    records: list[tuple[str, int]],
    schedule: rates.Schedule,
    model_dir: Path,
) -> Any:
    """The Model Garden's configuration, with all that has to match set."""
    config = exp_factory.get_exp_config("maskrcnn_resnetfpn_coco")
    task, model = config.task, config.task.model
    task.init_checkpoint = None  # `garden.read` checks more than the task would
    model.num_classes = train.classes
    model.input_size = [FLAGS.image_size, FLAGS.image_size, 3]
    model.anchor.anchor_size = FLAGS.anchor_size
    model.norm_activation.use_sync_bn = False
    model.norm_activation.norm_epsilon = settings["epsilon"]
    model.norm_activation.norm_momentum = 0.9
    model.backbone.resnet.model_id = settings["depth"]
    # The paper's box head; the Model Garden's default has four convolutions.
    model.detection_head.num_convs, model.detection_head.num_fcs = 0, 2
    model.roi_sampler.num_sampled_rois = FLAGS.rois
    model.mask_sampler.num_sampled_masks = max(4, FLAGS.rois // 4)
    model.roi_generator.num_proposals = min(1000, 4 * FLAGS.rois)
    model.roi_generator.test_num_proposals = min(1000, 4 * FLAGS.rois)
    model.detection_generator.max_num_detections = FLAGS.detections
    task.losses.l2_weight_decay = WEIGHT_DECAY

    data = task.train_data
    data.input_path, images = records[0]
    data.global_batch_size = settings["images_per_step"]
    # A start that goes on from a checkpoint takes another order, not the same again.
    done = tf.train.latest_checkpoint(str(model_dir)) or "-0"
    data.seed = FLAGS.seed + 1_000_003 * int(done.rpartition("-")[2])
    data.shuffle_buffer_size = min(10_000, images)
    data.parser.aug_rand_hflip = FLAGS.flip
    # It would leave out what comes behind, and train on it as background.
    data.parser.max_num_instances = max(
        data.parser.max_num_instances, train.most_things
    )
    data.parser.aug_scale_min = data.parser.aug_scale_max = 1.0
    task.validation_data.input_path, _ = records[1]
    task.validation_data.global_batch_size = 1
    data.dtype = task.validation_data.dtype = "float32"

    trainer = config.trainer
    trainer.train_steps = schedule.steps
    each = max(1, min(500, schedule.steps // 10))
    trainer.steps_per_loop = trainer.summary_interval = each
    trainer.checkpoint_interval = each
    trainer.max_to_keep = 1
    optimizer = trainer.optimizer_config
    # It keeps a rate up to and with the boundary.
    optimizer.learning_rate.stepwise.boundaries = [schedule.decay_at - 1]
    optimizer.learning_rate.stepwise.values = [schedule.rate, schedule.rate / 10]
    optimizer.warmup.linear.warmup_steps = schedule.warmup_steps
    optimizer.warmup.linear.warmup_learning_rate = schedule.rate / 3
    return config


def trained(
    config: Any, settings: dict[str, Any], model_dir: Path
) -> tuple[Any, Any, bool]:
    """The model, its task, and whether the loss became infinite or NaN."""
    tf_keras.utils.set_random_seed(FLAGS.seed)
    task = task_factory.get_task(config.task, logging_dir=str(model_dir))
    build = task.build_model

    def build_model() -> tf_keras.Model:
        model = build()
        if FLAGS.backbone:
            garden.read(Path(FLAGS.backbone), model.backbone)
        if settings["frozen_bn"]:
            for layer in model.submodules:
                if isinstance(layer, tf_keras.layers.BatchNormalization):
                    layer.trainable = False
        return model

    task.build_model = build_model
    gpus = tf.config.list_physical_devices("GPU")
    strategy = (
        tf.distribute.MirroredStrategy()
        if len(gpus) > 1
        else tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0")
    )
    try:
        model, _ = train_lib.run_experiment(
            strategy, task, "train", config, str(model_dir)
        )
    except RuntimeError as error:
        if "The loss value is" not in str(error):
            raise
        return None, task, True
    return model, task, False


if __name__ == "__main__":
    logging.set_verbosity(logging.WARNING)
    command.run(main)
