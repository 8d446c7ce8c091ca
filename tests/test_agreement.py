import numpy as np
import pytest

from tf_goyal import agreement


class Layout:
    """Stands for one device in each of three processes."""

    local, devices = range(1), 3


def rows(said):
    """What one process adds to the sum."""
    found = []
    agreement.differences(said, lambda row: found.append(row) or row[0], Layout)
    return found[0]


def differences(*processes):
    total = np.sum([rows(said) for said in processes], 0)[0]
    return [
        agreement.differences(said, lambda row: total, Layout) for said in processes
    ]


def test_nothing_differs():
    assert differences(*[{"a": "1", "b": ""}] * 3) == [[], [], []]


@pytest.mark.parametrize("who", [0, 1, 2])
def test_everybody_learns_what_differs(who):
    """S7: by name, whoever it is that differs."""
    said = [{"--seed": "0", "--base_lr": "0.1", "data": "x"} for _ in range(3)]
    said[who] = {"data": "x", "--seed": "1", "--base_lr": "0.10"}
    assert differences(*said) == [["--base_lr", "--seed"]] * 3


def test_several_devices_of_a_process_say_the_same():
    class Two:
        local, devices = range(2), 2

    assert agreement.differences({"a": "1"}, lambda row: row.sum(0), Two) == []
