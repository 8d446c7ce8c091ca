"""Short lists of many hosts."""

import time

import pytest

from tf_goyal.host_list import MOST, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", "a"),
        ("a:1,b:2", "a:1 b:2"),
        (" a:1 , b:2 ", "a:1 b:2"),
        (
            "run-[0-2].run.svc:2222",
            "run-0.run.svc:2222 run-1.run.svc:2222 run-2.run.svc:2222",
        ),
        ("n[0-0]", "n0"),
        ("n[7]", "n7"),
        ("n[0-1,5,8-9]", "n0 n1 n5 n8 n9"),
        ("n[5,0-1]", "n5 n0 n1"),
        ("n[9-11]", "n9 n10 n11"),
        ("node[001-003,007]", "node001 node002 node003 node007"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[0-1]n[08-09]", "r0n08 r0n09 r1n08 r1n09"),
        ("[1-2]", "1 2"),
        ("h:[1-2]", "h:1 h:2"),
        ("a,n[0-1],b", "a n0 n1 b"),
        ("[::1]:2222,[2001:db8::1]:1", "[::1]:2222 [2001:db8::1]:1"),
        ("[::1]:[1-2]", "[::1]:1 [::1]:2"),
    ],
)
def test_expand(text, names):
    """Order, width of numbers, several brackets, and IPv6, which has a colon."""
    assert expand(text, "LIST") == names.split()


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,",
        ",a",
        "a,,b",
        "a, ,b",
        "n[0-1",
        "n0-1]",
        "n[[0-1]]",
        "n[0-1]]",
        "[",
    ],
)
def test_names_that_are_none(text):
    with pytest.raises(ValueError, match="^LIST must be names separated by commas"):
        expand(text, "LIST")


@pytest.mark.parametrize(
    "bracket",
    [
        "",
        "-",
        "0-",
        "-1",
        "1-0",
        "a",
        "a-b",
        "0-1-2",
        "0,",
        ",0",
        "0--1",
        "1.5",
        "٣",
        "9" * 10,
        "0-" + "9" * 10,
    ],
)
def test_brackets_that_hold_no_numbers(bracket):
    with pytest.raises(ValueError, match="^LIST must have numbers and rising ranges"):
        expand(f"n[{bracket}]", "LIST")


def test_as_many_as_there_may_be():
    assert len(expand(f"n[1-{MOST}]", "LIST")) == MOST
    assert len(expand("n[0-255]m[0-255]", "LIST")) == MOST
    assert len(expand(f"a,n[2-{MOST}]", "LIST")) == MOST


@pytest.mark.parametrize(
    "text",
    [
        f"n[0-{MOST}]",
        f"a,n[1-{MOST}]",
        f"n[1-{MOST}],a",
        "n[0-255]m[0-256]",
        "n[0-999999999]",
        "[0-999999999]" * 1000,
        f"n[{'0-65535,' * 9}0]",
    ],
)
def test_one_more(text):
    """Refused before anything is made of it."""
    began = time.process_time()
    with pytest.raises(ValueError, match=f"at most {MOST} names") as caught:
        expand(text, "LIST")
    assert time.process_time() - began < 5  # making them takes for ever
    assert len(str(caught.value)) < 200


def test_a_long_list_takes_time_by_its_length():
    """65,536 names written out, of more than a megabyte."""
    names = [f"node-{i:05d}.example:2222" for i in range(MOST)]
    assert expand(",".join(names), "LIST") == names
