"""Images per second of a ResNet-50 training step, ours against two rivals.

python tools/bench_step.py [--garden_python=PYTHON --rounds=5 --steps=2]

Each contestant trains in float32 and in bfloat16 (mixed precision), on one batch of
synthetic images that stays in memory:

  ours    the step of `tf_goyal.train`
  keras   the same model with keras.layers.BatchNormalization, keras.optimizers.SGD and
          no weight decay
  garden  the Model Garden's step, see garden_step.py; with --garden_python only

They take turns of a few steps in one process, the garden in one of its own that rests
meanwhile. How many times as fast ours is, is the median over the rounds of the ratio
within the round, so that whatever else the machine does hits both sides. The seconds
of the processors stand beside those of the clock: on a busy machine they repeat better.
Writes tools/results/bench_step.json.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import machine
import numpy as np
import one_device_step
from absl import flags as absl_flags
from one_device_step import CLASSES

from tf_goyal import flags, start
from tf_goyal.config import Config

PRECISIONS = ("float32", "bfloat16")

# A number of steps -> the seconds they took: by the clock, of the processors.
Turn = Callable[[int], tuple[float, float]]


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    for name, default, text in (
        ("rounds", 5, "Turns of each contestant."),
        ("steps", 2, "Steps in a turn."),
        ("batch", 32, "Images per step."),
        ("image_size", 224, "Height and width of the images, pixels."),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=1, flag_values=values
        )
    absl_flags.DEFINE_string(
        "garden_python",
        "",
        "Python of an environment with tf-models-official 2.20; empty: no garden.",
        flag_values=values,
    )


def ours(config: Config, images: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
    """The step that `tf_goyal.train` runs, on one device. Returns the loss."""
    import tensorflow as tf

    train_step, _, _ = one_device_step.make(config)
    # [m, n, H, W, 3] uint8 with m = 1, [m, n] int32, and nothing to tell the others.
    batch = tf.constant(images[None]), tf.constant(labels[None]), tf.zeros([2])
    return lambda: float(train_step(*batch).loss)


def plain_keras(
    config: Config, images: np.ndarray, labels: np.ndarray
) -> Callable[[], float]:
    """The step that one writes with what Keras has. Returns the loss."""
    import keras
    import tensorflow as tf

    from tf_goyal import build
    from tf_goyal.batch_norm import BatchNormalization

    def keras_layer(layer):
        if not isinstance(layer, BatchNormalization):
            return type(layer).from_config(layer.get_config())
        return keras.layers.BatchNormalization(
            momentum=layer.momentum,
            epsilon=layer.epsilon,
            gamma_initializer=layer.gamma_initializer,
            name=layer.name,
        )

    model = keras.models.clone_model(
        build.model(config, CLASSES), clone_function=keras_layer
    )
    optimizer = keras.optimizers.SGD(
        config.scaled_lr, momentum=config.momentum, nesterov=config.nesterov
    )
    optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    batch = tf.constant(images), tf.constant(labels)
    return lambda: float(train_step(*batch))


def turn_of(step: Callable[[], float]) -> Turn:
    """Warms a step up; then its turns."""

    def turn(steps):
        clock, processors = time.perf_counter(), _processor_seconds()
        losses = [step() for _ in range(steps)]
        seconds = time.perf_counter() - clock, _processor_seconds() - processors
        if not np.isfinite(losses).all():
            raise RuntimeError(f"a loss is not finite: {losses}")
        return seconds

    turn(2)
    return turn


class Garden:
    """`garden_step.py` in the garden's environment: a turn per line written to it."""

    def __init__(self, python: str, batch: int, image_size: int):
        script = Path(__file__).with_name("garden_step.py")
        self._process = subprocess.Popen(
            [python, str(script), str(batch), str(image_size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.versions = self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(
                "--garden_python must be the Python of an environment with "
                "tf-models-official 2.20; tools/garden_step.py ended there with "
                f"status {self._process.wait()}: run it by hand to see why"
            )
        return json.loads(line)

    def turn(self, precision: str) -> Turn:
        """The turns of one precision."""

        def turn(steps):
            print(precision, steps, file=self._process.stdin, flush=True)
            seconds, processor_seconds = self._answer()
            return seconds, processor_seconds

        return turn

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def measure(turns: dict[str, Turn], rounds: int, steps: int) -> list[dict]:
    """Each round: contestant -> (seconds, processor seconds) per step."""
    results = []
    for r in range(rounds):
        # There and back again, so that nobody always follows the same one.
        names = list(turns) if r % 2 == 0 else list(turns)[::-1]
        seconds = {name: turns[name](steps) for name in names}
        results.append({n: [s / steps for s in seconds[n]] for n in turns})
        line = ", ".join(f"{n} {s[0]:.3f}" for n, s in results[-1].items())
        print(f"round {r + 1}, seconds per step: {line}", flush=True)
    return results


def summary(rounds: list[dict], batch: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds; ratios are taken within a round first."""
    names = list(rounds[0])
    rivals = [name for name in names if not name.startswith("ours")]

    def of_step(index):
        return {n: statistics.median(r[n][index] for r in rounds) for n in names}

    def times_as_fast(index):
        return {
            rival: statistics.median(
                r[rival][index] / r[f"ours {rival.split()[1]}"][index] for r in rounds
            )
            for rival in rivals
        }

    seconds = of_step(0)
    return {
        "images_per_second": {name: batch / seconds[name] for name in names},
        "ours_is_times_as_fast_as": times_as_fast(0),
        "processor_seconds_per_step": of_step(1),
        "ours_is_times_as_fast_as_by_processor_seconds": times_as_fast(1),
    }


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(_: list[str]) -> int:
    """Measures and writes. Returns the exit code."""
    rounds, steps = flags.FLAGS.rounds, flags.FLAGS.steps
    batch, size = flags.FLAGS.batch, flags.FLAGS.image_size
    python = flags.FLAGS.garden_python
    # Where somebody keeps the garden is no part of the result.
    if python:
        sys.argv = [argument.replace(python, "PYTHON") for argument in sys.argv]
    start.tensorflow()
    from tf_goyal import build

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (batch, size, size, 3), np.uint8)
    labels = random.integers(0, CLASSES, batch, np.int32)
    garden = Garden(python, batch, size) if python else None
    turns = {}
    try:
        for precision in PRECISIONS:
            config = Config(
                global_batch=batch,
                worker_batch=batch,
                image_size=size,
                precision=precision,
            )
            build.prepare_tensorflow(config)
            for name, make in (("ours", ours), ("keras", plain_keras)):
                turns[f"{name} {precision}"] = turn_of(make(config, images, labels))
            if garden:
                turns[f"garden {precision}"] = garden.turn(precision)
        results = measure(turns, rounds, steps)
    finally:
        if garden:
            garden.close()
    medians = summary(results, batch)
    path = machine.write(
        "bench_step",
        {
            "model": config.model,
            "batch": batch,
            "image_size": size,
            "steps_in_a_turn": steps,
            "garden_versions": garden.versions if garden else None,
            **medians,
            "rounds_of_seconds_and_processor_seconds_per_step": results,
        },
    )
    for key in ("images_per_second", "ours_is_times_as_fast_as"):
        for name, value in medians[key].items():
            print(f"{key.replace('_', ' ')}, {name}: {value:.3f}")
    print(f"in {path}")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
