"""What processes must have alike, and how a difference is told."""

import dataclasses
import json
import types

import numpy as np
import pytest

from tf_goyal import config, datasets, facts, provenance, train

SETTINGS = config.Config(model_dir="run", dataset="digits", global_batch=64)
WORKERS = "a:2222", "b:2222", "c:2222"


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def told_by(settings, data):
    return facts.describe(settings, data, provenance.describe(settings, data, 3))


def compare(*said, workers=WORKERS):
    """What rank 0 finds; the others' words are given to its `gather`."""
    rounds = iter(range(2))

    def gather(value):
        if next(rounds) == 0:  # digests: whether any differ
            others = [value if each == said[0] else "other" for each in said[1:]]
            return [value, *others]
        return list(said)

    return facts.differences(said[0], workers, gather)


@pytest.mark.parametrize(("theirs", "refused"), [(7, True), (8, False), (9, True)])
def test_another_number_of_devices_is_refused_by_rank(theirs, refused):
    """S7's kind: a host that has lost one of its GPUs."""
    members = types.SimpleNamespace(workers=WORKERS)
    here, there = ({"number of devices": str(count)} for count in (8, theirs))

    def gather(value):
        return [value, there if isinstance(value, dict) else str(theirs), value]

    others = types.SimpleNamespace(
        gather=lambda value: gather(value if isinstance(value, dict) else "8")
    )
    if refused:
        why = f"devices is 8 on ranks 0 .*, 2 .*, {theirs} on rank 1 .b:2222."
        with pytest.raises(ValueError, match=why):
            train._refuse_differences(here, members, others)
    else:
        train._refuse_differences(here, members, others)


def test_alike_is_no_difference():
    assert compare({"x": "1"}, {"x": "1"}, {"x": "1"}) == []


def test_every_difference_is_told_by_name_with_the_values_of_the_ranks(digits):
    """S7: flags, and what follows from them."""
    other = dataclasses.replace(SETTINGS, global_batch=32, seed=7)
    one, two = told_by(SETTINGS, digits), told_by(other, digits)
    found = compare(one, two, one)
    assert found[:2] == [
        "--global_batch is 64 on ranks 0 (a:2222), 2 (c:2222), 32 on rank 1 (b:2222)",
        "--seed is 0 on ranks 0 (a:2222), 2 (c:2222), 7 on rank 1 (b:2222)",
    ]
    assert any(text.startswith("total steps is ") for text in found)


@pytest.mark.parametrize(
    "name", ["model_dir", "data_dir", "cache", "worker_hosts", "run_token_file"]
)
def test_paths_and_what_fits_one_machine_may_differ(digits, name):
    other = dataclasses.replace(SETTINGS, **{name: "elsewhere"})
    assert told_by(other, digits) == told_by(SETTINGS, digits)


def test_every_flag_is_compared_or_known_to_be_a_processs_own():
    names = {field.name for field in dataclasses.fields(config.Config)}
    assert facts._OWN <= names


def test_other_records_differ_even_where_their_number_is_the_same(digits):
    """The same images in other files are read in another order."""
    split = digits.train
    one = told_by(SETTINGS, digits)

    class Moved:
        name, files, bytes = split.name, split.files, split.bytes
        part_sizes = np.array([len(split) - 1, 1])

        def __len__(self):
            return len(split)

    two = told_by(SETTINGS, dataclasses.replace(digits, train=Moved()))
    (found,) = compare(one, two, one)
    assert found.startswith("index of the train files is ")


def test_a_version_that_is_older_is_named(digits):
    one = told_by(SETTINGS, digits)
    two = {**one, "version of keras": json.dumps("3.0.0")}
    (found,) = compare(one, one, two)
    assert found.startswith("version of keras is ") and '"3.0.0" on rank 2' in found


def test_what_only_some_know_is_a_difference():
    found = compare({"x": "1"}, {"x": "1", "new": "2"}, {"x": "1"})
    assert found == [
        "new is not there on ranks 0 (a:2222), 2 (c:2222), 2 on rank 1 (b:2222)"
    ]


def test_a_long_value_is_shortened_and_still_differs(digits):
    """The names of a thousand classes would be most of what is sent."""
    names = tuple(f"class {i}" for i in range(1000))
    one = told_by(SETTINGS, dataclasses.replace(digits, labels=names))
    other = (*names[:-1], "another class")
    two = told_by(SETTINGS, dataclasses.replace(digits, labels=other))
    assert one["labels"] != two["labels"]
    assert all(len(value) <= 101 for value in one.values())


def test_the_text_is_bounded_for_many_ranks():
    many = [{"x": str(rank % 100) * 50} for rank in range(256)]
    (found,) = compare(*many, workers=[f"host-{rank}:2222" for rank in range(256)])
    assert len(found) < 1000
    assert found.endswith("and 97 more values")
    most = [{"x": "1"}] * 255 + [{"x": "2"}]
    (found,) = compare(*most, workers=[f"host-{rank}:2222" for rank in range(256)])
    assert found == (
        "x is 1 on ranks 0 (host-0:2222), 1 (host-1:2222), 2 (host-2:2222) and 252 "
        "more, 2 on rank 255 (host-255:2222)"
    )
