"""Config to objects: the only factory."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_goyal import cluster as clusters
from tf_goyal import evaluation, files, image_order, input_pipeline, resnet, step
from tf_goyal.asked import Asked
from tf_goyal.broken_records import BrokenRecords
from tf_goyal.cadence import Cadence
from tf_goyal.checkpoint_writer import CheckpointWriter
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.image_order import ImageOrder
from tf_goyal.placement import Placement
from tf_goyal.progress import say
from tf_goyal.reduction_choice import ReductionChoice
from tf_goyal.run_log import RunLog
from tf_goyal.samples import Labels, Sampler
from tf_goyal.schedule import GoyalSchedule
from tf_goyal.sgd import SGD
from tf_goyal.trainer import Trainer
from tf_goyal.watchdog import Watchdog


def prepare_tensorflow(config: Config) -> None:
    """Sets what must be set before TensorFlow runs its first operation."""
    if config.op_threads:
        tf.config.threading.set_intra_op_parallelism_threads(config.op_threads)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    if config.reduction == "exact" and tf.config.list_physical_devices("GPU"):
        keras.utils.set_random_seed(config.seed)  # determinism insists on a seed
        tf.config.experimental.enable_op_determinism()
    policy = "float32" if config.precision == "float32" else f"mixed_{config.precision}"
    keras.mixed_precision.set_global_policy(policy)


def model(config: Config, classes: int, *, any_size: bool = False) -> keras.Model:
    """The network of a run, uint8 pixels to logits, with its initial weights.

    Args:
      config: of the run.
      classes: number of logits.
      any_size: take images of any size, not only of the run's.
    """
    return resnet.build(
        config.model,
        classes=classes,
        image_size=None if any_size else config.image_size,
        padding=config.padding,
        zero_gamma=config.zero_gamma,
        bn_statistics=config.bn_statistics,
        seed=config.seed,
    )


def learning_rate(config: Config, train_images: int) -> GoyalSchedule:
    """The learning rate of a run."""
    return GoyalSchedule(
        config.base_lr,
        config.global_batch,
        train_images,
        base_batch=config.base_batch,
        scaling=config.lr_scaling,
        warmup=config.warmup,
        warmup_epochs=config.warmup_epochs,
        boundaries=config.lr_boundaries,
        decay=config.lr_decay,
    )


def optimizer(config: Config, train_images: int) -> SGD:
    """The optimizer of a run."""
    return SGD(
        learning_rate(config, train_images),
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        momentum_correction=config.momentum_correction,
        name="sgd",
    )


def cadence(config: Config, train_images: int) -> Cadence:
    """When the run logs, evaluates and saves."""
    return Cadence(
        total_steps=config.total_steps(train_images),
        total_images=config.total_images(train_images),
        global_batch=config.global_batch,
        train_images=train_images,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        keep_every=config.keep_every,
        log_every=config.log_every,
    )


def order(config: Config, part_sizes: np.ndarray) -> ImageOrder:
    """The order of the training records.

    Args:
      config: of the run.
      part_sizes: of the training split.
    """
    if config.shuffle == "streaming":
        return image_order.streaming(
            part_sizes,
            config.seed,
            global_batch=config.global_batch,
            worker_batch=config.worker_batch,
        )
    return image_order.shuffled(int(np.sum(part_sizes)), config.seed)


def labels(config: Config, dataset: Dataset) -> Labels:
    """The check of the stored labels."""
    return Labels(dataset.num_classes, config.label_offset)


def sampler(config: Config, dataset: Dataset) -> Sampler:
    """The training images of a run, by position."""
    split = dataset.train
    return Sampler(
        split,
        order(config, split.part_sizes),
        labels(config, dataset),
        seed=config.seed,
        total_images=config.total_images(len(split)),
        min_crop_area=config.min_crop_area,
        horizontal_flip=config.horizontal_flip,
    )


def threads(config: Config) -> input_pipeline.Threads:
    """How the input uses this machine."""
    return input_pipeline.Threads(config.input_threads, config.prefetch)


def evaluator(
    config: Config,
    dataset: Dataset,
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    placement: Placement,
    device_sum: Callable[[np.ndarray], np.ndarray],
):
    """Whether to leave off -> `evaluation.evaluate`'s, of the model as it is then."""
    split, batch = dataset.validation, config.worker_batch
    eval_step = step.eval_step(model, strategy)
    rounds = evaluation.batches_of(len(split), batch, placement)
    batches = input_pipeline.EvalBatches(
        split,
        labels(config, dataset),
        batch=batch,
        batches=[b for devices in rounds for b in devices],
        image_size=config.image_size,
        eval_resize=config.eval_shorter_side,
        resize=config.resize,
        dct=config.dct,
        threads=threads(config),
    )

    def evaluate(leave_off: Callable[[], bool] = lambda: False):
        return evaluation.evaluate(eval_step, device_sum, batches, placement, leave_off)

    return evaluate


