"""The schedule of Mask R-CNN's training. Needs Python alone."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Steps and rates.

    Attributes:
      steps: of the whole training.
      rate: after the warmup.
      warmup_steps: in which it grows from a third.
    """

    steps: int
    rate: float
    warmup_steps: int

    @property
    def decay_at(self) -> int:
        """The first step with a tenth of the rate: three quarters are done."""
        return self.steps * 3 // 4


def schedule(
    *,
    images_seen: int,
    images_per_step: int,
    base_lr: float,
    base_images: int,
    scaled: bool,
) -> Schedule:
    """The paper's (§5.4), for any number of images a step.

    Args:
      images_seen: in the whole training, whatever the images a step.
      images_per_step: over all devices.
      base_lr: rate for `base_images` a step.
      base_images: see `base_lr`.
      scaled: the rate grows with the images of a step; else it stays `base_lr`.

    >>> paper = {"images_seen": 2_560_000, "base_lr": 0.02, "base_images": 16}
    >>> schedule(images_per_step=2, scaled=True, **paper)
    Schedule(steps=1280000, rate=0.0025, warmup_steps=500)
    """
    steps = math.ceil(images_seen / images_per_step)
    rate = base_lr * images_per_step / base_images if scaled else base_lr
    return Schedule(steps, rate, min(500, steps // 10))
