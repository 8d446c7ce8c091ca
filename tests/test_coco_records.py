"""Records of a COCO set for the Model Garden, and AP of detections, by hand."""

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
import tool_runs
from PIL import Image
from pycocotools import mask as masks

# They find one another as where they are started.
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(tool_runs.TOOLS / "detection"))
    import coco_ap
    import coco_file
    import coco_records
    import rates


def thing(crowd=False):
    return coco_file.Thing(3, (2.0, 3.0, 5.0, 4.0), MASK, crowd)


def picture(folder, things, size=(20, 10), number=1):
    path = folder / f"{number}.jpg"
    Image.fromarray(np.zeros([10, 20, 3], np.uint8)).save(path)
    return coco_file.Picture(number, path.name, path, size[1], size[0], things)


EXPECTED = np.zeros([10, 20], np.uint8)
EXPECTED[3:7, 2:7] = 1
RUNS = {"size": [10, 20], "counts": [23, 4, 6, 4, 6, 4, 6, 4, 6, 4, 133]}
MASK = {
    "size": [10, 20],
    "counts": masks.encode(np.asfortranarray(EXPECTED))["counts"].decode(),
}


def decoded(png):
    return np.asarray(Image.open(io.BytesIO(png)))


def test_a_record(tmp_path):
    """Boxes are in units of the image's size; the mask is a PNG; a crowd is marked."""
    of_image = picture(tmp_path, [thing(), thing(crowd=True)])
    example = coco_records.example(of_image, {3: "cat"})
    values = {
        name: list(getattr(feature, feature.WhichOneof("kind")).value)
        for name, feature in example.features.feature.items()
    }
    assert values["image/encoded"] == [of_image.path.read_bytes()]
    assert values["image/source_id"] == [b"1"]
    assert (values["image/height"], values["image/width"]) == ([10], [20])
    box = {"xmin": 0.1, "xmax": 0.35, "ymin": 0.3, "ymax": 0.7}
    for edge, value in box.items():
        np.testing.assert_allclose(values[f"image/object/bbox/{edge}"], [value] * 2)
    assert values["image/object/class/label"] == [3, 3]
    assert values["image/object/class/text"] == [b"cat", b"cat"]
    assert values["image/object/is_crowd"] == [0, 1]
    np.testing.assert_array_equal(decoded(values["image/object/mask"][1]), EXPECTED)


def records_in(pattern):
    files = sorted(tf.io.gfile.glob(pattern))
    return sum(1 for _ in tf.data.TFRecordDataset(files))


def test_training_leaves_out_what_shows_nothing(tmp_path):
    """No object, or only a crowd; evaluation counts every image."""
    things = [[thing()], [], [thing(crowd=True)]]
    pictures = [picture(tmp_path, t, number=n) for n, t in enumerate(things, start=1)]
    coco = coco_file.Coco(tmp_path / "a.json", pictures, {3: "cat"}, {})
    pattern, count = coco_records.write(coco, tmp_path / "train", training=True)
    assert (count, records_in(pattern)) == (1, 1)
    pattern, count = coco_records.write(coco, tmp_path / "validation", training=False)
    assert (count, records_in(pattern)) == (3, 3)
    pictures[0].things.clear()
    with pytest.raises(ValueError, match=r"a\.json has no annotated object"):
        coco_records.write(coco, tmp_path / "none", training=False)


def test_records_are_made_again_where_the_set_has_changed(tmp_path):
    """Not where it is the same: a box, an image, or an unfinished folder."""
    of_image = picture(tmp_path, [thing()])
    coco = coco_file.Coco(tmp_path / "a.json", [of_image], {3: "cat"}, {})
    folder = tmp_path / "records"

    def written():
        coco_records.write(dataclasses.replace(coco), folder, training=True)
        return [path.stat().st_mtime_ns for path in sorted(folder.glob("*.tfrecord"))]

    first = written()
    assert written() == first
    of_image.things[0].box = (2.0, 3.0, 5.0, 3.0)
    second = written()
    assert second != first
    of_image.path.write_bytes(of_image.path.read_bytes() + b" ")
    third = written()
    assert third != second
    (folder / "done.json").write_text("")
    fourth = written()
    assert fourth != third
    (folder / "done.json").unlink()
    assert written() != fourth


