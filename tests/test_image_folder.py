import os

import pytest
from pictures import bmp

from tf_goyal import datasets
from tf_goyal.records import BadRecord


def make(folder, *paths):
    """Images that hold their own path; a folder where the path ends with a slash."""
    for path in paths:
        file = folder / path
        if path.endswith("/"):
            file.mkdir(parents=True)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image(path))
    return folder


def image(path) -> bytes:
    return bmp(0) + path.encode()


@pytest.fixture
def folder(tmp_path):
    return make(
        tmp_path,
        *("train/cat/b.jpg", "train/cat/a.JPEG", "train/cat/B.png"),
        *("train/ant/10.jpg", "train/ant/9.PNG"),
        *("train/dog/x.jpeg", "val/dog/y.jpg", "val/ant/z.jpg"),
    )


def refused(folder, **options) -> str:
    with pytest.raises(ValueError) as error:
        datasets.load("folder", str(folder), **options)
    assert str(error.value).endswith(".")
    return str(error.value)


def test_order_and_labels(folder):
    data = datasets.load("folder", str(folder))
    assert data.labels == ("ant", "cat", "dog") and data.name == "folder"
    found = [data.train.read(record) for record in range(len(data.train))]
    assert found == [
        (image("train/ant/10.jpg"), 0),
        (image("train/ant/9.PNG"), 0),
        (image("train/cat/B.png"), 1),
        (image("train/cat/a.JPEG"), 1),
        (image("train/cat/b.jpg"), 1),
        (image("train/dog/x.jpeg"), 2),
    ]
    held_out = [data.validation.read(r) for r in range(len(data.validation))]
    assert held_out == [(image("val/ant/z.jpg"), 0), (image("val/dog/y.jpg"), 2)]
    assert data.train.name == "train" and data.validation.name == "validation"
    classes = [str(folder / "train" / name) for name in data.labels]
    assert data.train.files == tuple(classes)
    assert data.train.part_sizes.tolist() == [2, 3, 1]
    assert data.validation.part_sizes.tolist() == [1, 1]
    assert data.train.bytes == sum(len(content) for content, _ in found)
    assert data.train.where(4) == str(folder / "train" / "cat" / "b.jpg")


def test_links_are_followed_and_hidden_files_are_not_there(folder, tmp_path):
    outside = make(tmp_path / "elsewhere", "eel/e.jpg", "f.png")
    (folder / "train" / "eel").symlink_to(outside / "eel")
    (folder / "train" / "dog" / "f.png").symlink_to(outside / "f.png")
    make(folder, "train/.DS_Store", "train/cat/._b.jpg", "train/.ipynb_checkpoints/x")
    data = datasets.load("folder", str(folder))
    assert data.labels == ("ant", "cat", "dog", "eel")
    assert data.train.part_sizes.tolist() == [2, 3, 2, 1]
    assert data.train.read(7) == (image("eel/e.jpg"), 3)


@pytest.mark.parametrize("record", [-1, 6])
def test_a_record_out_of_range(folder, record):
    train = datasets.load("folder", str(folder)).train
    for call in (train.read, train.where):
        with pytest.raises(IndexError, match=f"from 0 to 5; received {record}"):
            call(record)


def test_broken_images_are_found_when_they_are_read(folder):
    """D5: one of 0 bytes; one that went away."""
    train = datasets.load("folder", str(folder)).train
    (folder / "train/ant/10.jpg").write_bytes(b"")
    with pytest.raises(BadRecord, match="empty"):
        train.read(0)
    (folder / "train/ant/9.PNG").unlink()
    train.will_read(1)
    with pytest.raises(BadRecord, match="No such file"):
        train.read(1)
    train.will_read(2)
    assert train.bytes == sum(len(train.read(record)[0]) for record in range(2, 6))


@pytest.mark.parametrize(
    "taken, used", [(("val", "test"), "val"), (("validation", "val"), "validation")]
)
def test_the_folder_for_evaluation(tmp_path, taken, used):
    make(tmp_path, "train/a/1.jpg", *(f"{name}/a/{name}.jpg" for name in taken))
    validation = datasets.load("folder", str(tmp_path)).validation
    assert validation.where(0) == str(tmp_path / used / "a" / f"{used}.jpg")


