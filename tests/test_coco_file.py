"""A data set in COCO's format: what is refused, what is left out, what is cut."""

import json

import numpy as np
import pytest
import tool_runs
from pycocotools import mask as masks

coco_file = tool_runs.load("detection.coco_file")


def described(**changes):
    """Two images of 10 x 20 pixels, the first with one object."""
    images = [
        {"id": i, "file_name": f"{i}.jpg", "height": 10, "width": 20} for i in (1, 2)
    ]
    annotation = {
        "id": 7,
        "image_id": 1,
        "category_id": 3,
        "bbox": [2, 3, 5, 4],
        "area": 20,
        "segmentation": [[2, 3, 7, 3, 7, 7, 2, 7]],
        "iscrowd": 0,
    }
    whole = {
        "images": images,
        "annotations": [annotation],
        "categories": [{"id": 1, "name": "ant"}, {"id": 3, "name": "cat"}],
    }
    return {**whole, **changes}


@pytest.fixture
def read(tmp_path):
    """Reads what is described, with files for both images."""
    images = tmp_path / "images"
    images.mkdir()
    for i in (1, 2):
        (images / f"{i}.jpg").write_bytes(b"a")

    def reads(what):
        path = tmp_path / "a.json"
        path.write_text(what if isinstance(what, str) else json.dumps(what))
        return coco_file.read(path, images)

    return reads


def annotated(**changes):
    (annotation,) = described()["annotations"]
    return described(annotations=[{**annotation, **changes}])


def test_a_data_set(read):
    coco = read(described())
    assert [picture.id for picture in coco.pictures] == [1, 2]
    (thing,) = coco.pictures[0].things
    assert thing.box == (2.0, 3.0, 5.0, 4.0)
    assert (thing.category, thing.crowd) == (3, False)
    assert coco_file.area(thing.mask) == 20
    assert coco.pictures[1].things == []  # an image without annotations stays
    assert coco.classes == 4  # 0 is the background's, 2 is nobody's
    assert coco.left_out == {}


@pytest.mark.parametrize(
    ("bbox", "inside"),
    [
        ([0, 0, 20, 10], (0.0, 0.0, 20.0, 10.0)),
        ([0, 0, 21, 11], (0.0, 0.0, 20.0, 10.0)),
        ([-1, -1, 3, 3], (0.0, 0.0, 2.0, 2.0)),
        ([19, 9, 5, 5], (19.0, 9.0, 1.0, 1.0)),
        ([20, 9, 5, 5], None),
        ([-5, 0, 5, 5], None),
        ([2, 2, 0, 5], None),
        ([2, 2, 5, -1], None),
    ],
)
def test_boxes_outside_of_the_image(read, bbox, inside):
    """Cut at the edge; without any part inside they are left out, and counted."""
    coco = read(annotated(bbox=bbox))
    assert [thing.box for thing in coco.pictures[0].things] == (
        [inside] if inside else []
    )
    reason = {"the box is empty, or outside of the image": 1}
    assert coco.left_out == ({} if inside else reason)


@pytest.mark.parametrize(
    "segmentation",
    [
        [],
        None,
        {},
        {"size": [10, 20], "counts": [200]},
        {"size": [10, 20], "counts": "X6"},  # the same, compressed
        [[30, 3, 37, 3, 37, 7]],
        [[-9, -9, -4, -9, -4, -5]],
        [[2, 3, 2, 3, 2, 3]],
    ],
)
def test_an_annotation_without_a_pixel_is_left_out(read, segmentation):
    """It would be a wrong target, and nothing that is found could be right."""
    coco = read(annotated(segmentation=segmentation))
    assert coco.pictures[0].things == []
    assert coco.left_out == {"no mask, or one without a pixel in the image": 1}


@pytest.mark.parametrize("area", [None, 0, -5, float("inf"), "abc", 7])
def test_the_area_is_that_of_the_mask(read, area):
    """A wrong one would take the object out of the evaluation."""
    coco = read(annotated(area=area))
    (thing,) = coco.pictures[0].things
    assert coco_file.area(thing.mask) == 20
    assert [a["area"] for a in coco.described()["annotations"]] == [20]


SQUARE = np.zeros([10, 20], np.uint8)
SQUARE[3:7, 2:7] = 1
RUNS = [23, 4, 6, 4, 6, 4, 6, 4, 6, 4, 133]
COMPRESSED = masks.encode(np.asfortranarray(SQUARE))["counts"].decode()