def test_images_that_cannot_be_used_are_named(tmp_path):
    other = picture(tmp_path, [thing()], size=(21, 10))
    with pytest.raises(ValueError, match=r"1\.jpg must be of 10 x 21 .*it is 10 x 20"):
        coco_records.example(other, {3: "cat"})
    whole = other.path.read_bytes()
    refused = [whole[: len(whole) // 2], b"no image", b""]
    for kind in ("GIF", "TIFF", "WEBP", "PPM", "JPEG2000"):  # Pillow knows them
        file = io.BytesIO()
        Image.fromarray(np.zeros([10, 20, 3], np.uint8)).save(file, kind)
        refused.append(file.getvalue())
    for broken in refused:
        other.path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"1\.jpg must be a JPEG or PNG file"):
            coco_records.example(other, {3: "cat"})


def test_an_image_too_large_to_be_one_is_named(tmp_path, monkeypatch):
    other = picture(tmp_path, [thing()])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 99)  # twice that is refused
    with pytest.raises(ValueError, match=r"1\.jpg must be .*decompression bomb"):
        coco_records.example(other, {3: "cat"})


def truth(pictures=2):
    """A square in each image."""
    things = [thing()]
    made = [
        coco_file.Picture(n, "", None, 10, 20, things) for n in range(1, pictures + 1)
    ]
    described = {
        "images": [{"id": p.id, "height": 10, "width": 20} for p in made],
        "categories": [{"id": 3, "name": "cat"}],
    }
    annotations = [
        {
            "id": p.id,
            "image_id": p.id,
            "category_id": 3,
            "bbox": [2, 3, 5, 4],
            "area": 20,
            "segmentation": RUNS,
            "iscrowd": 0,
        }
        for p in made
    ]
    return {**described, "annotations": annotations}


def found(image, bbox=(2.0, 3.0, 5.0, 4.0), score=0.9):
    return {
        "image_id": image,
        "category_id": 3,
        "score": score,
        "bbox": list(bbox),
        "segmentation": MASK,
    }


def test_ap_by_hand():
    """All found: 100; none: 0; one of two, and nothing found in the other: half."""
    everything = coco_ap.average_precision(truth(), [found(1), found(2)])
    assert set(everything) == {
        f"{kind} {name}" for kind in ("box", "mask") for name in ("AP", "AP50", "AP75")
    }
    np.testing.assert_allclose(list(everything.values()), 100.0)
    assert set(coco_ap.average_precision(truth(), []).values()) == {0.0}
    half = coco_ap.average_precision(truth(), [found(1)])
    # Precision is 1 up to a recall of a half: 51 of the 101 points.
    np.testing.assert_allclose(list(half.values()), 100 * 51 / 101)
    # Of IoU 0.6 (3 of the 5 columns) a box counts at 0.5, 0.55 and 0.6.
    cut = [found(n, bbox=(2.0, 3.0, 3.0, 4.0)) for n in (1, 2)]
    ap = coco_ap.average_precision(truth(), cut)
    np.testing.assert_allclose(
        [ap["box AP"], ap["box AP50"], ap["box AP75"], ap["mask AP"]],
        [30.0, 100.0, 0.0, 100.0],
    )


def test_the_table_by_hand():
    ap = {"box AP": 12.34, "box AP50": 50.0, "box AP75": 0.0}
    ap |= {"mask AP": 1.0, "mask AP50": 2.0, "mask AP75": 100.0}
    rows = coco_ap.table(ap).splitlines()
    assert rows[2:] == ["| box | 12.3 | 50.0 | 0.0 |", "| mask | 1.0 | 2.0 | 100.0 |"]


PAPER = {"images_seen": 2_560_000, "base_lr": 0.02, "base_images": 16}


@pytest.mark.parametrize(
    ("images", "rate", "steps"),
    [
        (2, 0.0025, 1_280_000),
        (4, 0.005, 640_000),
        (8, 0.01, 320_000),
        (16, 0.02, 160_000),
    ],
)
def test_the_papers_schedules(images, rate, steps):
    """§5.4: 1, 2, 4 and 8 GPUs of 2 images."""
    scaled = rates.schedule(images_per_step=images, scaled=True, **PAPER)
    assert (scaled.steps, scaled.rate, scaled.warmup_steps) == (steps, rate, 500)
    assert scaled.decay_at == steps * 3 / 4
    same = rates.schedule(images_per_step=images, scaled=False, **PAPER)
    assert (same.steps, same.rate) == (steps, 0.02)


def test_short_schedules():
    """Steps are rounded up; the warmup is at most a tenth."""
    told = {**PAPER, "images_seen": 21}
    short = rates.schedule(images_per_step=2, scaled=True, **told)
    assert (short.steps, short.warmup_steps, short.decay_at) == (11, 1, 8)
