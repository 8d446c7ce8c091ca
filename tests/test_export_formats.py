"""Every format of an export: what it answers, what it carries, what it needs."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import (
    augment,
    build,
    checkpoint,
    datasets,
    export,
    export_formats,
    keras_file,
    lite_file,
    onnx_file,
    resnet,
    trained,
)
from tf_goyal.config import Config

FORMATS = "saved_model,keras,tflite,onnx"
# Loads plain.keras where this package cannot be imported.
ALONE = """
import sys
sys.modules["tf_goyal"] = None
import keras, numpy as np

path, images, output = sys.argv[1:]
model = keras.models.load_model(path, safe_mode=True)
logits = model.predict(np.load(images), verbose=0)
np.save(output, keras.ops.softmax(logits))
"""


@pytest.fixture(scope="module")
def exported(trained_run, python, tmp_path_factory):
    """The folder of an export in all formats that a small network has."""
    output = tmp_path_factory.mktemp("formats") / "export"
    flags = [f"--model_dir={trained_run}", f"--output={output}", f"--formats={FORMATS}"]
    done = python("-m", "tf_goyal.export", *flags)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def answers(trained_run):
    """32 validation images, and the probabilities of the network."""
    found = trained.load(str(trained_run))
    model = build.model(found.settings, 10)
    checkpoint.assign("model", model.variables, found.arrays)
    _, images = export.check_images(found.settings, datasets.load("digits"))
    return images, export_formats.probabilities(model, images)["probabilities"]


def test_the_folder(exported):
    assert sorted(path.name for path in exported.iterdir()) == [
        "metadata.json",
        "model.keras",
        "model.onnx",
        "model.tflite",
        "plain.keras",
        "saved_model",
    ]


def test_plain_keras_needs_keras_alone(exported, answers, tmp_path):
    """X1, of the Keras file: a fresh process without this package."""
    images, output = tmp_path / "images.npy", tmp_path / "answers.npy"
    np.save(images, answers[0])
    arguments = [str(exported / "plain.keras"), str(images), str(output)]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *arguments],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(output), answers[1], atol=1e-6)


@pytest.mark.parametrize("file", [lite_file, onnx_file])
def test_other_runtimes_answer_the_same(exported, answers, file):
    """X2 as well: one image alone, and among 32."""
    images, expected = answers
    found = file.probabilities(exported, images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    alone = file.probabilities(exported, images[5:6])
    np.testing.assert_allclose(alone[0], found[5], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["model.keras", "plain.keras"])
def test_keras_files_answer_the_same_alone_and_among_32(exported, answers, name):
    """X2."""
    images, expected = answers
    model = keras.models.load_model(exported / name)
    found = export_formats.probabilities(model, images)["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    alone = export_formats.probabilities(model, images[5:6])["probabilities"]
    np.testing.assert_allclose(alone[0], expected[5], rtol=0, atol=1e-6)


def test_every_file_carries_the_metadata(exported):
    """X4."""
    import onnx

    text = (exported / "metadata.json").read_text("utf-8")
    for name in ("model.keras", "plain.keras"):
        with zipfile.ZipFile(exported / name) as archive:
            assert archive.read(keras_file.METADATA).decode() == text
    with zipfile.ZipFile(exported / "model.tflite") as archive:
        assert archive.read("metadata.json").decode() == text
        assert archive.read("labels.txt").decode().split() == list("0123456789")
    properties = onnx.load(exported / "model.onnx").metadata_props
    carried = {entry.key: entry.value for entry in properties}
    assert carried["metadata"] == text
    assert carried["labels"].split("\n") == list("0123456789")
    assert json.loads(text)["weights_sha256"]


def test_features_of_images_of_any_size(exported, trained_run):
    """By hand: 37 x 21 pixels are halved to 19 x 11 and 10 x 6."""
    found = trained.load(str(trained_run))
    model = build.model(found.settings, 10, any_size=True)
    checkpoint.assign("model", model.variables, found.arrays)
    features = tf.saved_model.load(str(exported / "saved_model")).signatures["features"]
    images = np.random.default_rng(0).integers(0, 256, [3, 37, 21, 3], np.uint8)
    stages = features(images=tf.constant(images))
    shapes = {name: stage.shape for name, stage in stages.items()}
    assert shapes == {
        "stage2": (3, 37, 21, 16),
        "stage3": (3, 19, 11, 32),
        "stage4": (3, 10, 6, 64),
    }
    expected = export_formats.features(model, images)
    for name, stage in stages.items():
        np.testing.assert_allclose(stage, expected[name], rtol=1e-5, atol=1e-5)
    alone = features(images=tf.constant(images[1:2]))
    for name, stage in stages.items():  # running statistics: X2 for features
        np.testing.assert_allclose(alone[name][0], stage[1], rtol=1e-5, atol=1e-5)


@pytest.fixture
def half():
    """Networks made meanwhile compute in bfloat16."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy("float32")