@pytest.mark.parametrize(
    "segmentation",
    [
        [[2, 3, 7, 3, 7, 7, 2, 7]],
        [[2, 3, 5, 3, 5, 7, 2, 7], [5, 3, 7, 3, 7, 7, 5, 7]],
        {"size": [10, 20], "counts": COMPRESSED},
        {"size": [10, 20], "counts": RUNS},
    ],
    ids=["polygon", "two", "compressed", "runs"],
)
def test_masks_of_every_kind(read, segmentation):
    """The same square, by pixels; all in one form, that JSON can hold."""
    coco = read(annotated(segmentation=segmentation))
    (thing,) = coco.pictures[0].things
    np.testing.assert_array_equal(masks.decode(thing.mask), SQUARE)
    (entry,) = coco.described()["annotations"]
    assert entry["segmentation"] == {"size": [10, 20], "counts": COMPRESSED}


@pytest.mark.parametrize("height", [1, 9, 10, 300])
def test_compressed_run_lengths_are_read_as_pycocotools_writes_them(height):
    random = np.random.default_rng(height)
    for _ in range(20):
        mask = random.random([height, 7]) < random.random()
        code = masks.encode(np.asfortranarray(mask, np.uint8))["counts"].decode()
        edges = np.flatnonzero(np.diff(mask.flatten(order="F"), prepend=False))
        expected = np.diff([0, *edges, mask.size]).tolist()
        if expected[-1] == 0:
            expected.pop()
        assert coco_file._uncompressed(code) == expected


def test_the_objects_of_the_image_that_has_most(read):
    """The Model Garden is told of them: it would cut the rest off."""
    (one,) = described()["annotations"]
    assert read(described(annotations=[])).most_things == 0
    of = {1: 2, 2: 101}
    several = [
        {**one, "id": 1000 * image + i, "image_id": image}
        for image, count in of.items()
        for i in range(count)
    ]
    assert read(described(annotations=several)).most_things == 101


def test_a_crowd_is_kept_as_one(read):
    code = {"size": [10, 20], "counts": [0, 200]}
    (thing,) = read(annotated(iscrowd=1, segmentation=code)).pictures[0].things
    assert thing.crowd and masks.decode(thing.mask).all()


def test_empty_annotations_are_no_error(read):
    assert read(described(annotations=[])).pictures[0].things == []


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("", "must be JSON"),
        ("[]", "there is no list of images"),
        (described(annotations=None), "there is no list of annotations"),
        (described(categories={}), "there is no list of categories"),
        (described(categories=[]), "must have categories"),
        (described(categories=[{"id": 0, "name": "x"}]), "id from 1 (0 is"),
        (described(categories=[{"id": 1}]), "a category must have a name"),
        (described(categories=[{"id": "1", "name": "x"}]), "a category must have"),
        (described(categories=[3]), "each category must be an object, got 3"),
        (described(categories=described()["categories"][:1] * 2), "categories of id 1"),
        (described(images=[]), "must have images"),
        (described(annotations=["x"]), "each annotation must be an object"),
        (annotated(image_id=9), "annotation 7 is of image 9"),
        (annotated(image_id=[1]), "annotation 7 is of image [1]"),
        (annotated(category_id=2), "annotation 7 is of category 2"),
        (annotated(bbox=[1, 2, 3]), "annotation 7 must have a bbox of four"),
        (annotated(bbox=[1, 2, 3, float("nan")]), "annotation 7 must have a bbox"),
        (annotated(bbox="2345"), "annotation 7 must have a bbox"),
        (annotated(bbox=[1, 2, 3, True]), "annotation 7 must have a bbox"),
        (annotated(bbox=[1, 2, 3, 10**400]), "annotation 7 must have a bbox"),
        (annotated(iscrowd="0"), "annotation 7 must have an iscrowd of 0 or 1"),
        (annotated(iscrowd=2), "annotation 7 must have an iscrowd of 0 or 1"),
        (annotated(iscrowd=None), "annotation 7 must have an iscrowd of 0 or 1"),
        (annotated(image_id="1"), "annotation 7 is of image '1'"),
        (annotated(image_id=True), "annotation 7 is of image True"),
        (annotated(category_id=True), "annotation 7 is of category True"),
        (described(categories=[{"id": 2**15, "name": "x"}]), "(0 is the background's)"),
        ("[" * 100_000, "must be JSON"),
        (annotated(segmentation=[[1, 2, 3, 4]]), "polygons of three points"),
        (annotated(segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "polygons of three points"),
        (annotated(segmentation=[[1, 2, 3, 4, 5, float("nan")]]), "polygons of three"),
        (annotated(segmentation=[[1, 2, 3, 4, 5, 100_001]]), "polygons of three"),
        (annotated(segmentation=[[1, 2, 3, 4, 5, "6"]]), "polygons of three"),
        (annotated(segmentation=[[1, 2, 3, 4, 5, None]]), "polygons of three"),
        (annotated(segmentation={"size": [10, 20], "counts": ""}), "10 x 20"),
        (annotated(segmentation={"size": [10, 20], "counts": "52"}), "10 x 20"),
        (annotated(segmentation={"size": [10, 20], "counts": "zzz"}), "10 x 20"),
        (annotated(segmentation={"size": [10, 20], "counts": [201, -1]}), "10 x 20"),
        (annotated(segmentation={"size": [10.0, 20], "counts": [9, 191]}), "10 x 20"),
        (annotated(segmentation={"size": [10, 20]}), "annotation 7 must have poly"),
        (annotated(segmentation={"size": [9, 20], "counts": [180]}), "10 x 20"),
        (annotated(segmentation={"size": [10, 20], "counts": [199]}), "10 x 20"),
        (described(images=[{"id": 1, "file_name": "1.jpg"}]), "must have a file_name"),
        (
            described(images=[{**described()["images"][0], "id": "1"}]),
            "whole numbers as id",
        ),
        (described(images=described()["images"][:1] * 2), "two images of id 1"),
    ],
)
def test_what_is_refused(read, what, message):
    with pytest.raises(ValueError, match=r"a\.json") as refused:
        read(what)
    assert message in str(refused.value)


