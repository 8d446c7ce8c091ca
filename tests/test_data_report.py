"""doctor --full: what is found in records that the tests made, counted by hand."""

import json
import sys

import numpy as np
import pytest
from pictures import (
    cmyk,
    encode,
    jpeg,
    pixels,
    rotated,
    truncated,
    undecodable,
    write_shards,
)
from PIL import Image

from tf_goyal import (
    data_report,
    doctor,
    doctor_tables,
    flags,
    input_pipeline,
    memory_cache,
    records,
)
from tf_goyal.datasets import Dataset
from tf_goyal.image_folder import FolderSplit
from tf_goyal.records import BadRecord
from tf_goyal.shards import ShardSplit

CLASSES = ("ant", "bee", "cat", "dog")


def grey(height: int = 40, width: int = 56) -> bytes:
    return encode(Image.fromarray(pixels(height, width)).convert("L"))


# Images, labels and whether they are good.
TRAIN = [
    (jpeg(40, 56), 0, True),
    (cmyk(40, 56), 0, True),
    (encode(pixels(30, 20), "PNG"), 1, True),  # named .JPEG in the original
    (grey(40, 56), 1, True),
    (rotated(40, 56), 1, True),
    (truncated(40, 56), 1, False),
    (b"", 1, False),
    (undecodable(), 2, False),  # so class 2 has no image
    (jpeg(200, 100), 3, True),
    (jpeg(40, 56, seed=1), 3, False),  # a byte of it is flipped below
    (encode(Image.new("P", (10, 12)), "GIF"), 3, True),
    (encode(pixels(9, 14), "BMP"), 3, True),
    (jpeg(40, 56), 3, False),  # the end of the file is cut off below
]


