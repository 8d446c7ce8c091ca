"""Installs tf_goyal, with its recipes (flags/) and its embedded data."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent


def version() -> str:
    """`__version__` of the package, read without importing it."""
    source = (HERE / "tf_goyal" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE).group(1)


def readme() -> str:
    """The long description."""
    path = HERE / "README.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


setup(
    name="tf_goyal",
    version=version(),
    description="Large-minibatch synchronous SGD after Goyal et al. 2017, in Keras 3",
    long_description=readme(),
    long_description_content_type="text/markdown",
    author="The tf_goyal authors",
    license="Apache-2.0",
    packages=["tf_goyal", "tf_goyal.recipes"],
    package_dir={"tf_goyal.recipes": "flags"},
    package_data={"tf_goyal": ["data/**/*"], "tf_goyal.recipes": ["*"]},
    zip_safe=False,
    python_requires=">=3.10,<3.14",
    install_requires=[
        "absl-py",
        "google-crc32c",
        "keras>=3.15,<3.16",
        "numpy",
        "rich",
        "tensorflow>=2.21,<2.22",
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],
        "k8s": ["pyyaml"],
        "onnx": ["onnx", "onnxruntime", "tf2onnx"],
        "plot": ["matplotlib"],
        "prepare": ["pillow", "scipy"],
        "test": [
            "kubernetes>=37",
            "matplotlib",
            "onnx",
            "onnxruntime",
            "pillow",
            "psutil",
            "pycocotools",
            "pytest",
            "pytest-xdist",
            "pyyaml",
            "ruff",
            "scikit-learn",
            "scipy",
            "setuptools>=70.1",
            "tensorflow-datasets",
            "tf2onnx",
        ],
    },
)
