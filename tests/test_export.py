"""The command `export`: the SavedModel is the trainer's model, and stands alone."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pictures
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tf_goyal import (
    augment,
    build,
    checkpoint,
    datasets,
    export,
    export_formats,
    export_metadata,
    run_log,
    trained,
)

difference_of = export_formats.saved_model_difference

# Runs where neither this package nor Keras can be imported.
SERVE = """
import json, sys
for package in ("tf_goyal", "keras"):
    sys.modules[package] = None
import numpy as np
import tensorflow as tf

path, files, output = sys.argv[1:]
loaded = tf.saved_model.load(path)
serve = loaded.signatures["serving_default"]
encoded = list(np.load(files, allow_pickle=False)["encoded"])
results = [serve(encoded=tf.constant(encoded[i : i + 32]))
           for i in range(0, len(encoded), 32)]
np.savez(
    output,
    alone=serve(encoded=tf.constant(encoded[5:6]))["probabilities"],
    metadata=loaded.metadata.asset_path.numpy(),
    **{name: np.concatenate([result[name] for result in results]).astype(kind)
       for name, kind in (("probabilities", "f4"), ("classes", "i8"), ("labels", "S"))},
)
assert not [name for name in sys.modules if name.startswith(("tf_goyal.", "keras."))]
"""


@pytest.fixture(scope="module")
def exported(trained_run, python, tmp_path_factory):
    """The folder of an export of the trained run, and what the command said."""
    output = tmp_path_factory.mktemp("exported") / "deep" / "model"
    flags = [f"--model_dir={trained_run}", f"--output={output}"]
    done = python("-m", "tf_goyal.export", *flags)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in output.parent.iterdir()] == ["model"]
    return output, done.stdout


@pytest.fixture(scope="module")
def validation():
    """All encoded images [297] and their labels [297]."""
    split = datasets.load("digits").validation
    encoded, labels = zip(*map(split.read, range(len(split))), strict=True)
    return list(encoded), np.array(labels)


@pytest.fixture(scope="module")
def served(exported, validation, tmp_path_factory):
    """What a fresh process without this package makes of all validation images."""
    folder = tmp_path_factory.mktemp("served")
    files, output = folder / "files.npz", folder / "output.npz"
    np.savez(files, encoded=np.array(validation[0]))
    arguments = [exported[0] / "saved_model", files, output]
    done = subprocess.run(
        [sys.executable, "-I", "-c", SERVE, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(np.load(output, allow_pickle=False))


@pytest.fixture(scope="module")
def restored(trained_run):
    """The checkpoint and the model that it belongs to."""
    found = trained.load(str(trained_run))
    model = build.model(found.settings, 10, any_size=True)
    checkpoint.assign("model", model.variables, found.arrays)
    return found, model


def test_loads_without_this_package_and_repeats_the_trainers_evaluation(
    served, validation, trained_run
):
    """X1: the error and the loss that the two training processes logged."""
    line = [line for line in run_log.read(trained_run) if line["kind"] == "eval"][-1]
    labels = validation[1]
    assert line["images"] == len(labels) == len(served["probabilities"])
    wrong = np.argmax(served["probabilities"], 1) != labels
    assert 100.0 * np.sum(wrong) / len(labels) == line["top1_error"]
    right = served["probabilities"][np.arange(len(labels)), labels].astype(np.float64)
    np.testing.assert_allclose(-np.mean(np.log(right)), line["loss"], rtol=1e-5)


def test_probabilities_are_the_models(served, validation, restored):
    """X1: equal to those of the model that the checkpoint belongs to."""
    settings, model = restored[0].settings, restored[1]
    data = datasets.load("digits")
    _, images = export.check_images(settings, data)
    expected = tf.nn.softmax(model(images, training=False)).numpy()
    assert served["probabilities"].shape == (len(validation[0]), 10)
    assert served["probabilities"].dtype == np.float32
    assert np.ptp(expected, axis=0).max() > 0.01  # images matter to this model
    np.testing.assert_allclose(served["probabilities"][:32], expected, atol=1e-6)
    np.testing.assert_array_equal(served["classes"][:32], np.argmax(expected, 1))
    names = [name.decode() for name in served["labels"]]
    assert names == [data.labels[i] for i in served["classes"]]


def test_one_image_alone_and_among_32(served):
    """X2."""
    assert served["alone"].shape == (1, 10)
    np.testing.assert_allclose(
        served["alone"][0], served["probabilities"][5], rtol=0, atol=1e-6
    )


def test_graph_has_no_collective_no_device_and_no_custom_object(exported):
    """X1, the file itself: main graph, function library and object graph."""
    file = exported[0] / "saved_model" / "saved_model.pb"
    (graph,) = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
    functions = graph.graph_def.library.function
    nodes = [*graph.graph_def.node, *(n for f in functions for n in f.node_def)]
    operations = {node.op for node in nodes}
    assert {"Conv2D", "FusedBatchNormV3", "DecodeJpeg"} <= operations
    alien = ("Collective", "Nccl", "PyFunc", "EagerPyFunc", "Send", "Recv")
    assert not [name for name in operations if name.startswith(alien)]
    # TensorFlow's own reader and writer of the variables' files sit on the host's CPU.
    files = [f for f in functions if "_traced_save_" in f.signature.name]
    files += [f for f in functions if "_traced_restore_" in f.signature.name]
    assert len(files) == 2
    assert {node.device for node in nodes} == {"", "/device:CPU:0", "/device:CPU:*"}
    for function in functions:
        assert function in files or not [n for n in function.node_def if n.device]
    training = [n for n in nodes if n.op == "FusedBatchNormV3"]
    assert not [node.name for node in training if node.attr["is_training"].b]
    for node in graph.object_graph_def.nodes:
        assert not node.registered_name
        assert "tf_goyal" not in node.user_object.identifier
        assert "keras" not in node.user_object.identifier
        assert not node.variable.device


def test_label_map_and_preprocessing_are_stored(exported, served, trained_run):
    """X4: beside the SavedModel, and in it."""
    text = (exported[0] / "metadata.json").read_text("utf-8")
    asset = Path(served["metadata"].item().decode())
    assert exported[0] in asset.parents
    assert asset.read_text("utf-8") == text

    found = json.loads(text)
    line = [line for line in run_log.read(trained_run) if line["kind"] == "eval"][-1]
    assert found["labels"] == [str(digit) for digit in range(10)]
    preprocessing = found["preprocessing"]
    assert preprocessing["mean"] == [123.675, 116.28, 103.53]
    assert preprocessing["std"] == [58.395, 57.12, 57.375]
    assert preprocessing["channel_order"] == "RGB"
    assert preprocessing["pixel_range"] == [0, 255]
    assert preprocessing["image_size"] == 16
    assert preprocessing["resize_shorter_side"] == 16
    assert preprocessing["resize_method"].startswith("bilinear")
    assert found["batch_norm"] == {"epsilon": 1e-5, "statistics": "running"}
    assert found["padding"] == "symmetric"
    assert (found["model"], found["step"]) == ("resnet20", 14)
    assert found["weights_sha256"] == line["weights_sha256"]
    assert found["evaluation"]["top1_error"] == line["top1_error"]
    assert found["returns"]["keras"] == "logits"
    assert set(found["returns"]) == set(export.FORMATS) - {"backbone"}
    assert found["recipe"]["worker_batch"] == 16
    assert str(trained_run) not in text  # nobody else's paths


def test_says_where_it_is_and_how_to_load_it(exported):
    output, said = exported
    assert "checked on 32 validation images" in said
    assert str(output / "saved_model") in said and str(output / "metadata.json") in said
    assert "import tensorflow as tf" in said


def test_an_evaluation_of_other_weights_is_not_stored(trained_run, tmp_path):
    sha256 = checkpoint.weights_sha256(trained.load(str(trained_run)).arrays)
    assert export_metadata._logged_evaluation(str(trained_run), 14, sha256) is None
    assert export_metadata._logged_evaluation(str(trained_run), 13, sha256) is None
    (tmp_path / "log.jsonl").write_text('{"kind": "eval", "step": 14, "loss": 1}')
    assert export_metadata._logged_evaluation(str(tmp_path), 14, sha256) is None
    assert (
        export_metadata._logged_evaluation(str(trained_run / "nothing"), 14, sha256)
        is None
    )


def run_main(*flags):
    export.flags.parse(["export", *flags], define=export.define, with_config=False)
    return export.main([])


def test_only_a_verified_export_replaces_the_older_one(
    trained_run, tmp_path, monkeypatch, capsys
):
    """1e-5 is allowed; more, or NaN, is exit 1: nothing new there, nothing lost."""
    output, older = tmp_path / "out", tmp_path / "out" / "saved_model"
    older.mkdir(parents=True)
    (output / "metadata.json").write_text("older")
    flags = [f"--model_dir={trained_run}", f"--output={output}", "--step=12"]
    monkeypatch.setattr(
        export_formats.saved_model, "write", lambda *_: (_[2] / "saved_model").mkdir()
    )
    monkeypatch.setattr(export, "_data", lambda *_: None)
    name = "saved_model_difference"

    for difference in (np.nextafter(1e-5, 1), float("nan")):
        monkeypatch.setattr(export_formats, name, lambda *_, d=difference: d)
        assert run_main(*flags) == 1
        assert "nothing exported" in capsys.readouterr().err
        assert (output / "metadata.json").read_text() == "older"
        assert list(tmp_path.iterdir()) == [output]

    (output / "model.onnx").write_text("older")
    monkeypatch.setattr(export_formats, name, lambda *_: 1e-5)
    assert run_main(*flags) == 0
    said = capsys.readouterr().out
    assert "32 random images" in said
    assert "removed with the earlier export there: model.onnx\n" in said
    assert json.loads((output / "metadata.json").read_text())["step"] == 12
    assert list(tmp_path.iterdir()) == [output]


def test_random_images_stand_in_for_missing_data(exported, restored):
    settings, model = restored[0].settings, restored[1]
    settings = dataclasses.replace(settings, dataset="tfrecord", data_dir="/missing")
    gone = restored[0]._replace(settings=settings)
    assert export._data(gone, None) is None
    with pytest.raises(ValueError, match="--data_dir"):
        export._data(gone, "/missing")
    encoded, images = export.check_images(settings, None)
    assert images.shape == (32, 16, 16, 3)
    saved_model = exported[0] / "saved_model"
    assert difference_of(saved_model, model, encoded, images) <= 1e-6


def test_odd_images_are_served_as_evaluation_takes_them(exported, restored):
    """D5: PNG, CMYK, grey, EXIF-rotated and GIF, pixel for pixel the evaluation's."""
    encoded = [
        pictures.encode(pictures.pixels(30, 50), "PNG"),
        pictures.cmyk(),
        pictures.encode(pictures.pixels(40, 24)[..., 0]),
        pictures.rotated(),
        pictures.encode(pictures.pixels(33, 20), "GIF"),
    ]
    settings, model = restored[0].settings, restored[1]
    how = export_formats.evaluation_settings(settings)
    images = tf.stack([augment.eval_image(one, **how) for one in encoded])
    saved_model = exported[0] / "saved_model"
    assert difference_of(saved_model, model, encoded, images) <= 1e-6


