"""Storage that is slower than training, and than the others' patience."""

import contextlib

from training import DEADLINE, final_hash, recipe, started

from tf_goyal import checkpoint, run_log
from tf_goyal.launch import free_ports

# `train`, whose every checkpoint takes a while to reach the disk.
SLOW = """
import runpy, time
from tf_goyal import files

sync = files.sync

def slow(file):
    if "variables" in str(file.name):
        time.sleep(8)
    sync(file)

files.sync = slow
runpy.run_module("tf_goyal.train", run_name="__main__", alter_sys=True)
"""


def test_a_save_slower_than_collective_timeout_loses_nobody(
    data, tmp_path, monkeypatch
):
    """F6's kind: what cannot be written meanwhile is skipped, and the last one waits.

    It waits for the one of step 1, and then takes its own time: 16 s for the other,
    which counts a peer as lost after 12.
    """
    model_dir, ports = tmp_path / "run", free_ports(2)
    flags = recipe(
        *(data, model_dir),
        steps=4,
        eval_every=0,
        checkpoint_every=0.01,
        collective_timeout=12,
    )
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)  # where "python -m" looks first
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(started(module, flags, rank, ports))
            for rank, module in enumerate(("slow", "tf_goyal.train"))
        ]
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)
    assert final_hash(outputs[0]) == final_hash(outputs[1])
    skipped = [
        line["step"]
        for line in run_log.read(str(model_dir))
        if line.get("event") == "checkpoint_skipped"
    ]
    saved = checkpoint.steps(model_dir)
    assert sorted(skipped + saved) == [1, 2, 3, 4] and 4 in saved and skipped
    assert f"not saved at step {skipped[0]}: " in outputs[0]
