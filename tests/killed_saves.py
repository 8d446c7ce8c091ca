"""Saves that are killed, for test_checkpoint_killed.py; this process has one thread.

python killed_saves.py operations FOLDER: kills a save before each of its operations on
files in turn; `again` does so with the save of a step that is there already; `moments`
kills saves at random moments. Prints, as a JSON list, what each kill left: {"before",
"step", "metadata", "right"}.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

from tf_goyal import checkpoint

KILLS = 15  # at random moments
NUMBERS = 2**20


def arrays(step):
    return {"model/w": np.full(NUMBERS, step, np.float32), "optimizer/v": np.ones(3)}


def killed_before(number: int, folder: Path) -> str | None:
    """Saves step 2 in a child, killed before its `number`-th operation in `folder`.

    Returns:
      The operation, or None where the save had fewer.
    """
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        left = number

        def hook(event, arguments):
            nonlocal left
            if not event.startswith(("open", "os.", "shutil.")):
                return
            if isinstance(arguments[0], (str, os.PathLike)):
                path = Path(arguments[0])
                # What is not absolute is relative to a folder that is being removed.
                left -= not path.is_absolute() or path.is_relative_to(folder)
                if left == 0:
                    os.write(tell, f"{event} {path.name}".encode())
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        checkpoint.save(folder, 2, arrays(2), {"again": True}, keep=1)
        os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with os.fdopen(told) as pipe:
        return pipe.read() or None


def left(folder: Path) -> dict:
    """What a restart finds, and whether it can go on from there."""
    found, manifest = checkpoint.load_latest(folder)
    step = manifest["step"]
    right = all(np.array_equal(found[n], a) for n, a in arrays(step).items())
    checkpoint.save(folder, step + 1, arrays(step + 1), {}, keep=1)
    names = sorted(os.listdir(checkpoint.folder(folder)))
    right = right and names == [f"step-{step + 1}"]
    return {"step": step, "metadata": manifest["metadata"], "right": right}


def operations(folder: Path, there: int = 1) -> list[dict]:
    """A kill before each operation of a save of step 2 where step `there` is."""
    found = []
    while True:
        run = folder / str(len(found))
        checkpoint.save(run, there, arrays(there), {}, keep=1)
        before = killed_before(len(found) + 1, run)
        if before is None:
            return found
        found.append({"before": before, **left(run)})
        shutil.rmtree(run)


def again(folder: Path) -> list[dict]:
    """The same where step 2 is, with other metadata."""
    return operations(folder, there=2)


def moments(folder: Path) -> list[dict]:
    """Kills of a child that saves one step after the other."""
    generator, found = random.Random(5), []
    for _ in range(KILLS):
        shutil.rmtree(folder / "run", ignore_errors=True)
        checkpoint.save(folder / "run", 1, arrays(1), {}, keep=1)
        child = os.fork()
        if child == 0:
            for step in range(2, 10**6):
                checkpoint.save(folder / "run", step, arrays(step), {}, keep=1)
        seconds = generator.uniform(0, 0.1)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found.append({"before": seconds, **left(folder / "run")})
    return found


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    kinds = {"operations": operations, "again": again, "moments": moments}
    print(json.dumps(kinds[kind](Path(where))))
