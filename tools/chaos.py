r"""Faulted trainings, each restarted until it ends, against one that nothing befell.

python tools/chaos.py [--faults=100 --seed=0 --parallel=2]

Every training begins anew on the embedded digits, with --reduction=exact. At a moment
drawn from the seed (seconds after the start, or a step, or while a checkpoint is being
written) one of these happens to it:

  kill        kill -9 of a process; its peers must leave with 138
  terminate   SIGTERM to a process; all must leave with 143, saved
  freeze      SIGSTOP of a process; its peers must leave with 138
  stall       SIGSTOP, and SIGCONT within --peer_timeout; nothing must come of it
  truncate    kill -9 of all, and the newest checkpoint is cut at a random byte
  disk        its disk fills up, and has room again at the next start

Then it is started again, each time with another number of processes, until it ends. Its
weights must have the hash of the undisturbed run, each step its loss; no process may
hang; each start must go on from the newest checkpoint that was complete. Where the only
checkpoint was cut, the next start must refuse and say so; then the folder is removed.

Writes tools/results/chaos.json after every training, and prints a table; the exit code
is 1 where something was not as it must be.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chaos_run
import machine
import small_disk
from absl import flags as absl_flags

from tf_goyal import checkpoint, flags

FAULTS = ("kill", "terminate", "freeze", "stall", "truncate", "disk")
STEPS = 40
PEER_TIMEOUT, STALL_SECONDS = 15.0, 4.0
DISK_BYTES = 24 * 2**20
# k = 4 virtual workers, so that 1, 2, 3 and 4 processes can carry them.
ARGUMENTS = (
    "--recipe=digits",
    "--global_batch=32",
    "--worker_batch=8",
    "--reduction=exact",
    "--allreduce=halving_doubling",
    f"--steps={STEPS}",
    "--lr_boundaries=0.5,1",
    "--warmup_epochs=0.1",
    "--checkpoint_every=0.1",  # of 1500 images: every 4.7 steps
    "--eval_every=0.4",
    f"--peer_timeout={PEER_TIMEOUT:g}",
    "--start_timeout=60",
)


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    absl_flags.DEFINE_integer(
        "faults", 100, "Faulted trainings.", lower_bound=1, flag_values=values
    )
    absl_flags.DEFINE_integer("seed", 0, "Of all that is drawn.", flag_values=values)
    absl_flags.DEFINE_integer(
        "processes",
        3,
        "Most processes of a start; each draws from 1 (2 for the faults that need "
        "a peer) to this.",
        lower_bound=2,
        upper_bound=4,
        flag_values=values,
    )
    absl_flags.DEFINE_integer(
        "parallel", 2, "Trainings at once.", lower_bound=1, flag_values=values
    )
    absl_flags.DEFINE_string(
        "result", "chaos", "Name of the file in tools/results/.", flag_values=values
    )


@dataclasses.dataclass
class Outcome:
    """One faulted training, as JSON.

    Attributes:
      number, fault: which.
      moment: when it happened, in words.
      codes: of each rank, of the start that it happened to.
      seconds_to_leave: from the fault until all processes had left.
      starts: (processes, step that it went on from) of all of them.
      steps_lost: that had to be done again.
      wrong: what was not as it must be, in sentences; empty: all was.
    """

    number: int
    fault: str
    moment: str = ""
    codes: list[int] = dataclasses.field(default_factory=list)
    seconds_to_leave: float = 0.0
    starts: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    steps_lost: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


class Chaos:
    """The faulted trainings of a seed.

    Args:
      seed: of all that is drawn.
      processes: most of a start.
      folder: for the runs.
    """

    def __init__(self, seed: int, processes: int, folder: Path):
        self._seed, self._processes, self._folder = seed, processes, folder
        self.sha256 = ""
        self._losses: dict[int, float] = {}

    def undisturbed(self) -> None:
        """The run that all others must be equal to."""
        model_dir = self._folder / "undisturbed"
        with chaos_run.running(model_dir, ARGUMENTS, 2) as ranks:
            attempt = ranks.leave(chaos_run.RUN_SECONDS)
        self.sha256, self._losses = attempt.sha256, chaos_run.losses(model_dir)
        if not attempt.done or not self.sha256 or len(self._losses) != STEPS:
            raise RuntimeError(f"the undisturbed run failed:\n{attempt.output}")

    def faulted(self, number: int, fault: str) -> Outcome:
        """A training that a fault happens to, until it ends.

        Its moments and numbers are drawn from the seed and its own number, again where
        the fault came too late.
        """
        draws = random.Random(f"{self._seed}/{number}")
        while True:
            outcome = Outcome(number, fault)
            try:
                came = self._faulted(outcome, draws)
            except (ValueError, OSError) as error:
                outcome.wrong.append(f"{type(error).__name__}: {error}")
                came = True
            if came:
                return outcome

    def _faulted(self, outcome: Outcome, draws: random.Random) -> bool:
        """Fills in what happened; returns whether the fault came in time."""
        fault = outcome.fault
        with _folder(
            self._folder / f"run-{outcome.number}", fault == "disk"
        ) as model_dir:
            attempt = self._disturb(model_dir, fault, outcome, draws)
            if attempt.done and fault not in ("stall", "disk"):
                return False  # it was over before the fault
            if fault == "truncate" and _all_broken(model_dir):
                self._refused(model_dir, outcome)
            while not attempt.done and not outcome.wrong:
                complete = chaos_run.newest(model_dir)
                before = attempt.last_step
                processes = draws.randint(1, self._processes)
                with chaos_run.running(model_dir, ARGUMENTS, processes) as ranks:
                    attempt = ranks.leave(chaos_run.RUN_SECONDS)
                outcome.starts.append((processes, complete))
                outcome.steps_lost += max(0, before - complete)
                self._check_start(attempt, complete, outcome)
            if not outcome.wrong:
                self._check_end(model_dir, outcome)
        return True

    def _refused(self, model_dir: Path, outcome: Outcome) -> None:
        """No checkpoint can be used: train must not begin anew by itself."""
        outcome.moment += ", the only one"
        with chaos_run.running(model_dir, ARGUMENTS, 1) as ranks:
            attempt = ranks.leave(chaos_run.START_SECONDS)
        if attempt.codes != [2] or "remove the folder" not in attempt.output:
            outcome.wrong.append(
                f"without a checkpoint that can be used a start ended with "
                f"{attempt.codes}:\n{attempt.output}"
            )
        shutil.rmtree(checkpoint.folder(str(model_dir)))

    def _disturb(
        self, model_dir: Path, fault: str, outcome: Outcome, draws: random.Random
    ) -> chaos_run.Attempt:
        """The first start, and the fault."""
        alone = fault in ("terminate", "truncate", "disk")
        processes = draws.randint(1 if alone else 2, self._processes)
        victim = draws.randrange(processes)
        with chaos_run.running(model_dir, ARGUMENTS, processes) as ranks:
            outcome.moment = _await_moment(ranks, fault, draws)
            since = time.monotonic()
            if fault == "kill":
                ranks.send(signal.SIGKILL, victim)
            elif fault == "terminate":
                ranks.send(signal.SIGTERM, victim)
            elif fault == "truncate":
                for rank in range(processes):
                    ranks.send(signal.SIGKILL, rank)
            elif fault == "stall":
                ranks.send(signal.SIGSTOP, victim)
                time.sleep(STALL_SECONDS)
                ranks.send(signal.SIGCONT, victim)
            elif fault == "freeze":
                ranks.send(signal.SIGSTOP, victim)
                left = ranks.wait(
                    lambda: not ranks.alive(besides=victim), chaos_run.LEAVE_SECONDS
                )
                if not left:
                    outcome.wrong.append("a process hung beside a frozen one")
                outcome.seconds_to_leave = time.monotonic() - since
                ranks.send(signal.SIGKILL, victim)
            rest = small_disk.fill(model_dir) if fault == "disk" else None
            goes_on = fault in ("stall", "disk")
            limit = chaos_run.RUN_SECONDS if goes_on else chaos_run.LEAVE_SECONDS
            attempt = ranks.leave(limit, since)
            if rest:  # there is room again at the next start
                rest.unlink()
        outcome.codes = attempt.codes
        outcome.seconds_to_leave = outcome.seconds_to_leave or attempt.seconds
        outcome.starts.append((processes, attempt.first_step))
        if attempt.hung:
            outcome.wrong.append(f"a process hung after {fault}:\n{attempt.output}")
        self._check_codes(fault, victim, attempt, outcome)
        if fault == "truncate":
            _truncate(model_dir, outcome, draws)
        return attempt

    def _check_codes(
        self, fault: str, victim: int, attempt: chaos_run.Attempt, outcome: Outcome
    ) -> None:
        if attempt.done:  # nothing must come of it, or it came too late
            return
        peers = [code for rank, code in enumerate(attempt.codes) if rank != victim]
        right = {
            "kill": lambda: set(peers) <= {138, 0, 2},
            # Before its first line a process dies of SIGTERM, and is missed.
            "terminate": lambda: (
                set(attempt.codes) == {143}
                or (attempt.codes[victim] == -15 and set(peers) <= {2})
            ),
            "freeze": lambda: set(peers) <= {138, 0, 2},
            "stall": lambda: False,
            "truncate": lambda: set(attempt.codes) <= {-9, 138, 0},
            "disk": lambda: set(attempt.codes) <= {0, 2},
        }
        if not right[fault]():
            outcome.wrong.append(
                f"exit codes {attempt.codes} after {fault} of rank {victim}:\n"
                f"{attempt.output}"
            )

    def _check_start(
        self, attempt: chaos_run.Attempt, complete: int, outcome: Outcome
    ) -> None:
        """A start that nothing happens to must go on from there, to the end."""
        goes_on = f"goes on from step {complete} of" if complete else "starts at step 0"
        if goes_on not in attempt.output and "already done" not in attempt.output:
            outcome.wrong.append(
                f"did not go on from step {complete}:\n{attempt.output}"
            )
        if attempt.hung or not attempt.done:
            outcome.wrong.append(
                f"a start that nothing happened to ended with {attempt.codes}:\n"
                f"{attempt.output}"
            )

    def _check_end(self, model_dir: Path, outcome: Outcome) -> None:
        arrays, manifest = checkpoint.load_latest(str(model_dir)) or ({}, {"step": 0})
        model = {n: a for n, a in arrays.items() if n.startswith("model/")}
        if manifest["step"] != STEPS or checkpoint.weights_sha256(model) != self.sha256:
            outcome.wrong.append(
                f"ended at step {manifest['step']} with other weights than undisturbed"
            )
        found = chaos_run.losses(model_dir)
        other = [s for s, loss in self._losses.items() if found.get(s) != loss]
        # A full disk may cost lines of the log, and nothing else.
        if any(s in found for s in other) or (other and outcome.fault != "disk"):
            outcome.wrong.append(f"other losses than undisturbed in steps {other}")


def _await_moment(ranks: chaos_run.Running, fault: str, draws: random.Random) -> str:
    """Waits until a moment has come that is drawn; says which."""
    kind = draws.choice(("seconds", "step", "step", "save"))
    seconds = draws.uniform(0.0, 8.0)
    step = draws.randint(1, STEPS - 1)
    if fault == "disk":
        kind = "step"
    if kind == "seconds":
        ranks.wait(lambda: False, seconds)
        return f"{seconds:.1f} s after the start"
    ranks.wait(lambda: ranks.step() >= step, chaos_run.START_SECONDS)
    if kind == "step":
        return f"step {step}"
    saving = checkpoint.folder(str(ranks.model_dir))
    ranks.wait(lambda: any(saving.glob(".step-*")), 5.0)
    return f"while saving, after step {step}"


def _truncate(model_dir: Path, outcome: Outcome, draws: random.Random) -> None:
    """Cuts a file of the newest checkpoint at a random byte."""
    steps = checkpoint.steps(str(model_dir))
    if not steps:
        outcome.moment += ", no checkpoint yet"
        return
    folder = checkpoint.folder(str(model_dir)) / f"step-{steps[-1]}"
    path = draws.choice(sorted(folder.iterdir()))
    size = draws.randrange(path.stat().st_size)
    os.truncate(path, size)
    outcome.moment += f", {path.name} of step {steps[-1]} cut at byte {size}"


def _all_broken(model_dir: Path) -> bool:
    """Whether there are checkpoints, and none that can be read."""
    return bool(checkpoint.steps(str(model_dir))) and not chaos_run.newest(model_dir)


@contextlib.contextmanager
def _folder(model_dir: Path, small: bool) -> Iterator[Path]:
    """The run's, on a small disk of its own where that is asked for."""
    model_dir.mkdir(parents=True)
    disk = small_disk.mounted(model_dir, DISK_BYTES)
    try:
        with disk if small else contextlib.nullcontext():
            yield model_dir
    finally:
        shutil.rmtree(model_dir, ignore_errors=True)


