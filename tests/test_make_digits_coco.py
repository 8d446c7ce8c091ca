"""Digits as a detection set: exact masks, boxes of what is seen, always the same."""

import json

import numpy as np
import pytest
import tool_runs
from PIL import Image

make = tool_runs.load("make_digits_coco")
coco_file = tool_runs.load("detection.coco_file")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco") / "digits"
    with pytest.MonkeyPatch.context() as patch:
        flags = ["--train=12", "--validation=3", "--size=96", f"--out={folder}"]
        assert tool_runs.run(make, patch, *flags) == 0
    return folder


def decoded(code):
    """The mask of run lengths."""
    counts = code["counts"]
    flat = np.repeat(np.arange(len(counts)) % 2, counts)
    return flat.reshape(code["size"], order="F").astype(bool)


def test_it_is_a_data_set_in_cocos_format(made):
    for split, count in (("train", 12), ("validation", 3)):
        coco = coco_file.read(made / "annotations" / f"{split}.json", made / split)
        assert len(coco.pictures) == count
        assert coco.categories == {i + 1: str(i) for i in range(10)}
        assert coco.left_out == {}
        assert all(picture.things for picture in coco.pictures)
        for picture in coco.pictures:
            with Image.open(picture.path) as image:
                assert image.size == (96, 96)


def test_masks_are_exact_and_share_no_pixel(made):
    """Boxes and areas are those of the masks; digits are brighter than the rest."""
    described = json.loads((made / "annotations" / "train.json").read_text())
    seen = {}
    for annotation in described["annotations"]:
        mask = decoded(annotation["segmentation"])
        assert mask.shape == (96, 96)
        rows, columns = np.nonzero(mask)
        left, top, width, height = annotation["bbox"]
        assert (columns.min(), rows.min()) == (left, top)
        assert (np.ptp(columns) + 1, np.ptp(rows) + 1) == (width, height)
        assert annotation["area"] == mask.sum() > 0
        seen.setdefault(annotation["image_id"], []).append(mask)
    for image, masks in seen.items():
        assert np.sum(masks, axis=0).max() == 1
        pixels = np.asarray(Image.open(made / "train" / f"{image:012}.jpg"), float)
        on = np.any(masks, axis=0)
        assert pixels[on].mean() > 1.3 * pixels[~on].mean()


def test_the_same_flags_give_the_same_files(made, tmp_path, monkeypatch):
    flags = ["--train=2", "--validation=1", "--size=96", f"--out={tmp_path / 'again'}"]
    assert tool_runs.run(make, monkeypatch, *flags) == 0
    for file in ("train/000000000002.jpg", "validation/000000000001.jpg"):
        assert (tmp_path / "again" / file).read_bytes() == (made / file).read_bytes()


@pytest.mark.parametrize(
    ("mask", "counts"),
    [
        ([[0, 1], [0, 1]], [2, 2]),
        ([[1, 1], [0, 1]], [0, 1, 1, 2]),
        ([[0, 0], [0, 0]], [4]),
        ([[1, 1], [1, 1]], [0, 4]),
    ],
)
def test_run_lengths_by_hand(mask, counts):
    """By columns, first a run of zeros, which may be empty."""
    assert make.run_lengths(np.array(mask, bool)) == {"size": [2, 2], "counts": counts}


def test_a_later_digit_hides_an_earlier_one_but_not_all_of_it(monkeypatch):
    """Squares of full ink, whose whole areas are known: half is seen, at least."""
    sizes = []

    def resized(values, shape):
        if values.ndim == 2:
            sizes.append(int(np.prod(shape)))
            return np.ones(shape)
        return np.zeros([*shape, 3])

    monkeypatch.setattr(make, "_resized", resized)
    hidden = 0
    for seed in range(20):
        sizes.clear()
        squares = [(np.ones([16, 16]), 4)]
        _, placed = make.scene(squares, 96, np.random.default_rng(seed))
        assert 1 <= len(placed) <= 8
        areas = [mask.sum() for _, mask in placed]
        assert areas[-1] in sizes  # nothing lies on the last one
        for area in areas:
            assert any(0.5 * size <= area <= size for size in sizes)
        boxes = [
            np.prod([np.ptp(axis) + 1 for axis in np.nonzero(m)]) for _, m in placed
        ]
        hidden += sum(a < box for a, box in zip(areas, boxes, strict=True))
    assert hidden > 10


def test_somebodys_folder_is_left_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.tex").write_text("years")
    assert tool_runs.run(make, monkeypatch, f"--out={tmp_path}") == 2
    assert "thesis.tex" in capsys.readouterr().err
    file = tmp_path / "thesis.tex"
    assert tool_runs.run(make, monkeypatch, f"--out={file}") == 2
    assert f"--out must name a folder that can be made, received {file}" in (
        capsys.readouterr().err
    )
    assert tool_runs.run(make, monkeypatch) == 2