def test_missing_images_are_counted_and_named(read, tmp_path):
    images = [
        {"id": i, "file_name": f"{i}.jpg", "height": 10, "width": 20}
        for i in range(1, 8)
    ]
    with pytest.raises(
        ValueError, match=r"5 of the 7 images .*3\.jpg, 4\.jpg, 5\.jpg \.\.\."
    ):
        read(described(images=images))
    outside = {"id": 1, "file_name": "../a.json", "height": 10, "width": 20}
    with pytest.raises(ValueError, match=r"\.\./a\.json of image 1 is not in"):
        read(described(images=[outside]))
    long = {**outside, "file_name": "a" * 300}
    with pytest.raises(ValueError, match="1 of the 1 images"):
        read(described(images=[long]))
    with pytest.raises(ValueError, match="cannot be read"):
        coco_file.read(tmp_path / "none.json", tmp_path)


def test_what_was_kept_is_described_for_pycocotools(read):
    """With ids of our own, and every field that it needs."""
    (annotation,) = described()["annotations"]
    bare = {
        k: annotation[k] for k in ("image_id", "category_id", "bbox", "segmentation")
    }
    kept = read(
        described(annotations=[bare, {**bare, "segmentation": []}, bare])
    ).described()
    assert kept["images"] == described()["images"]
    assert [a["id"] for a in kept["annotations"]] == [1, 2]
    assert {a["area"] for a in kept["annotations"]} == {20}
    assert {a["iscrowd"] for a in kept["annotations"]} == {0}
    assert kept["categories"] == described()["categories"]


def test_a_folder_of_links_will_do(read, tmp_path):
    other = tmp_path / "elsewhere.jpg"
    other.write_bytes(b"a")
    (tmp_path / "images" / "1.jpg").unlink()
    (tmp_path / "images" / "1.jpg").symlink_to(other)
    assert read(described()).pictures[0].path.name == "1.jpg"


def test_names_keep_their_folder_and_may_begin_with_dots(read, tmp_path):
    """Two images of the same name in two folders are two."""
    names = ["a/1.jpg", "b/1.jpg", "..3.jpg"]
    for name in names:
        path = tmp_path / "images" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"a")
    images = [
        {"id": i, "file_name": name, "height": 10, "width": 20}
        for i, name in enumerate(names, start=1)
    ]
    kept = read(described(images=images)).described()
    assert [image["file_name"] for image in kept["images"]] == names


def test_a_byte_order_mark_is_no_error(read):
    assert read("\ufeff" + json.dumps(described())).pictures
