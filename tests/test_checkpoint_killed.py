"""F3: saves ended by a real SIGKILL."""

import json
from pathlib import Path

SCRIPT = Path(__file__).with_name("killed_saves.py")


def test_f3_a_save_killed_before_each_of_its_operations(python, tmp_path):
    """F3: either checkpoint is complete, the next save cleans up after the killed."""
    done = python(SCRIPT, "operations", tmp_path, seconds=300)
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    operations = [kill["before"].split()[0] for kill in kills]
    assert {"open", "os.mkdir", "os.rename", "os.remove"} <= set(operations)
    assert all(kill["right"] for kill in kills), kills
    # The old one is there until the new one is, and from then on the new one is.
    steps = [kill["step"] for kill in kills]
    assert steps == sorted(steps) and set(steps) == {1, 2}
    renamed = kills[steps.index(2) - 1]["before"]
    assert renamed.startswith("os.rename .step-2-")


def test_f3_the_save_of_a_step_that_is_there_killed_likewise(python, tmp_path):
    """F3: there is no moment without it, though the older ones may be gone."""
    done = python(SCRIPT, "again", tmp_path, seconds=300)
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert len(kills) > 10
    assert all(kill["right"] and kill["step"] == 2 for kill in kills), kills
    told = [kill["metadata"] for kill in kills]
    assert told[0] == {} and told[-1] == {"again": True}


def test_f3_saves_killed_at_random_moments(python, tmp_path):
    """F3: kill -9 during a save, in the middle of its writes too."""
    done = python(SCRIPT, "moments", tmp_path, seconds=300)
    assert done.returncode == 0, done.stderr
    assert all(kill["right"] for kill in json.loads(done.stdout)), done.stdout
