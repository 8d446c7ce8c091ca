"""How a process of a run leaves because of another one, whatever holds it up."""

import pytest

SCRIPT = """
import sys, time, types
from tf_goyal import train
from tf_goyal.cluster import Cluster

train._LEAVING_SECONDS = 1.0
others = types.SimpleNamespace(
    tell_lost=lambda why: print("told lost:", why, flush=True),
    tell_failed=lambda why: print("told failed:", why, flush=True),
)
def write(kind, event, why):
    print(event, why, flush=True)
    if "hang" in sys.argv:
        time.sleep(600)  # storage that does not answer
log = types.SimpleNamespace(write=write, close=lambda: None)
trainer = types.SimpleNamespace(log=log, writer=None)
members = Cluster(("a:1", "b:1"), 1)
match sys.argv[1]:
    case "stop":
        train._stop_unsaved(trainer, "rank 1 of 2", "it is gone")
    case code:
        train._leave(trainer, members, others, "it is gone", code=int(code))
"""


@pytest.mark.parametrize("hang", [(), ("hang",)])
@pytest.mark.parametrize(
    ("code", "event", "says", "told"),
    [
        (138, "peer_lost", "rank 1 of 2: a peer was lost: it is gone", "told lost"),
        (3, "input_failed", "rank 1 of 2: the input failed: it is gone", "told failed"),
    ],
)
def test_the_reason_is_said_logged_and_told(python, hang, code, event, says, told):
    """F1's kind: hung storage must not keep a process for which all others wait."""
    done = python("-c", SCRIPT, str(code), *hang)
    assert done.returncode == code
    assert says in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{event} it is gone"
    assert lines[1:] == ([] if hang else [f"{told}: it is gone"])


@pytest.mark.parametrize("hang", [(), ("hang",)])
def test_one_that_was_asked_to_stop_says_why_nothing_was_saved(python, hang):
    """F2, F1: its peer was killed before all had agreed on a step."""
    done = python("-c", SCRIPT, "stop", *hang)
    assert done.returncode == 143
    assert (
        "asked to stop, but a peer left before all had agreed on a step" in done.stderr
    )
    assert done.stdout.splitlines() == ["stop_unsaved it is gone"]
