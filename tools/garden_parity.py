r"""Our network against the Model Garden's backbone that has read our export.

python tools/garden_parity.py --garden_python=.venv-detection/bin/python

makes networks with weights from a seed, exports them as backbones, has
tools/detection/features.py load them with the Model Garden and compute the features of
a photograph, and compares stages 2 to 5. Both paddings: the Model Garden pads as
TensorFlow does ("same"); tools/detection/garden.py makes it pad symmetrically.

Writes tools/results/garden_parity.json and, for tests where there is no Model Garden,
its features and the names of its variables in garden_features.npz. Where a feature
differs by more than 1e-4 of the largest of its stage, or a variable has no partner, it
writes nothing, and the exit code is 1.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
import numpy as np
from absl import flags as absl_flags

from tf_goyal import flags

FEATURES = machine.RESULTS / "garden_features.npz"
SCRIPT = Path(__file__).resolve().parent / "detection" / "features.py"
# (network, padding, height and width)
CASES = (
    ("resnet50", "same", 32),
    ("resnet50", "symmetric", 32),
    ("resnet50", "same", 225),
    ("resnet50", "symmetric", 224),
    ("resnet101", "same", 64),
    ("resnet152", "symmetric", 64),
)
STORED = CASES[:2]
VARIABLES = {"resnet50": 265, "resnet101": 520, "resnet152": 775}
ALLOWED = 1e-4
SECONDS = 600  # for the Model Garden


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    absl_flags.DEFINE_string(
        "garden_python",
        ".venv-detection/bin/python",
        "Interpreter of an environment with tf-models-official 2.20, as "
        "tools/detection/setup makes it.",
        flag_values=values,
    )


def network(name: str, padding: str) -> Any:
    """A network whose weights are NumPy's random numbers, so everywhere the same.

    All variables matter: nothing is 0 or 1 as in a new network, and features stay of
    the size of those of a trained one.
    """
    from tf_goyal import resnet

    model = resnet.build(name, classes=2, image_size=None, padding=padding)
    random = np.random.default_rng(0)
    for variable in sorted(model.variables, key=lambda v: v.path):
        kind = variable.path.rpartition("/")[2]
        shape = tuple(variable.shape)
        if kind == "kernel":
            values = random.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape)
        elif kind in ("gamma", "moving_variance"):
            values = random.uniform(0.5, 1.5, shape)
        else:
            values = random.normal(0, 0.1, shape)
        # Else every block adds its size to that of the ones before.
        variable.assign(values * (0.2 if "conv3/" in variable.path else 1.0))
    return model


def photograph(size: int) -> np.ndarray:
    """Two parts of a photograph: uint8 [2, size, size, 3], RGB."""
    from sklearn.datasets import load_sample_images

    (image, _) = load_sample_images().images
    return np.stack([image[at : at + size, at : at + size] for at in (60, 200)])


def about(name: str, padding: str) -> str:
    """As much of an export's metadata as the other side reads."""
    from tf_goyal import resnet

    how = {"channel_order": "RGB", "mean": resnet.MEAN, "std": resnet.STD}
    described = {
        "model": name,
        "padding": padding,
        "batch_norm": {"epsilon": 1e-5},
        "preprocessing": how,
    }
    return json.dumps(described)


def garden_features(
    python: str, model: Any, padding: str, images: np.ndarray
) -> dict[str, Any]:
    """The stages' features by the Model Garden, and what the export consists of.

    Raises:
      RuntimeError: it does not read the export, or not every variable of it.
    """
    import tensorflow as tf

    from tf_goyal import backbone

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backbone.write(model, folder, about(model.name, padding))
        np.save(folder / "images.npy", images)
        files = ("backbone", "images.npy", "features.npz")
        command = [python, SCRIPT, *(folder / file for file in files)]
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{command[1]} failed:\n{done.stderr[-2000:]}")
        reader = tf.train.load_checkpoint(str(folder / "backbone"))
        names = sorted(reader.get_variable_to_shape_map())
        return {"names": names, **np.load(folder / "features.npz", allow_pickle=False)}


def main(_: list[str]) -> int:
    """Compares, prints and stores. Returns the exit code."""
    import tensorflow as tf

    from tf_goyal import export_formats

    tf.config.experimental.enable_tensor_float_32_execution(False)
    python = str(Path(flags.FLAGS.garden_python).absolute())
    if not Path(python).exists():
        raise ValueError(
            f"--garden_python must be an interpreter, there is none at {python}: "
            "tools/detection/setup makes it"
        )
    results, stored = [], {}
    for name, padding, size in CASES:
        model, images = network(name, padding), photograph(size)
        garden = garden_features(python, model, padding, images)
        ours = export_formats.features(model, images)
        largest = {stage: float(np.max(values)) for stage, values in ours.items()}
        differences = {
            stage: float(np.max(np.abs(garden[stage] - values)))
            for stage, values in ours.items()
        }
        variables = len([n for n in garden["names"] if "VARIABLE_VALUE" in n])
        results.append(
            {
                "network": name,
                "padding": padding,
                "image_size": size,
                "variables": variables,
                "largest_difference": differences,
                "largest_feature": largest,
            }
        )
        shown = ", ".join(
            f"{stage} {value:.2g}" for stage, value in differences.items()
        )
        print(f"{name}, {padding}, {size} pixels: differs by {shown}", flush=True)
        apart = [s for s, d in differences.items() if not d <= ALLOWED * largest[s]]
        if apart or variables != VARIABLES[name]:
            print(
                f"{name}, {padding}: {', '.join(apart) or 'no stage'} differs by more "
                f"than {ALLOWED:g} of its largest; {variables} variables, "
                f"{VARIABLES[name]} expected",
                file=sys.stderr,
            )
            return 1
        if (name, padding, size) in STORED:
            stored |= {f"{padding} {stage}": garden[stage] for stage in ours}
            stored |= {"images": images, "names": garden["names"]}
    np.savez_compressed(FEATURES, **stored)
    path = machine.write("garden_parity", {"cases": results})
    print(f"in {path} and {FEATURES}")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
