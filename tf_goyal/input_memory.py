"""What the input pipeline of a process holds in memory at most.

With oneDNN, TensorFlow takes memory from the system in ever larger pieces and gives
none of it back: then up to twice as much is taken as is held.
"""

import math
from typing import Any

from tf_goyal import build
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset, Split
from tf_goyal.shards import ShardSplit

_CHANNELS = 3
_USUAL_PIXELS = 500 * 375  # of an image, where it was not looked at: ImageNet's
_EPOCHS = 2  # whose orders are kept: a step may hold the end of one


def estimate(
    settings: Config, data: Dataset, processes: int, most_pixels: int = 0
) -> dict[str, Any]:
    """Adds up the fullest process' parts, in bytes.

    Counted are, with T threads, images of S x S pixels, m virtual workers of n images
    here and P steps made ahead:

    * images: of P + 2 steps. P of them wait or are being gathered image by image; one
      is in use; one more is there while a gathered step is copied into one piece.
    * decoding: for each thread a crop as large as the whole image, as uint8 and as
      float32, and it resized, twice as float32 and twice as uint8; and one that is
      done.
    * encoded: records that are read. T calls for n records run or wait, each with the
      bytes in Python and in TensorFlow, then n that are being dealt out and one for
      each decoding thread. They count with the mean size of the records.
    * evaluation: the same for its batches of n images, beside the training images that
      wait meanwhile; without decoding, since that goes on in one of the two only.
    * order: 8 bytes a training record, for two epochs.
    * index: 20 bytes a record; a folder per class has none.
    * cache: with --cache=memory, all records.

    Args:
      settings: of the run.
      data: the run's.
      processes: that train together.
      most_pixels: of the largest image; 0: as many as ImageNet's usually have.

    Returns:
      JSON values: bytes by the names above, their "total", and the numbers counted
      with: "threads", "steps_ahead" and "pixels".
    """
    image = settings.image_size**2 * _CHANNELS
    n, pixels = settings.worker_batch, most_pixels or _USUAL_PIXELS
    step = math.ceil(settings.virtual_workers / processes) * n * image
    threads = build.threads(settings)
    ahead, count = threads.ahead(step), threads.count
    buffers = pixels * _CHANNELS * (1 + 4) + image * (4 + 4 + 1 + 1 + 1)
    in_flight = 2 * count * n + n + count
    parts = {
        "images": (ahead + 2) * step,
        "decoding": count * buffers,
        "encoded": in_flight * _mean_bytes(data.train),
        "evaluation": (threads.ahead(n * image) + 2) * n * image
        + in_flight * _mean_bytes(data.validation),
        "order": _EPOCHS * 8 * len(data.train),
        "index": _index_bytes(data.train) + _index_bytes(data.validation),
        "cache": data.train.bytes + data.validation.bytes
        if settings.cache == "memory"
        else 0,
    }
    return {
        **parts,
        "total": sum(parts.values()),
        "threads": count,
        "steps_ahead": ahead,
        "pixels": pixels,
    }


def _mean_bytes(split: Split) -> int:
    return math.ceil(split.bytes / len(split))


def _index_bytes(split: Split) -> int:
    if not isinstance(split, ShardSplit):
        return 0
    index = split.index
    return index.file.nbytes + index.offset.nbytes + index.length.nbytes