def made(folder, **changes):
    """What formats are made of: a new network, and images of noise."""
    settings = Config(image_size=32, eval_resize=36, **changes)
    labels = ["ant", "bee", "cat"]
    model = build.model(settings, len(labels), any_size=True)
    random = np.random.default_rng(0)
    for variable in model.variables:
        if "moving" in variable.path:
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
    noise = random.integers(0, 256, [3, 40, 44, 3], np.uint8)
    encoded = [tf.io.encode_jpeg(image).numpy() for image in noise]
    how = export_formats.evaluation_settings(settings)
    images = np.stack([augment.eval_image(image, **how) for image in encoded])
    (folder / "metadata.json").write_text("{}")
    return export_formats.Trained(
        model, settings, labels, "{}", folder, encoded, images
    )


@pytest.mark.parametrize("name", export_formats.WRITERS)
def test_a_network_trained_in_half_precision(half, tmp_path, name):
    """Files of other runtimes and of the backbone are in float32."""
    model = "resnet50" if name == "backbone" else "resnet20"
    trained_half = made(tmp_path, model=model, precision="bfloat16")
    checked = export_formats.WRITERS[name](trained_half)
    assert checked.difference <= checked.allowed
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    if name in ("tflite", "onnx", "backbone"):
        assert checked.allowed <= 1e-4


@pytest.mark.parametrize("name", ["keras", "backbone", "tflite", "onnx"])
def test_a_file_that_reads_back_otherwise_is_found(tmp_path, monkeypatch, name):
    """Each reader is given another network's file, or answers with NaN."""
    first = made(tmp_path, model="resnet50" if name == "backbone" else "resnet20")
    other = keras.models.clone_model(first.model)
    other.set_weights([weight + 0.01 for weight in first.model.get_weights()])
    if name == "keras":
        monkeypatch.setattr(keras_file, "read", lambda _: [first.model, other])
    elif name == "backbone":
        monkeypatch.setattr(
            export_formats.backbone,
            "read_into",
            lambda model, _: model.set_weights(other.get_weights()),
        )
    else:
        file = {"tflite": lite_file, "onnx": onnx_file}[name]
        monkeypatch.setattr(
            file, "probabilities", lambda *_: np.full([3, 3], np.nan, np.float32)
        )
    checked = export_formats.WRITERS[name](first)
    assert not checked.difference <= checked.allowed


@pytest.mark.parametrize("where", [0, 1, 2])
def test_one_nan_among_differences_is_no_success(where):
    numbers = [1e-7, 0.0, 1e-9]
    assert export_formats.largest(numbers) == 1e-7
    numbers[where] = float("nan")
    assert not export_formats.largest(numbers) <= 1
    features = {f"stage{i}": np.full(2, numbers[i], np.float32) for i in range(3)}
    zeros = {name: np.zeros(2, np.float32) for name in features}
    assert not export_formats._difference(features, zeros) <= 1


def test_plain_keras_takes_over_every_setting():
    """Epsilon and momentum of BatchNorm, and all weights."""
    model = resnet.build("resnet20", classes=3, image_size=None)
    plain = keras_file.plain(model)
    layers = [
        layer
        for layer in plain.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    assert len(layers) == 21
    assert {(layer.epsilon, layer.momentum) for layer in layers} == {(1e-5, 0.9)}
    assert [w.path for w in plain.variables] == [w.path for w in model.variables]


def refused(*flags):
    with pytest.raises(ValueError) as why:
        export.flags.parse(["export", *flags], define=export.define, with_config=False)
        export.main([])
    return str(why.value)


def test_formats_that_cannot_be_are_refused(trained_run, monkeypatch):
    run = f"--model_dir={trained_run}"
    assert "received 'pickle'" in refused(run, "--formats=keras,pickle")
    assert "received none" in refused(run, "--formats=")
    assert "received ''" in refused(run, "--formats=keras,")
    message = refused(run, "--formats=backbone")
    assert "this run's is resnet20" in message and "resnet50" in message
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = refused(run, "--formats=onnx")
    assert 'pip install "tf_goyal[onnx]"' in message and "onnxruntime" in message


@pytest.mark.parametrize("broken", ["variables.npz", "manifest.json"])
def test_a_broken_or_unfinished_checkpoint(trained_run, tmp_path, python, broken):
    """Cut in two: the one before it is exported; if that was asked for, exit code 2."""
    run = tmp_path / "run"
    for step in (12, 14):
        folder = run / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        for path in (trained_run / "checkpoints" / f"step-{step}").iterdir():
            data = path.read_bytes()
            cut = step == 14 and path.name == broken
            (folder / path.name).write_bytes(data[: len(data) // 2] if cut else data)
    (run / "checkpoints" / ".step-15-unfinished").mkdir()
    named = python("-m", "tf_goyal.export", f"--model_dir={run}", "--step=14")
    assert named.returncode == 2
    assert "step-14" in named.stderr and broken in named.stderr
    assert not (run / "export").exists()
    newest = python("-m", "tf_goyal.export", f"--model_dir={run}")
    assert newest.returncode == 0, newest.stderr
    assert json.loads((run / "export" / "metadata.json").read_text())["step"] == 12
