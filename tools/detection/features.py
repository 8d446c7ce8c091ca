"""The four stages' features of images, by the Model Garden's backbone.

    PYTHON tools/detection/features.py RUN/export/backbone IMAGES.npy FEATURES.npz

PYTHON is the interpreter of tools/detection/setup. IMAGES.npy holds uint8
[b, H, W, 3], RGB; FEATURES.npz gets float32 [b, h, w, channels] as stage2 ... stage5.
"""

import sys
from pathlib import Path

import garden
import numpy as np
import tensorflow as tf


def main(folder: str, images_file: str, features_file: str) -> None:
    """Computes and writes them."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    images = np.load(images_file, allow_pickle=False)
    try:
        network = garden.backbone(Path(folder), images.shape[1:3])
    except ValueError as error:
        sys.exit(f"features: {error}")
    given = garden.normalized(images, garden.metadata(Path(folder)))
    found = network(given, training=False)
    np.savez(features_file, **{f"stage{s}": found[s].numpy() for s in garden.STAGES})
    print(f"{len(network.variables)} variables matched")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
