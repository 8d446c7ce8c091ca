"""The learning rate as a pure function of the step (§2.1, §2.2, §5.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import keras
import tensorflow as tf

SCALINGS = ("linear", "sqrt", "none")
WARMUPS = ("gradual", "constant", "none")


@keras.saving.register_keras_serializable(package="tf_goyal")
class GoyalSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Scaled learning rate with warmup and step-wise decay.

    With eta = `base_lr`, kn = `global_batch`, N = `train_images` and s the step,

        eta_hat = eta kn / base_batch                          (linear, §2.1)
        rate(s) = eta + (eta_hat - eta) s kn / (warmup_epochs N)
                                           while s kn < warmup_epochs N (§2.2)
        rate(s) = eta_hat                                      afterwards
        rate(s) is multiplied by `decay` from the first step with s kn >= b N
        on, for every boundary b (§5.1)

    Every comparison is one of integers and the rest is float64, so the rate of a
    step is the same to the bit in a fresh run and in a resumed one, eagerly and in
    a `tf.function`, also beyond 2**24 steps. (Keras' `PiecewiseConstantDecay`
    switches one step after its boundary and compares in float32 for such steps.)

    The paper's recipe for 8192 images a step:

    >>> schedule = GoyalSchedule(0.1, global_batch=8192, train_images=1_281_167)
    >>> [round(schedule.value(s), 6) for s in (0, 1, 391, 781, 782)]
    [0.1, 0.103964, 1.650075, 3.196185, 3.2]
    >>> [round(schedule.value(s), 6) for s in (4691, 4692, 9384, 12512)]
    [3.2, 0.32, 0.032, 0.0032]

    Args:
        base_lr: eta, the reference rate, for `base_batch` images a step.
        global_batch: kn, images per step.
        train_images: N, images per epoch.
        base_batch: Images per step for which eta was found (256 in the paper).
        scaling: `"linear"` (eta kn / base_batch, §2.1), `"sqrt"`
            (eta sqrt(kn / base_batch), table 2 (a)) or `"none"` (eta).
        warmup: `"gradual"` (§2.2), `"constant"` (eta until `warmup_epochs`, then
            eta_hat, §2.2) or `"none"`. There is no warmup unless
            global_batch > base_batch (§5.1).
        warmup_epochs: Length of the warmup in epochs.
        boundaries: Epochs at which the rate is multiplied by `decay`. A boundary
            inside the warmup decays the warmup's rate as well.
        decay: Factor at each boundary.

    Raises:
        ValueError: If `scaling` or `warmup` is unknown, or a size is not positive.
    """

    def __init__(
        self,
        base_lr: float,
        global_batch: int,
        train_images: int,
        *,
        base_batch: int = 256,
        scaling: str = "linear",
        warmup: str = "gradual",
        warmup_epochs: float = 5.0,
        boundaries: Sequence[float] = (30.0, 60.0, 80.0),
        decay: float = 0.1,
    ) -> None:
        for name, size in (
            ("global_batch", global_batch),
            ("train_images", train_images),
            ("base_batch", base_batch),
        ):
            if size < 1:
                raise ValueError(f"{name} must be at least 1. Received: {size}.")
        if scaling not in SCALINGS:
            raise ValueError(
                f"scaling must be one of {', '.join(SCALINGS)}. Received: {scaling!r}."
            )
        if warmup not in WARMUPS:
            raise ValueError(
                f"warmup must be one of {', '.join(WARMUPS)}. Received: {warmup!r}."
            )
        self.base_lr = base_lr
        self.global_batch = global_batch
        self.train_images = train_images
        self.base_batch = base_batch
        self.scaling = scaling
        self.warmup = warmup
        self.warmup_epochs = warmup_epochs
        self.boundaries = tuple(boundaries)
        self.decay = decay

        # §2.1, linear scaling rule: when the minibatch is multiplied by k, multiply
        # the rate by k. The others are the comparisons of table 2.
        if scaling == "linear":
            self.scaled_lr = base_lr * global_batch / base_batch
        elif scaling == "sqrt":
            self.scaled_lr = base_lr * math.sqrt(global_batch / base_batch)
        else:
            self.scaled_lr = base_lr

        self._boundary_steps = [self._first_step(b) for b in self.boundaries]
        self._factors = [decay**i for i in range(len(self.boundaries) + 1)]
        # §5.1: warmup is used for kn > 256 only.
        warm = warmup != "none" and global_batch > base_batch
        self._warmup_steps = self._first_step(warmup_epochs) if warm else 0
        # Rate per image during warmup. It is a constant because a division by one
        # inside a graph may be turned into a multiplication, with other bits.
        self._warmup_slope = 0.0
        if warmup == "gradual" and self._warmup_steps:
            warmup_images = float(Fraction(str(warmup_epochs)) * train_images)
            self._warmup_slope = (self.scaled_lr - base_lr) / warmup_images

    def _first_step(self, epoch: float) -> int:
        """First step s with s kn >= epoch N; `epoch` is read as decimal text."""
        return math.ceil(Fraction(str(epoch)) * self.train_images / self.global_batch)

    def _rate(self, step: int | tf.Tensor) -> tf.Tensor:
        """The rate of `step`, a float64 scalar."""
        if isinstance(step, int):
            step = tf.constant(step, tf.int64)
        step = tf.cast(step, tf.int64)

        rate = tf.constant(self.scaled_lr, tf.float64)
        if self._warmup_steps:
            # §2.2: equal increments every iteration (constant warmup: slope 0).
            images = tf.cast(step * self.global_batch, tf.float64)
            warm = self.base_lr + self._warmup_slope * images
            rate = tf.where(step < self._warmup_steps, warm, rate)

        # §5.1: the rate is divided by 10 at the 30-th, 60-th and 80-th epoch.
        passed = step >= tf.constant(self._boundary_steps, tf.int64)  # [boundaries]
        factors = tf.constant(self._factors, tf.float64)
        return rate * tf.gather(factors, tf.math.count_nonzero(passed))

    def __call__(self, step: int | tf.Tensor) -> tf.Tensor:
        """The rate of one step.

        Args:
            step: Steps done before this one: a Python int or an integer scalar.

        Returns:
            float32 scalar, rounded once from float64.
        """
        return tf.cast(self._rate(step), tf.float32)

    def value(self, step: int) -> float:
        """The rate of one step in float64, for logs and reports."""
        return float(self._rate(step))

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            "base_lr": self.base_lr,
            "global_batch": self.global_batch,
            "train_images": self.train_images,
            "base_batch": self.base_batch,
            "scaling": self.scaling,
            "warmup": self.warmup,
            "warmup_epochs": self.warmup_epochs,
            "boundaries": list(self.boundaries),
            "decay": self.decay,
        }
