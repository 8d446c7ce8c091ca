"""What TensorFlow Datasets wrote, found without it: from its two JSON files.

    DATA_DIR/NAME[/CONFIG]/VERSION/dataset_info.json   splits, shards, records in each
                                   features.json       names and kinds of the features
                                   LABEL.labels.txt    names of the classes

No TensorFlow.
"""

import dataclasses
import json
import os
import re
from typing import Any

_NAME = re.compile(
    r"tfds:(?P<name>\w+)(/(?P<config>[\w+\-.]+))?(:(?P<version>\d+\.\d+\.\d+))?",
    re.ASCII,
)
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # where none is given
_MOST_CLASSES = 1_000_000


@dataclasses.dataclass(frozen=True)
class TfdsFolder:
    """A prepared data set.

    Attributes:
      folder: that of the version.
      counts: for "train" and "validation", the records of each file, by its path.
      features: names of the image's feature and of the label's.
      labels: names of the classes.
    """

    folder: str
    counts: dict[str, dict[str, int]]
    features: tuple[str, str]
    labels: tuple[str, ...]

    @property
    def info(self) -> str:
        """The file that `counts` are from."""
        return os.path.join(self.folder, "dataset_info.json")


def find(dataset: str, data_dir: str) -> TfdsFolder:
    """The prepared data set of a name.

    Args:
      dataset: "tfds:NAME[/CONFIG][:VERSION]"; without a version, the newest there is.
      data_dir: where TFDS keeps its data, or the folder of the version itself.

    Raises:
      ValueError: it is not prepared, not as TFRecord, not complete, or no image
        classification set.
    """
    match = _NAME.fullmatch(dataset)
    if not match or match["config"] in (".", ".."):
        raise ValueError(
            "--dataset must be tfds:NAME, tfds:NAME/CONFIG or one of them with "
            f":VERSION, three numbers, behind it; received {dataset!r}."
        )
    wanted = dataset.removeprefix("tfds:")
    build = f"tfds build {wanted} --data_dir={data_dir}"
    folder = _folder(match, data_dir, build)
    path = os.path.join(folder, "dataset_info.json")
    info = _json(path, build)
    # What tfds.folder_dataset.write_metadata describes has no name.
    name, config = info.get("name", match["name"]), info.get("configName", "")
    if name != match["name"] or ("name" in info and config != (match["config"] or "")):
        there = f"{name}/{config}" if config else f"{name}"
        raise ValueError(
            f"{path}: expected that of {wanted}; found that of {there}: set "
            "--dataset or --data_dir to what is meant."
        )
    if match["version"] and info.get("version") != match["version"]:
        raise ValueError(
            f"{path}: expected that of version {match['version']}; found "
            f"{info.get('version')}: set --dataset or --data_dir to what is meant."
        )
    file_format = info.get("fileFormat", "tfrecord")  # older ones do not say it
    if file_format != "tfrecord":
        raise ValueError(
            f"{path}: the file format must be tfrecord; found {file_format}: prepare "
            f"the data in another folder (tfds build {wanted} --file_format=tfrecord "
            "--data_dir=FOLDER)."
        )
    splits = {split["name"]: split for split in _splits(info, path)}
    evaluation = "validation" if "validation" in splits else "test"
    if "train" not in splits or evaluation not in splits:
        raise ValueError(
            f"{path}: the splits must be train and validation, or train and test; "
            f"found {', '.join(splits) or 'none'}: use another data set."
        )
    features_path = os.path.join(folder, "features.json")
    image, label, classes = _features(_json(features_path, build), features_path)
    return TfdsFolder(
        folder=folder,
        counts={
            "train": _counts(folder, path, name, splits["train"], build),
            "validation": _counts(folder, path, name, splits[evaluation], build),
        },
        features=(image, label),
        labels=_labels(folder, features_path, label, classes),
    )


def _folder(match: re.Match, data_dir: str, build: str) -> str:
    """The folder of the version."""
    if os.path.lexists(os.path.join(data_dir, "dataset_info.json")):
        return data_dir
    above = os.path.join(data_dir, match["name"], match["config"] or "")
    above = above.rstrip(os.sep)
    versions = _versions(above)
    if versions and match["version"] in (None, *versions):
        version = match["version"] or max(
            versions, key=lambda version: [int(part) for part in version.split(".")]
        )
        return os.path.join(above, version)
    there = f"; found {', '.join(versions)}" if versions else ""
    if not versions and not match["config"]:
        configs = [c for c in _names(above) if _versions(os.path.join(above, c))]
        if configs:
            there = (
                f"; found the configurations {', '.join(configs)}, one of which can be "
                f"chosen with --dataset=tfds:{match['name']}/{configs[0]}"
            )
    expected = os.path.join(above, match["version"] or "VERSION")
    raise ValueError(
        f"--dataset={match[0]} requires the folder {expected} that TFDS prepares"
        f"{there}: prepare it with `{build}` (pip install tensorflow-datasets "
        "apache-beam), or correct --data_dir."
    )


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):  # ValueError: no path at all
        return []


def _versions(folder: str) -> list[str]:
    return [
        name
        for name in _names(folder)
        if re.fullmatch(r"\d{1,9}\.\d{1,9}\.\d{1,9}", name, re.ASCII)
    ]


def _json(path: str, build: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read: {error.strerror}; prepare the data with "
            f"`{build}`."
        ) from error
    except (RecursionError, ValueError) as error:
        raise ValueError(
            f"{path}: must be JSON as TFDS writes it: {error}; prepare the data with "
            f"`{build}`."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: must be JSON as TFDS writes it, an object; prepare the data "
            f"with `{build}`."
        )
    return found