@pytest.mark.parametrize("there", [(), ("train/a/1.jpg",), ("val/a/1.jpg",)])
def test_a_missing_split(tmp_path, there):
    """D9."""
    make(tmp_path, *there)
    message = refused(tmp_path)
    assert "expected the folder train and one of validation, val, test" in message
    assert ("one of them is not" if "train/a/1.jpg" in there else "train is not") in (
        message
    )


def test_no_folder_at_all(tmp_path):
    """D9."""
    assert "nowhere: expected the folder train" in refused(tmp_path / "nowhere")
    assert "--dataset=folder requires --data_dir" in refused("")


@pytest.mark.parametrize(
    "path, said",
    [
        ("train/loose.jpg", "train/loose.jpg: expected only folders"),
        ("val/loose.txt", "val/loose.txt: expected only folders"),
        ("train/cat/notes.txt", "notes.txt: expected only images"),
        ("train/cat/c.webp", "c.webp: expected only images"),
        (
            "train/cat/more/c.jpg",
            "more: expected only images here (.jpg, .jpeg, .png, .gif, .bmp); this is "
            "a folder",
        ),
        ("train/cat/c.jpg/", "c.jpg: expected only images"),
        ("train/none/", "none: each class must have images"),
        ("val/wolf/w.jpg", "val/wolf: not among the 3 classes in"),
    ],
)
def test_what_does_not_belong_is_named(folder, path, said):
    assert said in refused(make(folder, path))


def test_several_unknown_classes(folder):
    make(folder, "val/wolf/w.jpg", "val/bee/b.jpg")
    assert "val/bee and 1 more: not among" in refused(folder)


def test_a_class_without_images_to_evaluate_is_fine(folder):
    make(folder, "val/cat/")
    validation = datasets.load("folder", str(folder)).validation
    assert validation.part_sizes.tolist() == [1, 1]


def test_pipes_and_dangling_links_are_refused(folder):
    os.mkfifo(folder / "train/cat/pipe.jpg")
    assert "pipe.jpg: expected only images" in refused(folder)
    (folder / "train/cat/pipe.jpg").unlink()
    (folder / "train/cat/gone.jpg").symlink_to(folder / "nothing")
    assert "gone.jpg: expected only images" in refused(folder)


def test_links_that_lead_to_themselves_are_refused_by_name(folder):
    for path in ("train/cat/l.jpg", "train/l", "val/dog/l.jpg"):
        link = folder / path
        link.symlink_to(link.name)
        assert f"{link}: cannot be read: Too many levels of" in refused(folder)
        link.unlink()


def test_every_format_that_can_be_decoded(folder):
    make(folder, "train/cat/c.gif", "train/cat/d.BMP", "val/cat/e.bmp", "val/cat/f.GIF")
    data = datasets.load("folder", str(folder))
    assert data.train.part_sizes.tolist() == [2, 5, 1]
    assert data.validation.part_sizes.tolist() == [1, 2, 1]


@pytest.mark.parametrize("split", ["train", "val"])
def test_d5_a_split_without_a_single_image(folder, split):
    """The first file is named; one good image is enough."""
    paths = sorted((folder / split).rglob("*.*"))
    for path in paths[:-1]:
        path.write_bytes(b"")
    datasets.load("folder", str(folder))
    paths[-1].write_bytes(b"no image")
    message = refused(folder)
    assert f"{paths[0]}: expected an image and its label; all {len(paths)} " in message
    assert "because the file is empty" in message


def test_empty_splits(tmp_path):
    make(tmp_path, "train/", "val/a/")
    assert "train: expected a folder for each class; found none" in refused(tmp_path)
    make(tmp_path, "train/a/1.jpg")
    assert "val: expected images" in refused(tmp_path)


def test_class_names_that_are_no_text(folder):
    os.mkdir(os.fsencode(folder) + b"/train/\xff")
    assert "must be UTF-8" in refused(folder)


def test_the_labels_are_ours(folder):
    """D7."""
    assert "requires --label_offset=0; received 1" in refused(folder, label_offset=1)
