import threading

import numpy as np
import pytest

from tf_goyal.broken_records import BrokenRecords


class Layout:
    """Stands for the devices of one process."""

    def __init__(self, local):
        self.local = range(local)


def alone(rows):
    return rows.sum(0)


class Sum:
    """The sum over some threads that stand for processes."""

    def __init__(self, processes):
        self._barrier = threading.Barrier(processes, timeout=120)
        self._rows = []

    def __call__(self, rows):
        self._rows.append(rows.sum(0))
        self._barrier.wait()
        total = sum(self._rows)
        if self._barrier.wait() == 0:
            self._rows.clear()
        self._barrier.wait()
        return total


def numbers(*values):
    return np.array(values, np.int64)


def test_two_processes_learn_of_each_others_records():
    """D6: rank 1 has two devices and finds record 0; rank 0 finds 2^40."""
    total = Sum(2)
    accounts = [BrokenRecords(5, total, Layout(devices)) for devices in (1, 2)]
    found = [(numbers(2**40), numbers(1)), (numbers(0, 7), numbers(4, 5))]
    new: list[list[int]] = [[], []]

    def process(rank):
        new[rank] = accounts[rank].add("train", *found[rank], size=6)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert new == [[0, 7, 2**40]] * 2
    assert accounts[0].as_json() == accounts[1].as_json() == {"train": [0, 7, 2**40]}


def test_a_record_is_new_once():
    account = BrokenRecords(5, alone, Layout(1), {"train": [3]})
    assert account.add("train", numbers(3, 4), numbers(0, 1), 8) == [4]
    assert account.add("train", numbers(4), numbers(7), 8) == []
    assert account.add("validation", numbers(4), numbers(4), 8) == [4]
    assert account.as_json() == {"train": [3, 4], "validation": [4]}


@pytest.mark.parametrize(("records", "too_many"), [(1, False), (2, False), (3, True)])
def test_the_bound_is_over_both_splits(records, too_many):
    """D5: --max_bad_records=2, one below, at it and one above."""
    account = BrokenRecords(2, alone, Layout(1), {"validation": [0]})
    found = numbers(*range(records - 1))
    account.add("train", found, found, 8)
    assert account.too_many == too_many


def test_none_is_allowed():
    account = BrokenRecords(0, alone, Layout(1))
    assert not account.too_many
    account.add("train", numbers(0), numbers(0), 1)
    assert account.too_many
