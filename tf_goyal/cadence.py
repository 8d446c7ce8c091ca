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
      eval_every, checkpoint_every, keep_every: epochs; the first and the last may be 0,
        for never.
      log_every: steps.
    """

    total_steps: int
    total_images: int
    global_batch: int
    train_images: int
    eval_every: float
    checkpoint_every: float
    keep_every: float
    log_every: int

    def images(self, steps: int) -> int:
        """Images that the first `steps` steps learn from."""
        return min(steps * self.global_batch, self.total_images)

    def epoch(self, steps: int) -> float:
        """Images seen / N after `steps` steps."""
        return self.images(steps) / self.train_images

    def evaluates(self, steps: int) -> bool:
        """Whether `steps` steps done completed another `eval_every` epochs."""
        if not self.eval_every:
            return False
        return self._completes(steps, self.eval_every) or steps == self.total_steps

    def saves(self, steps: int) -> bool:
        """Whether `steps` steps done completed another `checkpoint_every` epochs."""
        every = self.checkpoint_every
        return self._completes(steps, every) or steps == self.total_steps

    def keeps(self, steps: int) -> bool:
        """Whether the checkpoint of `steps` steps done is kept for good."""
        return self.keep_every > 0 and self._completes(steps, self.keep_every)

    def logs(self, steps: int) -> bool:
        """Whether the `steps`-th step gets a line in the log."""
        return steps % self.log_every == 0 or steps == self.total_steps

    def _completes(self, steps: int, every: float) -> bool:
        images = Fraction(str(every)) * self.train_images
        done = steps * self.global_batch
        return done // images > (done - self.global_batch) // images
