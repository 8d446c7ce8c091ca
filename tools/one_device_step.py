"""The step of `tf_goyal.train` for ImageNet's classes on one device, to be measured."""

from collections.abc import Callable
from typing import Any

from tf_goyal.cluster import Cluster
from tf_goyal.config import Config

CLASSES, TRAIN_IMAGES = 1000, 1_281_167  # ImageNet's


def make(config: Config) -> tuple[Callable[..., Any], Any, Any]:
    """`step.train_step`'s, the model and the optimizer; all k workers are here."""
    from tf_goyal import build, cluster, step

    strategy = cluster.strategy(Cluster())
    with strategy.scope():
        model = build.model(config, CLASSES)
        optimizer = build.optimizer(config, TRAIN_IMAGES)
        optimizer.build(model.trainable_variables)
    train_step = step.train_step(
        model,
        optimizer,
        strategy,
        global_batch=config.global_batch,
        groups=config.virtual_workers,
        together=False,
        exact=False,
        all_reduce=list,  # one device
    )
    return train_step, model, optimizer
