"""Images in the order of the records, and processes that write them as shards."""

import collections
import concurrent.futures
import contextlib
import hashlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import image_sources
from image_sources import Image
from preparation_journal import Journal

from tf_goyal import examples, records
from tf_goyal.progress import ImageProgress

_AHEAD = 32  # images that are fetched while one is worked on


class Shard(NamedTuple):
    """What a worker needs to write one shard; `labels` numbers the classes."""

    folder: Path
    file: str
    images: list[Image]
    labels: dict[str, int]
    max_side: int
    quality: int


def in_order(split: str, images: list[Image]) -> list[Image]:
    """The images in the order of the records: by a hash, which mixes the classes.

    The order depends on the names and classes alone, not on what the images come from.

    Raises:
      ValueError: one is there twice.
    """
    ordered = sorted(images, key=_order)
    for one, other in itertools.pairwise(ordered):
        if _key(one) == _key(other):
            raise ValueError(
                f"each {split} image must be there once, but {_key(one)} is there twice"
            )
    return ordered


def _key(image: Image) -> str:
    return f"{image.folder}/{image.name}"


def _order(image: Image) -> tuple[bytes, str]:
    key = _key(image)
    return hashlib.blake2b(key.encode(), digest_size=8).digest(), key


def fingerprint(images: list[Image]) -> str:
    """Tells a set of images from another: their names, classes and sizes."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(f"{_key(image)}\0{image.size}\n".encode())
    return digest.hexdigest()


def shards_of(
    split: str,
    images: list[Image],
    count: int,
    folder: Path,
    labels: dict[str, int],
    *,
    max_side: int,
    quality: int,
) -> list[Shard]:
    """The shards of a split: equal consecutive parts of its images in order."""
    bounds = [len(images) * part // count for part in range(count + 1)]
    return [
        Shard(
            folder,
            f"{split}-{part:05d}-of-{count:05d}",
            images[bounds[part] : bounds[part + 1]],
            labels,
            max_side,
            quality,
        )
        for part in range(count)
    ]


def write_shard(shard: Shard) -> dict[str, Any]:
    """Writes a shard, whole or not at all.

    Returns:
      Its line of the journal: "file", "records", "bytes", "sha256", "per_class" (label
      to records), "left_out" and "converted".

    Raises:
      OSError: the disk is full, or a file cannot be read or written.
    """
    import stored_image  # needs Pillow

    digest, per_class = hashlib.sha256(), collections.Counter()
    left_out, converted = [], []
    ahead = iter(shard.images)
    for image in itertools.islice(ahead, _AHEAD):
        image_sources.will_read(image)
    with whole_file(shard.folder / shard.file) as file:
        for image in shard.images:
            for coming in itertools.islice(ahead, 1):
                image_sources.will_read(coming)
            try:
                kept = stored_image.stored(
                    image_sources.read(image), shard.max_side, shard.quality
                )
            except ValueError as error:
                left_out.append({"image": _key(image), "reason": str(error)})
                continue
            if kept.converted:
                converted.append({"image": _key(image), "from": kept.converted})
            label = shard.labels[image.folder]
            record = records.framed(
                examples.encode(
                    {
                        "image/encoded": kept.data,
                        "image/class/label": label,
                        "image/filename": image.name,
                        "image/class/synset": image.folder,
                        "image/height": kept.height,
                        "image/width": kept.width,
                    }
                )
            )
            file.write(record)
            digest.update(record)
            per_class[label] += 1
        size = file.tell()
    return {
        "file": shard.file,
        "records": sum(per_class.values()),
        "bytes": size,
        "sha256": digest.hexdigest(),
        "per_class": {str(label): per_class[label] for label in sorted(per_class)},
        "left_out": left_out,
        "converted": converted,
    }


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that is there, on disk and whole, only when the block ends."""
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _Pool(concurrent.futures.ProcessPoolExecutor):
    """Processes that leave signals to this one, from their first moment."""

    def submit(self, *arguments, **named_arguments) -> concurrent.futures.Future:
        # It may start a process, which takes over what is blocked here.
        signals = {signal.SIGINT, signal.SIGTERM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            return super().submit(*arguments, **named_arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def workers(count: int) -> Iterator[concurrent.futures.Executor]:
    """Processes that end at once when this block does, or this process is killed."""
    context = multiprocessing.get_context("spawn")
    alive, held = context.Pipe(duplex=False)
    pool = _Pool(
        count, mp_context=context, initializer=_start_worker, initargs=(alive,)
    )
    try:
        yield pool
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        alive.close()


def _start_worker(alive: multiprocessing.connection.Connection) -> None:
    """Has a worker end with the process that started it."""

    def watch() -> None:
        alive.poll(None)  # nothing is ever sent: returns when the other end is gone
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def write(
    shards: list[Shard],
    journal: Journal,
    pool: concurrent.futures.Executor,
    max_bad_images: int,
) -> list[str]:
    """Writes the shards that the journal lacks.

    Returns:
      The bad images with the reasons, as soon as they are more than `max_bad_images`;
      else nothing, and all shards are there.

    Raises:
      OSError: the disk is full, or a file cannot be read or written.
      ValueError: a worker was killed.
    """
    missing = {shard.file: shard for shard in shards if shard.file not in journal.done}
    total = sum(len(shard.images) for shard in shards)
    to_do = sum(len(shard.images) for shard in missing.values())
    if len(missing) < len(shards):
        print(
            f"going on: {len(shards) - len(missing):,} of {len(shards):,} shards "
            "are done"
        )
    bad = [text for line in journal.done.values() for text in named(line)]
    with ImageProgress("written", total, total - to_do) as progress:
        if len(bad) > max_bad_images:
            return bad
        futures = [pool.submit(write_shard, shard) for shard in missing.values()]
        for future in concurrent.futures.as_completed(futures):
            try:
                line = future.result()
            except concurrent.futures.BrokenExecutor as error:
                raise ValueError(
                    "stopped because a worker process was killed, perhaps for lack of "
                    "memory: the same command goes on, --workers=1 takes least"
                ) from error
            journal.add(line)
            bad += named(line)
            progress.add(len(missing[line["file"]].images), len(line["left_out"]))
            if len(bad) > max_bad_images:
                return bad
    return []


def named(line: dict[str, Any]) -> list[str]:
    """The images that were left out, with the reasons."""
    return [f"{one['image']}: {one['reason']}" for one in line["left_out"]]