def spoiled(path) -> None:
    """D6: flips a byte of record 9, and cuts 10 bytes off the end."""
    index = records.index_files([str(path)])
    data = bytearray(path.read_bytes())
    data[int(index.offset[9]) + 300] ^= 0xFF
    path.write_bytes(data[:-10])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The images of `TRAIN` in one shard, and four good ones in two."""
    folder = tmp_path_factory.mktemp("data")
    images, labels, _ = zip(*TRAIN)
    (path,) = write_shards(folder, images, 1, "train", labels)
    spoiled(path)
    write_shards(folder, [jpeg(8, 8)] * 4, 2, "validation", [3, 2, 1, 0])
    (folder / "labels.txt").write_text("\n".join(CLASSES) + "\n")
    return folder


def split(folder, name: str) -> ShardSplit:
    files = sorted(str(path) for path in folder.glob(f"{name}-*"))
    return ShardSplit(name, records.index_files(files))


@pytest.fixture(scope="module")
def data(folder) -> Dataset:
    parts = (split(folder, name) for name in ("train", "validation"))
    return Dataset("tfrecord", *parts, CLASSES)


@pytest.fixture(scope="module")
def reading(data) -> dict:
    return data_report.read(data, label_offset=0, dct="fast", threads=2)


def test_d5_d6_broken_records_are_named(data, reading):
    """D5, D6: the place and the reason, which are those of training."""
    train = reading["train"]
    broken = {each["record"]: each for each in train["broken"]}
    assert sorted(broken) == [r for r, (*_, good) in enumerate(TRAIN) if not good]
    for record, each in broken.items():
        assert each["place"] == data.train.where(record)
        assert each["reason"] == input_pipeline.fault(data.train, record)
    for record, part in {
        5: "cut off",
        6: "empty",
        7: "cannot be decoded",
        9: "checksum",
        12: "ends 10 bytes before",
    }.items():
        assert part in broken[record]["reason"]
    for record in set(range(len(TRAIN))) - set(broken):
        assert input_pipeline.fault(data.train, record) is None
    assert reading["validation"]["broken"] == []


def test_counts_by_hand(reading):
    train = reading["train"]
    assert train["records"] == 13
    assert train["images_per_class"] == [2, 3, 0, 3]
    assert train["images_of_a_class"] == {"smallest": 0, "median": 2.5, "largest": 3}
    assert train["classes_without_images"] == ["cat"]
    assert train["labels_out_of_range"] == {"records": 0, "first": ""}
    # 40x56 four times, 30x20, 200x100, 12x10 and 9x14.
    assert train["height"] == {"smallest": 9, "median": 40, "largest": 200}
    assert train["width"] == {"smallest": 10, "median": 56, "largest": 100}
    assert train["most_pixels"] == 200 * 100
    assert train["formats"] == {
        "JPEG, colour": 3,
        "JPEG, CMYK": 1,
        "JPEG, grey": 1,
        "PNG, colour": 1,
        "GIF": 1,
        "BMP": 1,
    }
    assert train["orientations"] == {"6": 1}
    validation = reading["validation"]
    assert validation["images_per_class"] == [1, 1, 1, 1]
    assert validation["formats"] == {"JPEG, colour": 4}
    assert validation["orientations"] == {}
    for each in reading.values():
        assert each["seconds"] > 0
        rate = each["records"] / each["seconds"]
        assert each["images_per_second"] == pytest.approx(rate)
    size = sum(len(image) for image, _, good in TRAIN if good)
    assert train["bytes_per_second"] == pytest.approx(size / train["seconds"])
    json.dumps(reading)


@pytest.mark.parametrize(
    ("offset", "wrong", "first"),
    [(1, 2, "is 0"), (-1, 3, "is 3"), (4, 8, "is 0")],
)
def test_labels_out_of_range(data, offset, wrong, first):
    """D7: labels 0 to 3 of 2, 3, 0 and 3 good images."""
    found = data_report.read(data, label_offset=offset, dct="fast", threads=1)
    labels = found["train"]["labels_out_of_range"]
    assert labels["records"] == wrong
    assert first in labels["first"] and "--label_offset" in labels["first"]
    assert sum(found["train"]["images_per_class"]) == 8 - wrong
    good = dict(doctor_tables._read_split(found["train"]))["good"]
    assert good == f"{8 - wrong} of 13 records"
    with pytest.raises(ValueError) as caught:
        doctor.refuse_failures({"reading": found, "max_bad_records": 100})
    text = str(caught.value)
    assert f"train-00000-of-00001, record {0 if offset > 0 else 8} of the file" in text
    assert f"its label {first}, but must be {offset} to {offset + 3} with" in text
    assert "repair this record or labels.txt, or set --label_offset if all are" in text


class Generated:
    """A split that makes its records, and knows how often each was read."""

    files, bytes = ("nowhere",), 0

    def __init__(self, name: str, images: int, broken: frozenset[int] = frozenset()):
        self.name = name
        self.part_sizes = np.array([images])
        self._broken, self._image = broken, jpeg(8, 8)
        self.read_times = np.zeros(images, int)

    def __len__(self):
        return int(self.part_sizes.sum())

    def read(self, record):
        self.read_times[record] += 1
        if record in self._broken:
            raise BadRecord(f"of {record}")
        return self._image, record % 2

    def will_read(self, record):
        pass

    def where(self, record):
        return f"place {record}"


@pytest.mark.parametrize("images", [1, 31, 32, 33, 64, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_record_once_whatever_the_threads(images, threads):
    train, validation = Generated("train", images), Generated("validation", 5)
    data = Dataset("tfrecord", train, validation, ("a", "b"))
    found = data_report.read(data, label_offset=0, dct="exact", threads=threads)
    assert found["train"]["images_per_class"] == [(images + 1) // 2, images // 2]
    assert (train.read_times == 1).all() and (validation.read_times == 1).all()


def test_everything_is_broken():
    train = Generated("train", 70, frozenset(range(70)))
    data = Dataset("x", train, Generated("validation", 1), ("a", "b"))
    train = data_report.read(data, label_offset=0, dct="fast", threads=2)["train"]
    assert [each["record"] for each in train["broken"]] == list(range(70))
    assert [each["reason"] for each in train["broken"]] == [
        f"of {record}" for record in range(70)
    ]
    assert train["height"] is None and train["most_pixels"] == 0
    assert train["formats"] == {}
    text = dict(row for row in doctor_tables._read_split(train))
    assert text["good"] == "0 of 70 records"
    assert text["height, pixels"] == "none"


def test_a_folder_per_class(tmp_path):
    """Where a broken image lies is its path."""
    for name, image in (("a/1.jpg", jpeg(8, 8)), ("b/1.jpg", b""), ("b/2.jpg", b"x")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(image)
    folders = [str(tmp_path / name) for name in "ab"]
    train = FolderSplit("train", folders, [0, 1], [["1.jpg"], ["1.jpg", "2.jpg"]])
    data = Dataset("folder", train, Generated("validation", 1), ("a", "b"))
    found = data_report.read(data, label_offset=0, dct="fast", threads=2)["train"]
    assert [(each["place"], each["reason"]) for each in found["broken"]] == [
        (str(tmp_path / "b/1.jpg"), "the file is empty"),
        (str(tmp_path / "b/2.jpg"), "the image is no JPEG, PNG, GIF or BMP"),
    ]


def test_only_so_much_waits_at_once():
    """Flat memory: a result is made only when those before it are nearly all taken."""
    made = []

    class Now:
        def submit(self, function, item):
            made.append(item)
            return type("Future", (), {"result": lambda _: function(item)})()

    results = data_report._in_order(Now(), lambda item: item, range(100), 4)
    for number, result in enumerate(results):
        assert result == number
        assert len(made) <= number + 4
    assert number == 99


def test_flat_memory():
    """What is kept of a record does not depend on its bytes."""
    split = Generated("train", 10_000)
    tally = data_report.Tally(split, ("a", "b"), 0)
    header = data_report.ImageHeader("JPEG", 30, 20, 3)
    for record in range(len(split)):
        tally.add(data_report._Image(record % 2, header, 100_000))
    kept = [value for value in vars(tally).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in kept) == 2 * 8 + 10_000 * 2 * 4
    others = [value for value in vars(tally).values() if hasattr(value, "keys")]
    assert sum(map(len, others)) == 1  # one format
    assert sum(map(sys.getsizeof, others)) < 1000


def test_tables(reading, capsys):
    broken = {"place": "somewhere", "reason": "[red]"}
    many = dict(reading["validation"], broken=[broken] * 18, records=22)
    tables = doctor_tables._reading({"train": reading["train"], "validation": many})
    assert [table.title for table in tables] == [
        "Every record of train",
        "Every record of validation",
        "Broken records: 23",
    ]
    rows = dict(tables[0].rows)
    assert rows["good"] == "8 of 13 records"
    assert rows["images a class"] == "0 to 3, median 2.5"
    assert rows["classes without images"] == "cat"
    assert rows["labels out of range"] == "0"
    assert rows["height, pixels"] == "9 to 200, median 40"
    assert rows["formats"].startswith("3 JPEG, colour; ")
    assert "1 of orientation 6: ignored in training" in rows["turned by EXIF"]
    assert dict(tables[1].rows)["turned by EXIF"] == "none"
    assert len(tables[2].rows) == 21
    assert tables[2].rows[-1][0] == "and 3 more"


def test_many_classes_without_images(reading):
    names = [f"class {i}" for i in range(23)]
    split = reading["train"] | {"classes_without_images": names}
    text = dict(doctor_tables._read_split(split))["classes without images"]
    assert text.endswith("class 19 and 3 more")
    split["classes_without_images"] = names[:20]
    text = dict(doctor_tables._read_split(split))["classes without images"]
    assert text.endswith("class 19")


@pytest.mark.parametrize("most", [4, 5, 6])
def test_more_broken_than_allowed(reading, most):
    """Five are broken."""
    facts = {"reading": reading, "max_bad_records": most}
    facts["storage"] = {"free_bytes": 1, "needed_bytes": 0}
    if most >= 5:
        doctor.refuse_failures(facts)
        return
    with pytest.raises(ValueError) as caught:
        doctor.refuse_failures(facts)
    text = str(caught.value)
    assert "at most --max_bad_records=4 records may be broken, but 5 are" in text
    for part in ("record 5 of", "cut off", "record 6 of", "record 7 of", "2 more"):
        assert part in text
    assert "record 9 of" not in text and "\n" not in text


def test_a_record_is_fetched_while_others_are_read():
    """A thread names all the records of its chunk before it reads the first."""

    class Told(Generated):
        calls = ()

        def will_read(self, record):
            self.calls += (("fetch", record),)

        def read(self, record):
            self.calls += (("read", record),)
            return super().read(record)

    train, validation = Told("train", 40), Generated("validation", 1)
    data_report.read(
        Dataset("x", train, validation, ("a", "b")),
        label_offset=0,
        dct="fast",
        threads=1,
    )
    chunks = (range(32), range(32, 40))
    both = ("fetch", "read")
    assert train.calls == tuple((c, r) for chunk in chunks for c in both for r in chunk)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("good", [0, 1])
def test_d5_a_split_without_a_good_image(split, good):
    """Refused however many may be broken."""
    parts = {"train": Generated("train", 3), "validation": Generated("validation", 3)}
    parts[split] = Generated(split, 3, frozenset(range(3 - good)))
    data = Dataset("x", parts["train"], parts["validation"], ("a", "b"))
    facts = {"reading": data_report.read(data, label_offset=0, dct="fast", threads=1)}
    facts["max_bad_records"] = 1000
    facts["storage"] = {"free_bytes": 1, "needed_bytes": 0}
    if good:
        doctor.refuse_failures(facts)
        return
    with pytest.raises(ValueError) as caught:
        doctor.refuse_failures(facts)
    text = str(caught.value)
    assert f"the {split} split must have good records, but none of its 3 is" in text
    assert "the first one being place 0 (of 0)" in text


def test_d5_doctor_refuses_a_split_that_cannot_be_decoded(
    tmp_path, monkeypatch, capsys
):
    """Its headers are in order, so that it is found by decoding only."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    write_shards(tmp_path, [jpeg(8, 8)] * 8, 1, "train", [0, 1] * 4)
    write_shards(tmp_path, [undecodable()] * 2, 1, "validation", [0, 1])
    (tmp_path / "labels.txt").write_text("ant\nbee\n")
    code, _, errors = doctor_on(tmp_path, capsys, "--full", "--max_bad_records=99")
    assert code == 2
    (line,) = errors.splitlines()
    assert line.startswith("doctor: the validation split must have good records")
    assert "validation-00000-of-00001, record 0 of the file" in line


