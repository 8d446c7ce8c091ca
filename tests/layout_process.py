"""One process of some small trainings, for tests that compare layouts.

Its settings come as JSON on stdin. Trains a small convolutional network on data made
from a seed, whatever the layout, once for each of `runs`, and writes what came out as
.npz. Not a test itself.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from tf_goyal import checkpoint, cluster, not_finite, reduction_plan, step
from tf_goyal.allreduce import AllReduce
from tf_goyal.batch_norm import BatchNormalization
from tf_goyal.placement import Placement
from tf_goyal.sgd import SGD


def network(statistics: str) -> keras.Model:
    """Three convolutions with BatchNorm: uint8 [B, 12, 12, 3] to 5 logits."""
    initial = keras.initializers.GlorotUniform
    x = images = keras.Input([12, 12, 3], dtype="uint8")
    x = keras.layers.Rescaling(1 / 64, -2)(x)
    for i, filters in enumerate((8, 16, 24)):
        x = keras.layers.Conv2D(
            filters,
            3,
            strides=1 + i % 2,
            use_bias=False,
            kernel_initializer=initial(seed=i),
            name=f"conv{i}",
        )(x)
        x = BatchNormalization(statistics, name=f"bn{i}")(x)
        x = keras.layers.ReLU()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(5, kernel_initializer=initial(seed=9), name="head")(x)
    return keras.Model(images, logits, name="network")


def main(layout: dict) -> None:
    """Trains each run; writes variables, losses and wishes to stop to its output."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    ports, rank = layout["ports"], layout["rank"]
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    strategy = cluster.strategy(
        cluster.Cluster(addresses if len(ports) > 1 else (), rank),
        devices=layout["devices"],
    )
    for settings, output in layout["runs"]:
        np.savez(f"{output}-{rank}.npz", **train(strategy, rank, len(ports), settings))


def train(
    strategy: tf.distribute.Strategy, rank: int, processes: int, settings: dict
) -> dict:
    """One run of `settings` (layouts.DEFAULTS): what this rank ends with."""
    k, n = settings["workers"], settings["worker_batch"]
    placement = Placement(strategy, rank, k)
    together = settings["statistics"] == "global"
    with strategy.scope():
        model = network(settings["statistics"])
        optimizer = SGD(
            settings["learning_rate"],
            momentum=settings["momentum"],
            weight_decay=settings["weight_decay"],
        )
        optimizer.build(model.trainable_variables)
    gradients_from = 4 + len(model.non_trainable_variables)
    train_step = step.train_step(
        model,
        optimizer,
        strategy,
        global_batch=k * n,
        groups=placement.devices if together else k,
        together=together,
        exact=settings["exact"],
        all_reduce=AllReduce(
            lambda sizes: reduction_plan.plan(
                sizes,
                [1.0] * len(sizes),
                bucket_bytes=settings["bucket_bytes"],
                algorithm=lambda size: settings["algorithm"],
                cost=None,
                in_flight=1,
                gradients_from=gradients_from,
            ),
            rank=rank,
            hosts=settings["hosts"] or [[r] for r in range(processes)],
            wire_dtype=tf.as_dtype(settings["wire"]) if settings["wire"] else None,
            gradients_from=gradients_from,
        ),
    )
    random = np.random.default_rng(0)
    here = slice(placement.workers.start, placement.workers.stop)
    losses, stops, replaced = [], [], []
    for number in range(settings["steps"]):
        images = random.integers(0, 256, [k, n, 12, 12, 3], np.uint8)
        labels = random.integers(0, 5, [k, n]).astype(np.int32)
        if settings["bright"]:  # the last virtual worker sees bright images only
            images[-1] = images[-1] // 8 + 223
        if settings["nan_on"] == rank and number == settings["steps"] - 1:
            kernel = model.trainable_variables[0]
            kernel.assign(np.full(kernel.shape, np.nan))
        result = train_step(
            placement.split_workers(tf.constant(images[here])),
            placement.split_workers(tf.constant(labels[here])),
            placement.split_signals(rank == 1 and number == 2, 257 if rank else 0),
        )
        losses.append(float(result.loss))
        stops.append(float(result.stop))
        replaced.append(float(result.replaced))
    arrays = checkpoint.arrays_of("model", model.variables)
    signals = {"stops": stops, "replaced": replaced}
    signals["evidence"] = np.stack(result.evidence)
    if settings["nan_on"] is not None:
        found = not_finite.report(
            [evidence.numpy() for evidence in result.evidence],
            [variable.path for variable in model.trainable_variables],
            step.device_sum(strategy, placement),
            placement,
        )
        signals["found"] = json.dumps(found)
    return {"losses": losses, **signals, **arrays}


if __name__ == "__main__":
    main(json.load(sys.stdin))