def writer(config: Config, cadence: Cadence, log: RunLog) -> CheckpointWriter:
    """Writes the run's checkpoints; a failure is told, and training goes on."""

    def failed(step: int, why: str) -> None:
        log.write("event", event="checkpoint_failed", step=step, why=why)
        say(f"not saved at step {step}: {why}", sys.stderr)

    return CheckpointWriter(
        config.model_dir,
        keep=config.keep_checkpoints,
        keeps=cadence.keeps,
        failed=failed,
    )


def trainer(
    config: Config,
    cluster: Cluster,
    dataset: Dataset,
    metadata: dict[str, Any],
    asked: Asked,
    lost: Callable[[str], None],
    broken_records: dict[str, list[int]] | None = None,
) -> Trainer:
    """Everything that trains, on this process' part of the cluster.

    Args:
      config: of the run.
      cluster: that this process belongs to.
      dataset: the run's.
      metadata: to store with every checkpoint.
      asked: whether this process was asked to stop.
      lost: ends the process because a peer does not answer; it is told more.
      broken_records: known from the checkpoint that the run goes on from.

    Raises:
      ValueError: the devices that TensorFlow found do not fit the configuration.
    """
    prepare_tensorflow(config)
    strategy = clusters.strategy(
        cluster, allreduce=config.allreduce, devices=config.devices
    )
    placement = Placement(strategy, cluster.rank, config.virtual_workers)
    train_images = len(dataset.train)
    with strategy.scope():
        network = model(config, dataset.num_classes)
        sgd = optimizer(config, train_images)
        sgd.build(network.trainable_variables)
    everything = config.bn_statistics == "global"
    run = cadence(config, train_images)

    images = sampler(config, dataset)

    def batches(first_step: int) -> Iterator[Any]:
        batches = input_pipeline.TrainBatches(
            images,
            global_batch=config.global_batch,
            worker_batch=config.worker_batch,
            workers=placement.workers,
            first_step=first_step,
            last_step=run.total_steps,
            image_size=config.image_size,
            resize=config.resize,
            dct=config.dct,
            threads=threads(config),
        )
        return iter(batches)

    def describe_broken(split: str, record: int) -> tuple[str, str]:
        records = getattr(dataset, split)
        why = input_pipeline.fault(records, record, config.dct, labels(config, dataset))
        return records.where(record), why or "it could not be read or decoded then"

    device_sum = step.device_sum(strategy, placement)
    reduction = ReductionChoice(
        config, cluster, network, strategy, placement, device_sum
    )
    watchdog = Watchdog(
        config.collective_timeout if cluster.processes > 1 else 0.0,
        reduction.arrivals.counts,
        lost,
    )
    unwatched = device_sum

    def meet() -> None:
        unwatched(np.zeros([len(placement.local), 1], np.int64))

    device_sum = watchdog.watched("a sum over all processes", device_sum)
    if cluster.is_chief:
        files.path(config.model_dir).mkdir(parents=True, exist_ok=True)
    log = RunLog(config.model_dir, writes=cluster.is_chief)
    return Trainer(
        cadence=run,
        rank=cluster.rank,
        model=network,
        optimizer=sgd,
        placement=placement,
        train_step=step.train_step(
            network,
            sgd,
            strategy,
            global_batch=config.global_batch,
            groups=placement.devices if everything else config.virtual_workers,
            together=everything,
            exact=config.reduction == "exact",
            all_reduce=reduction.all_reduce,
        ),
        batches=batches,
        evaluate=evaluator(config, dataset, network, strategy, placement, device_sum),
        broken=BrokenRecords(
            config.max_bad_records, device_sum, placement, broken_records
        ),
        describe_broken=describe_broken,
        validation_images=len(dataset.validation),
        device_sum=device_sum,
        meet=meet,
        choose_all_reduce=lambda: reduction.choose(watchdog.watched),
        watchdog=watchdog,
        asked=asked,
        writer=writer(config, run, log) if cluster.is_chief else None,
        log=log,
        model_dir=config.model_dir,
        metadata=metadata,
    )