def doctor_on(folder, capsys, *arguments: str) -> tuple[int, str, str]:
    argv = ["doctor", "--recipe=digits", "--dataset=tfrecord", f"--data_dir={folder}"]
    sizes = ["--global_batch=8", "--worker_batch=4", f"--model_dir={folder}/run"]
    with pytest.raises(SystemExit) as caught:
        flags.run(doctor.main, [*argv, *sizes, *arguments], define=doctor.define)
    out, errors = capsys.readouterr()
    return caught.value.code, out, errors


def test_d5_d6_doctor_tells_and_refuses(folder, monkeypatch, capsys):
    """The tables, then one sentence and exit code 2."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(memory_cache.CachedSplit, "read", None)  # nothing is kept
    arguments = ["--full", "--max_bad_records=4", "--shuffle=streaming"]
    code, out, errors = doctor_on(folder, capsys, *arguments, "--cache=memory")
    assert code == 2
    for part in ("8 of 13 records", "Broken records: 5", "overlap 0", "order of epoch"):
        assert part in out
    (line,) = errors.splitlines()
    assert line.startswith("doctor: at most --max_bad_records=4 records")

    code, out, errors = doctor_on(folder, capsys, "--full", "--json")
    assert (code, errors) == (0, "")
    facts = json.loads(out)
    assert facts["proof"]["holds"]
    assert len(facts["reading"]["train"]["broken"]) == 5
    assert facts["reading"]["train"]["images_per_class"] == [2, 3, 0, 3]
    assert facts["input_memory"]["pixels"] == 200 * 100
    assert facts["data"]["splits"]["validation"]["record_bytes"]["smallest"] > 0

    code, out, _ = doctor_on(folder, capsys, "--data", "--json")
    assert code == 0
    assert "reading" not in json.loads(out) and json.loads(out)["proof"]["holds"]
