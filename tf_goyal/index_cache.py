"""The byte index of a split, kept between starts.

Following the length headers of ImageNet's shards takes seconds to minutes; reading what
was found takes a blink. The index is stored beside the shards, or in the user's cache
folder where that is not possible, together with size, times and inode of each shard,
so that a shard that changed is followed again, alone. It is written beside and renamed:
several processes may do so at once. Whatever is wrong with a stored index, the answer
is to make it again. No TensorFlow.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Sequence

import numpy as np

from tf_goyal import records
from tf_goyal.label_sample import LabelSample

_FORMAT = 2
# Size in bytes; times of the last change of content and of inode, in ns; inode. The
# former time can be set to any value, and is by `cp -p` and `touch -r`.
_Stamp = tuple[int, int, int, int]
_Table = tuple[np.ndarray, np.ndarray]  # offsets and lengths of a file's records


def load(
    folder: str,
    split: str,
    files: Sequence[str],
    sample: Callable[[records.Index], LabelSample],
) -> tuple[records.Index, LabelSample]:
    """Index and label sample of a split, from the stored ones as far as they fit.

    Args:
      folder: with the files in it.
      split: its name.
      files: paths of its shards.
      sample: takes the sample, where none is stored or a shard changed.

    Raises:
      ValueError: a file cannot be read or is no TFRecord file, or `sample` raises it.
    """
    files = sorted(files)
    names = [os.path.relpath(file, folder) for file in files]
    # Before the files are followed, so that a change meanwhile is seen next time.
    stamps = [_stamp(file) for file in files]
    keys = list(zip(names, stamps))
    places = _places(folder, split)
    known: dict[tuple[str, _Stamp], _Table] = {}
    for place in places:
        stored = _read(place)
        if stored is None:
            continue
        tables, found = stored
        if list(tables) == keys:
            return records.join(files, tables.values()), found
        known.update(tables)
    new = [file for file, key in zip(files, keys) if key not in known]
    followed = dict(zip(new, records.index_each(new)))
    tables = [followed.get(file) or known[key] for file, key in zip(files, keys)]
    index = records.join(files, tables)
    found = sample(index)
    for place in places:
        if _write(place, names, stamps, tables, found):
            break
    return index, found


def _stamp(file: str) -> _Stamp:
    try:
        status = os.stat(file)
    except OSError as error:
        raise ValueError(
            f"{file}: cannot be read: {error.strerror}; check the path and its "
            "permissions."
        ) from error
    if not stat.S_ISREG(status.st_mode):  # to open a pipe would be to wait for it
        raise ValueError(
            f"{file}: must be a TFRecord file, but is a folder, a pipe or a device: "
            "remove it, or copy or prepare the file again."
        )
    inode = status.st_ino % 2**63  # some file systems use all 64 bits
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode


def _places(folder: str, split: str) -> list[str]:
    """Where an index may lie, best first."""
    places = [os.path.join(folder, f".tf_goyal_index-{split}.npz")]
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # by its specification, to be ignored
        home = os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(home):
        key = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
        places.append(os.path.join(home, "tf_goyal", f"{key}-{split}.npz"))
    return places


def _read(place: str) -> tuple[dict[tuple[str, _Stamp], _Table], LabelSample] | None:
    """Tables by name and stamp, and the sample; None if they are not there whole."""
    if not os.path.isfile(place):
        return None
    try:
        with np.load(place, allow_pickle=False) as stored:
            if stored["format"].tolist() != _FORMAT:
                return None
            array = {name: stored[name] for name in stored.files}
        integers = ("counts", "offset", "length", "record", "label")
        if any(array[n].dtype != np.int64 or array[n].ndim != 1 for n in integers):
            return None
        names, stamps = array["names"].tolist(), array["stamps"]
        counts, offset, length = (array[n] for n in ("counts", "offset", "length"))
        image_feature, label_feature = map(str, array["features"].tolist())
        record, label = array["record"], array["label"]
        whole = (
            len(names) == len(counts)
            and stamps.dtype == np.int64
            and stamps.shape == (len(names), 4)
            and len(offset) == len(length) == counts.sum()
            and len(record) == len(label) > 0
            and (counts >= 0).all()
            and (offset >= 0).all()
            and (length >= records.BROKEN).all()
            and 0 <= record.min() <= record.max() < len(offset)
        )
        if not whole:
            return None
        ends = np.cumsum(counts).tolist()
        stamps = map(tuple, stamps.tolist())
        tables = {
            (name, stamp): (offset[end - count : end], length[end - count : end])
            for name, stamp, count, end in zip(names, stamps, counts.tolist(), ends)
        }
        return tables, LabelSample((image_feature, label_feature), record, label)
    except Exception:  # what another program or a full disk left can fail in any way
        return None


def _write(
    place: str,
    names: list[str],
    stamps: list[_Stamp],
    tables: list[_Table],
    sample: LabelSample,
) -> bool:
    """Whether it could be stored."""
    folder, name = os.path.split(place)
    try:
        if os.path.basename(folder) == "tf_goyal":
            os.makedirs(folder, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(".tmp", f".{name.lstrip('.')}-", folder)
    except OSError:
        return False
    try:
        with open(descriptor, "wb") as file:
            np.savez(
                file,
                format=np.int64(_FORMAT),
                names=np.array(names, np.str_),
                stamps=np.array(stamps, np.int64),
                counts=np.array([len(offset) for offset, _ in tables], np.int64),
                offset=np.concatenate([offset for offset, _ in tables]),
                length=np.concatenate([length for _, length in tables]),
                features=np.array(sample.features, np.str_),
                record=sample.record,
                label=sample.label,
            )
        os.chmod(beside, 0o644)  # other users may read the shards, too
        os.replace(beside, place)
        return True
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(beside)
        return False
