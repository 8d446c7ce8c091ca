"""The input pipelines of others, for input_contestants.py, which starts this.

    python tools/input_rivals.py --files=FOLDER --batch=32 --image_size=224 \
        --warm_steps=8 --steps=24

It may run in another environment than tf_goyal's, and uses nothing of it. Of these it
offers what is installed:

  torchvision    ImageFolder, RandomResizedCrop, RandomHorizontalFlip, ToTensor and
                 Normalize with Pillow; a DataLoader with a worker per core
  grain workers  Grain's MapDataset, cv2.imdecode, the same crop, cv2.resize, flip,
                 float32 normalised; a process per core
  grain threads  the same in one process, a thread per core: batches are not handed
                 from process to process, but Python's lock is shared

FOLDER holds JPEGs in a folder per class. The first line on stdout says which rivals
there are, with their versions. From then on a rival's name on stdin is a turn, and the
answer are its seconds per image; the batches of --warm_steps do not count.
"""

import argparse
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

MEAN = (0.485, 0.456, 0.406)  # RGB, of 1
STD = (0.229, 0.224, 0.225)


def torchvision(arguments: argparse.Namespace) -> Callable[[], Iterator[Any]]:
    """Starts the workers anew each time, by forking."""
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)  # as the workers have it anyway
    images = datasets.ImageFolder(
        arguments.files,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(arguments.image_size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        ),
    )
    loader = torch.utils.data.DataLoader(
        images,
        batch_size=arguments.batch,
        # No epoch ends within a turn.
        sampler=torch.utils.data.RandomSampler(
            images, replacement=True, num_samples=1_000_000 * arguments.batch
        ),
        num_workers=cores(),
        drop_last=True,
    )
    return lambda: iter(loader)


class Files:
    """Encoded images and labels by number, as Grain wants them."""

    def __init__(self, folder: str):
        files = sorted(Path(folder).glob("*/*"))
        labels = {name: i for i, name in enumerate(sorted({f.parent for f in files}))}
        self._images = [(str(file), labels[file.parent]) for file in files]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        file, label = self._images[index]
        with open(file, "rb") as opened:
            return opened.read(), label


class CropImage:
    """Encoded image -> float32 [S, S, 3]: torchvision's RandomResizedCrop and flip."""

    def __init__(self, image_size: int):
        self._size = (image_size, image_size)
        self._scale = (1 / (255 * np.array(STD))).astype(np.float32)
        self._shift = (np.array(MEAN) / np.array(STD)).astype(np.float32)

    def __call__(self, item: tuple[bytes, int], random: np.random.Generator):
        import cv2

        cv2.setNumThreads(0)  # images in parallel, not pixels
        encoded, label = item
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
        y, x, height, width = self._window(*image.shape[:2], random)
        image = image[y : y + height, x : x + width]
        image = cv2.resize(image, self._size, interpolation=cv2.INTER_LINEAR)
        if random.random() < 0.5:
            image = cv2.flip(image, 1)
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return image * self._scale - self._shift, np.int32(label)

    def _window(self, height: int, width: int, random: np.random.Generator):
        for _ in range(10):
            area = height * width * random.uniform(0.08, 1)
            aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                break
        else:
            h = w = min(height, width)
        y, x = random.integers(height - h + 1), random.integers(width - w + 1)
        return y, x, h, w


def grain(
    arguments: argparse.Namespace, *, in_processes: bool
) -> Callable[[], Iterator[Any]]:
    """Goes on where it was: its processes take seconds to start."""
    import grain

    # What may lie ready before a turn is less than the batches that do not count.
    threads = grain.ReadOptions(
        num_threads=1 if in_processes else cores(),
        prefetch_buffer_size=2 if in_processes else arguments.batch,
    )
    dataset = (
        grain.MapDataset.source(Files(arguments.files))
        .seed(0)
        .shuffle()
        .repeat()
        .random_map(CropImage(arguments.image_size))
        .to_iter_dataset(threads)
        .batch(arguments.batch, drop_remainder=True)
    )
    if in_processes:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(cores()))
    iterator = iter(dataset)
    return lambda: iterator


# Name: the function and the packages that it needs.
_TORCH = ("torch", "torchvision", "pillow")
_GRAIN = ("grain", "opencv-python-headless")
RIVALS = {
    "torchvision": (torchvision, _TORCH),
    "grain workers": (functools.partial(grain, in_processes=True), _GRAIN),
    "grain threads": (functools.partial(grain, in_processes=False), _GRAIN),
}


def installed() -> dict[str, dict[str, str]]:
    """Rival -> package -> version."""
    found = {}
    for rival, (_, packages) in RIVALS.items():
        try:
            found[rival] = {name: metadata.version(name) for name in packages}
        except metadata.PackageNotFoundError:
            continue
    return found


def seconds_per_image(
    batches: Callable[[], Iterable[Any]], arguments: argparse.Namespace
) -> float:
    """One turn."""
    iterator = iter(batches())
    for _ in range(arguments.warm_steps):
        next(iterator)
    clock = time.perf_counter()
    for _ in range(arguments.steps):
        next(iterator)
    return (time.perf_counter() - clock) / (arguments.steps * arguments.batch)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def main() -> None:
    """Answers until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", required=True)
    for name in ("batch", "image_size", "warm_steps", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    # Nothing but answers goes to the real stdout, whatever the libraries print.
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=stdout, flush=True)

    versions = installed()
    batches = {name: RIVALS[name][0](arguments) for name in versions}
    answer(versions)
    for line in sys.stdin:
        answer(seconds_per_image(batches[line.strip()], arguments))


if __name__ == "__main__":
    main()
