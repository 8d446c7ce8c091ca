"""When a run logs, evaluates and saves: predicates of the number of steps done."""

import dataclasses
from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class Cadence:
    """When things happen, in exact arithmetic over steps.

    Attributes:
      total_steps: the run's length.
      total_images: what the run counts; less than total_steps * kn where the last
        step is not full.
      global_batch: kn. train_images: N.
      eval_every, checkpoint_every: epochs. log_every: steps.
    """

    total_steps: int
    total_images: int
    global_batch: int
    train_images: int
    eval_every: float
    checkpoint_every: float
    log_every: int

    def images(self, steps: int) -> int:
        """Images that the first `steps` steps learn from."""
        return min(steps * self.global_batch, self.total_images)

    def epoch(self, steps: int) -> float:
        """Images seen / N after `steps` steps."""
        return self.images(steps) / self.train_images

    def evaluates(self, steps: int) -> bool:
        """Whether `steps` steps done completed another `eval_every` epochs."""
        return self._completes(steps, self.eval_every)

    def saves(self, steps: int) -> bool:
        """Whether `steps` steps done completed another `checkpoint_every` epochs."""
        return self._completes(steps, self.checkpoint_every)

    def logs(self, steps: int) -> bool:
        """Whether the `steps`-th step gets a line in the log."""
        return steps % self.log_every == 0 or steps == self.total_steps

    def _completes(self, steps: int, every: float) -> bool:
        images = Fraction(str(every)) * self.train_images
        done = steps * self.global_batch
        crossed = done // images > (done - self.global_batch) // images
        return crossed or steps == self.total_steps