def can_mount() -> bool:
    """Whether this process may make a disk."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk.mounted(Path(folder), 2**20):
                return True
        except OSError:
            return False


def table(outcomes: Sequence[Outcome]) -> str:
    """One row a fault, in Markdown."""
    rows = [
        "| fault | trainings | same hash at the end | hung | "
        "leave after, median and largest, s | steps done again, median and largest |",
        "|---|---|---|---|---|---|",
    ]
    by_fault = collections.defaultdict(list)
    for outcome in outcomes:
        by_fault[outcome.fault].append(outcome)
    for fault, of_it in by_fault.items():
        seconds = [o.seconds_to_leave for o in of_it]
        lost = [o.steps_lost for o in of_it]
        left = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
        rows.append(
            f"| {fault} | {len(of_it)} | {sum(not o.wrong for o in of_it)} | "
            f"{sum('hung' in w for o in of_it for w in o.wrong)} | "
            f"{'goes on' if fault in ('stall', 'disk') else left} | "
            f"{statistics.median(lost):g}, {max(lost)} |"
        )
    return "\n".join(rows)


def main(_: list[str]) -> int:
    """Runs all of it and writes the result. Returns the exit code."""
    values = flags.FLAGS
    kinds = [fault for fault in FAULTS if fault != "disk" or can_mount()]
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(values.parallel) as pool,
    ):
        chaos = Chaos(values.seed, values.processes, Path(folder))
        chaos.undisturbed()
        futures = [
            pool.submit(chaos.faulted, number, kinds[number % len(kinds)])
            for number in range(values.faults)
        ]
        for future in concurrent.futures.as_completed(futures):
            outcome = future.result()
            outcomes.append(outcome)
            told = "as it must be" if not outcome.wrong else "; ".join(outcome.wrong)
            print(
                f"{len(outcomes)}/{values.faults}  {outcome.fault} {outcome.moment}: "
                f"exit codes {outcome.codes}, {len(outcome.starts)} starts, "
                f"{outcome.steps_lost} steps done again: {told}",
                flush=True,
            )
            outcomes.sort(key=lambda o: o.number)
            wrong = sum(bool(outcome.wrong) for outcome in outcomes)
            result: dict[str, Any] = {
                "faults": len(outcomes),
                "same_hash": len(outcomes) - wrong,
                "left_out": [fault for fault in FAULTS if fault not in kinds],
                "sha256": chaos.sha256,
                "table": table(outcomes).splitlines(),
                "trainings": [dataclasses.asdict(outcome) for outcome in outcomes],
            }
            path = machine.write(values.result, result)
    print(f"{table(outcomes)}\n\nin {path}")
    return 1 if wrong else 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
