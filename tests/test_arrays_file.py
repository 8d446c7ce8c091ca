"""Arrays in an .npz file, and files that are none."""

import io
import math
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tf_goyal import arrays_file

ARRAYS = {
    "a/matrix": np.float32([[1.0, 2.0], [3.0, 4.0]]),
    "b/scalar": np.int64(7),
    "c/nothing": np.zeros([0, 3], np.float32),
    "d/turned": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
    "é": np.array([True, False]),
}
ABOUT = arrays_file.describe(ARRAYS)


class _Only:
    """A file that can only be written to, as a store's."""

    def __init__(self):
        self.content = b""

    def write(self, data):
        self.content += bytes(data)
        return len(data)

    def flush(self):
        pass


def written(arrays) -> bytes:
    file = _Only()
    arrays_file.write(file, arrays)
    return file.content


def savez(**arrays) -> io.BytesIO:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize("block", [1, 7, 2**24])
def test_what_was_written_comes_back_and_numpy_reads_it(monkeypatch, block):
    monkeypatch.setattr(arrays_file, "_BLOCK", block)
    file = io.BytesIO(written(ARRAYS))
    ours = arrays_file.read(file, ABOUT)
    file.seek(0)
    theirs = np.load(file, allow_pickle=False)
    assert list(ours) == list(ARRAYS) and sorted(theirs.files) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        for found in (ours[name], theirs[name]):
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype and found.shape == array.shape


def test_numpys_own_file_is_read():
    found = arrays_file.read(savez(**ARRAYS), ABOUT)
    np.testing.assert_array_equal(found["d/turned"], ARRAYS["d/turned"])


def test_a_description_is_json_for_people():
    assert ABOUT["a/matrix"] == {"shape": [2, 2], "dtype": "float32"}
    assert ABOUT["b/scalar"] == {"shape": [], "dtype": "int64"}


@pytest.mark.parametrize(
    "array", [np.array([{}]), np.zeros(2, ml_dtypes.bfloat16), np.array(["text"])]
)
def test_what_npz_cannot_hold_is_refused(array):
    with pytest.raises(ValueError, match=r"variable odd .*but is"):
        written({"odd": array})


def refusal(file, about):
    """The sentence with which a file is refused."""
    with pytest.raises(ValueError) as caught:
        arrays_file.read(file, about)
    return str(caught.value)


def test_every_cut_is_refused():
    whole = written({"a": np.arange(5.0)})
    about = {"a": {"shape": [5], "dtype": "float64"}}
    assert arrays_file.read(io.BytesIO(whole), about)["a"].tolist() == [0, 1, 2, 3, 4]
    for size in range(len(whole)):
        assert refusal(io.BytesIO(whole[:size]), about)


def test_names_are_those_described():
    one = {"a": {"shape": [], "dtype": "float64"}}
    assert "differ in ['b']" in refusal(savez(a=0.0, b=0.0), one)
    assert "differ in ['a']" in refusal(savez(), one)
    assert "['a', 'b']" in refusal(savez(b=0.0), one)
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as archive, pytest.warns(UserWarning):
        archive.writestr("a.npy", bytes(200))
        archive.writestr("a.npy", bytes(200))
    assert "twice" in refusal(twice, one)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [([3], "float32"), ([2, 1], "float32"), ([2], "int32"), ([2], "float16")],
)
def test_shape_and_type_are_those_described(shape, dtype):
    file = savez(a=np.float32([1, 2]), room=np.zeros(9))
    about = {"shape": shape, "dtype": dtype}
    said = refusal(file, {"a": about, "room": {"shape": [9], "dtype": "float64"}})
    assert said.startswith("array a is ((2,), dtype('float32')), described as ")


def test_a_bomb_is_refused_before_anything_is_allocated():
    """A small file of 2**50 numbers, by its description and by its own header."""
    big = {"a": {"shape": [2**50], "dtype": "float64"}}
    said = refusal(savez(a=np.zeros(1)), big)
    assert said.startswith(f"{2**53} bytes of arrays cannot be in")
    # Its twin of negative size would make up for it.
    twin = {"b": {"shape": [-(2**50)], "dtype": "float64"}}
    assert "cannot be in" in refusal(savez(a=0.0, b=0.0), big | twin)

    bomb = io.BytesIO()
    header = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (2**50,)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(2**20))
    said = refusal(bomb, {"a": {"shape": [1], "dtype": "float64"}})
    assert said.startswith(f"array a is (({2**50},), ")


@pytest.mark.parametrize(
    "about",
    [
        {"a": None},
        {"a": {}},
        {"a": {"shape": 1, "dtype": "float64"}},
        {"a": {"shape": ["x"], "dtype": "float64"}},
        {"a": {"shape": [math.nan], "dtype": "float64"}},
        {"a": {"shape": [1], "dtype": "no such"}},
        {"a": {"shape": [1], "dtype": "f8,("}},
        {"a": {"shape": [1], "dtype": "object"}},
        {"a": {"shape": [1], "dtype": 5}},
    ],
)
def test_a_description_that_says_nothing_is_refused(about):
    assert refusal(savez(a=np.zeros(1)), about)


def test_nothing_is_unpickled():
    file = io.BytesIO()
    np.savez(file, a=np.array([{"a": 1}], object))
    said = refusal(file, {"a": {"shape": [1], "dtype": "object"}})
    assert "allow_pickle=False" in said