def _splits(info: dict[str, Any], path: str) -> list[dict[str, Any]]:
    splits = info.get("splits", [])
    if not isinstance(splits, list) or not all(
        isinstance(split, dict) and isinstance(split.get("name"), str)
        for split in splits
    ):
        raise ValueError(
            f"{path}: the splits must be a list of objects with names; prepare the "
            "data again."
        )
    return splits


def _counts(
    folder: str, path: str, name: str, split: dict[str, Any], build: str
) -> dict[str, int]:
    """Records of each shard of a split, by its path."""
    lengths = split.get("shardLengths")
    if not isinstance(lengths, list) or not lengths:
        raise ValueError(
            f"{path}: the shardLengths of the split {split['name']} are missing: "
            f"prepare the data with `{build}`."
        )
    template = split.get("filepathTemplate") or _TEMPLATE
    counts = {}
    for shard, length in enumerate(lengths):
        file = _file_name(template, name, split["name"], shard, len(lengths))
        if not _is_inside(file):
            raise ValueError(
                f"{path}: the filepathTemplate of the split {split['name']} must give "
                f"files in the same folder; {template!r} gives {file!r}: prepare the "
                f"data with `{build}`."
            )
        counts[os.path.join(folder, file)] = _whole(length, "shardLengths", path)
    if len(counts) != len(lengths):
        raise ValueError(
            f"{path}: the filepathTemplate of the split {split['name']} must give each "
            f"of its {len(lengths)} shards a name of its own; received {template!r}."
        )
    if missing := [file for file in counts if not os.path.exists(file)]:
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(
            f"{missing[0]}{rest}: missing, though {path} lists {len(counts)} shards of "
            f"the split {split['name']}: copy the rest, or prepare the data with "
            f"`{build}`."
        )
    return counts


def _file_name(template: str, name: str, split: str, shard: int, shards: int) -> str:
    digits = max(5, len(str(shards)))
    values = {
        "DATASET": name,
        "SPLIT": split,
        "FILEFORMAT": "tfrecord",
        "SHARD_INDEX": f"{shard:0{digits}d}",
        "NUM_SHARDS": f"{shards:0{digits}d}",
        "SHARD_X_OF_Y": f"{shard:0{digits}d}-of-{shards:0{digits}d}",
    }
    # Not str.format, which follows attributes.
    return re.sub(
        r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), str(template)
    )


def _is_inside(file: str) -> bool:
    """Whether a name from a JSON file stays in the folder that it is put behind."""
    return (
        "\0" not in file
        and file.isprintable()
        and not {"", ".", ".."} & set(re.split(r"[/\\]", file))
    )


def _whole(value: Any, what: str, path: str) -> int:
    """A whole number, which TFDS writes as text."""
    text = str(value) if type(value) in (int, str) else ""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ValueError(
            f"{path}: {what} must be whole numbers; found {value!r:.40}: prepare the "
            "data again."
        )
    return int(text)


def _features(found: dict[str, Any], path: str) -> tuple[str, str, int]:
    """Names of the image's and the label's feature, and the number of classes."""
    kinds = {name: _kind(feature) for name, feature in _members(found).items()}
    image = _only("Image", kinds, path)
    label = _only("ClassLabel", kinds, path)
    content = kinds[image][1]
    dtype = content.get("dtype", "uint8")
    if dtype != "uint8":
        raise ValueError(
            f"{path}: the image must be stored as uint8; that of {image} is {dtype}: "
            "use another data set."
        )
    content = kinds[label][1]
    classes = content.get("numClasses", content.get("num_classes"))
    classes = _whole(classes, f"the classes of {label}", path)
    if not 0 < classes <= _MOST_CLASSES:
        raise ValueError(
            f"{path}: the feature {label} must have 1 to {_MOST_CLASSES:,} classes; "
            f"found {classes}: use another data set."
        )
    return image, label, classes


def _members(features: dict[str, Any]) -> dict[str, Any]:
    """The features of the outermost dictionary, by name."""
    content = features.get("featuresDict", features.get("content"))  # the old form
    content = _object(content)
    return _object(content.get("features", content))


def _kind(feature: Any) -> tuple[str, dict[str, Any]]:
    """Class and content of a feature."""
    feature = _object(feature)
    for key, kind in (("image", "Image"), ("classLabel", "ClassLabel")):
        if key in feature:
            return kind, _object(feature[key])
    # As written until TFDS 4.4: {"type": "...image_feature.Image", "content": {...}}
    return str(feature.get("type", "")).rpartition(".")[2], _object(
        feature.get("content")
    )


def _object(value: Any) -> dict[str, Any]:
    """A JSON object, which the old form may hold as text; {} for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (RecursionError, ValueError):
            return {}
    return value if isinstance(value, dict) else {}


def _only(kind: str, kinds: dict[str, tuple[str, Any]], path: str) -> str:
    names = [name for name, (its_kind, _) in kinds.items() if its_kind == kind]
    if len(names) == 1:
        return names[0]
    found = ", ".join(names) or f"none among {', '.join(kinds) or 'no features'}"
    raise ValueError(
        f"{path}: an image classification set must have one {kind} feature; found "
        f"{found}: use another data set."
    )


def _labels(folder: str, path: str, label: str, classes: int) -> tuple[str, ...]:
    """Names of the classes; their numbers where they have none."""
    name = f"{label}.labels.txt"
    if not _is_inside(name):
        raise ValueError(f"{path}: the name of the feature {label!r} must be a name.")
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            names = [line.strip() for line in file.read().split("\n") if line.strip()]
    except FileNotFoundError:
        return tuple(str(number) for number in range(classes))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: must be readable UTF-8 text: {error}.") from error
    if len(names) != classes:
        raise ValueError(
            f"{path}: expected the names of {classes} classes, one a line, as "
            f"features.json says; found {len(names)}: prepare the data again."
        )
    return tuple(names)
