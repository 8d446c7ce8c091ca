"""Training on data in which records are broken (D5, D6)."""

import pictures
import pytest
from training import evaluations, final_hash, make_data, recipe, train

from tf_goyal import run_log


@pytest.fixture(scope="module")
def odd_data(tmp_path_factory):
    """D5, D6: odd images that are good, and in training four and one that are not."""
    folder = make_data(
        tmp_path_factory.mktemp("odd") / "set",
        120,
        50,
        files=3,
        instead={
            ("train", 3): pictures.cmyk(),
            ("train", 11): pictures.encode(pictures.pixels(20, 30), "PNG"),
            ("train", 17): pictures.rotated(),
            ("train", 5): pictures.truncated(),
            ("train", 45): b"",
            ("train", 77): pictures.undecodable(),
            ("validation", 20): pictures.truncated(),
        },
    )
    last = folder / "train-00002-of-00003"
    last.write_bytes(last.read_bytes()[:-10])
    return folder


def broken(model_dir):
    """What the log says of broken records: {(split, record): reason}."""
    return {
        (line["split"], line["record"]): (line["place"], line["why"])
        for line in run_log.read(str(model_dir))
        if line.get("event") == "broken_record"
    }


def test_broken_records_change_nothing_between_layouts(odd_data, tmp_path):
    """D5, D6: one process, three, and one after a stop: the same weights to the bit."""
    one, three = tmp_path / "one", tmp_path / "three"
    alone = train(recipe(odd_data, one))
    flags = recipe(odd_data, three, allreduce="auto")
    together = train(flags, flags, flags)
    assert [code for code, _ in alone + together] == [0] * 4, alone + together
    hashes = {final_hash(output) for _, output in alone + together}
    assert len(hashes) == 1
    named = broken(one)
    assert named == broken(three)
    assert set(named) == {("train", r) for r in (5, 45, 77, 119)} | {("validation", 20)}
    for (split, record), words in {
        ("train", 5): ("train-00000-of-00003, record 5", "cut off"),
        ("train", 45): ("train-00001-of-00003, record 5", "empty"),
        ("train", 77): ("train-00001-of-00003, record 37", "cannot be decoded"),
        ("train", 119): ("train-00002-of-00003, record 39", "10 bytes before"),
        ("validation", 20): ("validation-00000-of-00001, record 20", "cut off"),
    }.items():
        place, why = named[split, record]
        assert words[0] in place and words[1] in why
    assert [e["images"] for e in evaluations(one)] == [49] * 3
    assert "train-00000-of-00003, record 5 of the file" in alone[0][1]


@pytest.mark.parametrize(("most", "code"), [(4, 3), (5, 0)])
def test_too_many_broken_records_end_the_run_everywhere(odd_data, tmp_path, most, code):
    """D5: five are broken; --max_bad_records 4 and 5. Two processes, the same step."""
    flags = recipe(odd_data, tmp_path / "run", max_bad_records=most)
    results = train(flags, flags)
    assert [result for result, _ in results] == [code] * 2, results
    assert len({final_hash(output) for _, output in results}) == 1
    assert len(broken(tmp_path / "run")) == 5
    if code:
        last = run_log.read(str(tmp_path / "run"))[-1]
        assert last["event"] == "too_many_broken_records"
        named = {split: sorted(records) for split, records in last["records"].items()}
        assert named == {"train": [5, 45, 77, 119], "validation": [20]}
        assert "--max_bad_records" in results[0][1]
        assert "--max_bad_records" not in results[1][1]