@pytest.mark.parametrize(
    ("name", "shape", "answered"),
    [
        ("images", [2, 16, 16, 3], True),
        ("images", [2, 17, 16, 3], False),
        ("images", [2, 16, 15, 3], False),
        ("images", [2, 16, 16, 1], False),
        ("features", [2, 17, 15, 3], True),
        ("features", [2, 16, 16, 1], False),
    ],
)
def test_images_of_another_size_get_no_answer(exported, name, shape, answered):
    """X1: what is not cropped would be classified otherwise, and nobody told."""
    loaded = tf.saved_model.load(str(exported[0] / "saved_model"))
    signature = loaded.signatures[name]
    images = tf.zeros(shape, tf.uint8)
    if answered:
        assert signature(images=images)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected shape"):
            signature(images=images)


def test_the_check_sees_a_difference(exported, restored, validation):
    """One weight of the last layer changed by 0.1 is far beyond the tolerance."""
    settings, model = restored[0].settings, restored[1]
    encoded, images = export.check_images(settings, datasets.load("digits"))
    assert encoded == validation[0][:32]
    saved_model = exported[0] / "saved_model"
    assert difference_of(saved_model, model, encoded, images) <= 1e-6
    bias = model.variables[-1]
    bias.assign(bias + np.eye(10, dtype=np.float32)[3] * 0.1)
    assert difference_of(saved_model, model, encoded, images) > 1e-4
    checkpoint.assign("model", model.variables, restored[0].arrays)


def test_somebodys_folder_is_not_replaced(trained_run, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"--output .* holds thesis\.tex"):
        run_main(f"--model_dir={trained_run}", f"--output={tmp_path}")
    with pytest.raises(ValueError, match="--output"):
        run_main(f"--model_dir={trained_run}", f"--output={tmp_path / 'thesis.tex'}")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_folder_is_on_a_disk_and_links_are_followed(tmp_path):
    """What a link is to is replaced, not the link."""
    with pytest.raises(
        ValueError, match=r"--output must .* received --output=gs://b/x"
    ):
        export._output("run", "gs://b/x")
    with pytest.raises(ValueError, match="--model_dir=gs://b/run"):
        export._output("gs://b/run", None)
    disk = (tmp_path / "disk").resolve()
    (tmp_path / "link").symlink_to(disk)
    assert export._output("run", str(tmp_path / "link")) == disk  # made when written
    assert export._output(str(tmp_path), None) == tmp_path.resolve() / "export"
