"""python -m tf_goyal.export: a trained model as a SavedModel for inference.

    python -m tf_goyal.export --model_dir=RUN

writes RUN/export/saved_model and RUN/export/metadata.json. The SavedModel loads with
TensorFlow alone. Its signatures return `probabilities` float32 [b, classes], `classes`
int64 [b] (the most probable one) and `labels` string [b] (its name):

    serving_default  encoded: string [b], JPEG, PNG, GIF or BMP files, which it crops as
                     evaluation does
    images           images: uint8 [b, S, S, 3], RGB, already of the model's size

The same metadata lies in the SavedModel as an asset. Before anything replaces an older
export, the SavedModel is loaded and held against the model it was made from.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags as absl_flags

from tf_goyal import (
    checkpoint,
    datasets,
    files,
    flags,
    provenance,
    run_log,
    start,
    trained,
)
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.trained import TrainedModel

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

SAVED_MODEL, METADATA = "saved_model", "metadata.json"
CHECK_FAILED = 1  # exit code
CHECK_IMAGES = 32
# The largest difference of a probability. The exported graph computes in the precision
# of the training, so that only another order of the same operations could show.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}


def define(values: absl_flags.FlagValues) -> None:
    """The flags of export."""
    flags.define_checkpoint(values)
    absl_flags.DEFINE_string(
        "output",
        None,
        "Folder to write; an earlier export there is replaced. By default export/ in "
        "the run's folder.",
        flag_values=values,
    )


def main(_: list[str]) -> int:
    """Writes, checks, and puts in place. Returns the exit code.

    Raises:
      ValueError: checkpoint, data or output folder are refused.
    """
    found = trained.load(flags.FLAGS.model_dir, flags.FLAGS.step)
    settings = found.settings
    data = _data(found, flags.FLAGS.data_dir)
    where = files.path(settings.model_dir)
    if not flags.FLAGS.output and not files.is_local(where):
        raise ValueError(
            "--output must name a folder on a disk where --model_dir is a store, "
            f"received --model_dir={settings.model_dir} and no --output"
        )
    output = Path(flags.FLAGS.output or where / "export").absolute()
    with _folder_beside(output) as beside:
        # From here on TensorFlow runs.
        start.tensorflow()
        from tf_goyal import build

        build.prepare_tensorflow(settings)
        model = build.model(settings, len(found.labels))
        checkpoint.assign("model", model.variables, found.arrays)

        written = Path(beside) / "new"
        written.mkdir()
        described = metadata(found, model)
        text = json.dumps(described, indent=2, ensure_ascii=False) + "\n"
        (written / METADATA).write_text(text, encoding="utf-8")
        write_saved_model(model, settings, found.labels, written)
        encoded, images = _check_images(settings, data)
        difference = largest_difference(written / SAVED_MODEL, model, encoded, images)
        allowed = TOLERANCE[settings.precision]
        if not difference <= allowed:  # NaN is no success
            print(
                f"export: the SavedModel's probabilities differ from the model's by "
                f"{difference:.3g} (at most {allowed:g} is allowed): nothing exported",
                file=sys.stderr,
            )
            return CHECK_FAILED
        _replace(output, written, Path(beside) / "old")
    _say(output, described, difference, data)
    return 0


def _data(found: TrainedModel, data_dir: str | None) -> Dataset | None:
    """The data set of the run, for the check; None where it is not here any more.

    Raises:
      ValueError: `data_dir` is given and is wrong.
    """
    settings = found.settings
    try:
        data = datasets.load(
            settings.dataset,
            settings.data_dir if data_dir is None else data_dir,
            label_offset=settings.label_offset,
        )
        trained.check_labels(found, data)
    except ValueError:
        if data_dir is not None:
            raise
        return None
    return data


def _folder_beside(output: Path) -> tempfile.TemporaryDirectory:
    """A folder on the disk of `output`, removed with all that is left in it.

    Raises:
      ValueError: nothing can be written there, or `output` is something else than an
        earlier export.
    """
    try:
        held = sorted(path.name for path in output.iterdir()) if output.exists() else []
        if held and held != sorted([SAVED_MODEL, METADATA]):
            raise ValueError(
                f"--output must be a new folder, an empty one or an earlier export; "
                f"{output} holds {', '.join(held[:3])}: name another folder"
            )
        output.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent)
    except OSError as error:
        raise ValueError(
            f"--output must be a folder that can be written, received {output}: "
            f"{error.strerror}"
        ) from error


def metadata(found: TrainedModel, model: "keras.Model") -> dict[str, Any]:
    """What somebody who uses the model must know about it. JSON values."""
    from tf_goyal import augment, resnet
    from tf_goyal.batch_norm import BatchNormalization

    settings = found.settings
    sha256 = checkpoint.weights_sha256(checkpoint.arrays_of("model", model.variables))
    (epsilon,) = {
        layer.epsilon for layer in model.layers if isinstance(layer, BatchNormalization)
    }
    return {
        "model": settings.model,
        "labels": found.labels,
        "preprocessing": {
            "channel_order": "RGB",
            "pixel_range": [0, 255],
            "image_size": settings.image_size,
            "resize_shorter_side": settings.eval_shorter_side,
            "resize_method": f"{settings.resize}, half-pixel centers, not antialiased; "
            "then rounded to whole levels",
            "crop": "center",
            "exif_orientation": "ignored",
            "jpeg_dct_method": augment.DCT[settings.dct],
            "normalization": "(pixel - mean) / std, inside the model",
            "mean": list(resnet.MEAN),
            "std": list(resnet.STD),
        },
        "padding": settings.padding,
        "batch_norm": {"epsilon": epsilon, "statistics": "running"},
        "precision": settings.precision,
        "step": found.step,
        "epoch": found.epoch,
        "evaluation": _logged_evaluation(settings.model_dir, found.step, sha256),
        "weights_sha256": sha256,
        "recipe": {name: getattr(settings, name) for name in settings.recipe_fields},
        "trained_with": {
            name: found.metadata[name] for name in ("versions", "git_commit")
        },
        "exported_with": provenance.versions(),
    }


def _logged_evaluation(model_dir: str, step: int, sha256: str) -> dict[str, Any] | None:
    """Loss and errors that the run's log has for these very weights."""
    try:
        lines = run_log.read(model_dir)
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        if line["kind"] == "eval" and line["step"] == step:
            names = ("images", "loss", "top1_error", "top5_error")
            same = line["weights_sha256"] == sha256
            return {name: line[name] for name in names} if same else None
    return None


def write_saved_model(
    model: "keras.Model", settings: Config, labels: list[str], folder: Path
) -> None:
    """Writes `folder`/saved_model, with `folder`/metadata.json as its asset.

    Args:
      model: uint8 images [b, S, S, 3] to float32 logits [b, classes], made outside of
        any strategy: so there is no collective and no device name in its graph.
      settings: of the run.
      labels: names of the classes.
      folder: holds metadata.json.
    """
    import tensorflow as tf

    from tf_goyal import augment

    size = settings.image_size

    @tf.function(
        input_signature=[tf.TensorSpec([None, size, size, 3], tf.uint8, "images")]
    )
    def classify_images(images):
        probabilities = tf.nn.softmax(model(images, training=False))
        classes = tf.argmax(probabilities, axis=1)
        return {
            "probabilities": probabilities,
            "classes": classes,
            "labels": tf.gather(tf.constant(labels), classes),
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "encoded")])
    def classify_encoded(encoded):
        images = tf.map_fn(
            lambda image: augment.eval_image(image, **_image_settings(settings)),
            encoded,
            fn_output_signature=tf.TensorSpec([size, size, 3], tf.uint8),
        )
        return classify_images(images)

    # Plain variables and functions in a plain module: nothing of Keras is needed to
    # load them.
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    module.metadata = tf.saved_model.Asset(str(folder / METADATA))
    tf.saved_model.save(
        module,
        str(folder / SAVED_MODEL),
        signatures={"serving_default": classify_encoded, "images": classify_images},
    )


def _check_images(
    settings: Config, data: Dataset | None
) -> tuple[list[bytes], "tf.Tensor"]:
    """Encoded images, and what evaluation makes of them: uint8 [b, S, S, 3]."""
    import tensorflow as tf

    from tf_goyal import augment, build, input_pipeline

    shorter = settings.eval_shorter_side
    if data is None:
        noise = np.random.default_rng(0).integers(
            0, 256, [CHECK_IMAGES, shorter, shorter + 32, 3], np.uint8
        )
        encoded = [tf.io.encode_jpeg(image).numpy() for image in noise]
        return encoded, tf.stack(
            [
                augment.eval_image(image, **_image_settings(settings))
                for image in encoded
            ]
        )
    split = data.validation
    count = min(CHECK_IMAGES, len(split))
    batches = input_pipeline.EvalBatches(
        split,
        build.labels(settings, data),
        batch=count,
        batches=range(1),
        **_image_settings(settings),
    )
    images, _, counts, _ = next(iter(batches))
    encoded = [split.read(int(record))[0] for record in tf.where(counts)[:, 0]]
    return encoded, tf.boolean_mask(images, counts)


def _image_settings(settings: Config) -> dict[str, Any]:
    """What `augment.eval_image` is told."""
    return {
        "image_size": settings.image_size,
        "eval_resize": settings.eval_shorter_side,
        "resize": settings.resize,
        "dct": settings.dct,
    }


def largest_difference(
    saved_model: Path, model: "keras.Model", encoded: list[bytes], images: "tf.Tensor"
) -> float:
    """Loads a SavedModel and holds both its signatures against the model.

    Args:
      saved_model: its folder.
      model: that it was made from.
      encoded: images as files.
      images: the same images as evaluation presents them, uint8 [b, S, S, 3].

    Returns:
      The largest absolute difference of a probability.
    """
    import tensorflow as tf

    expected = tf.function(lambda x: tf.nn.softmax(model(x, training=False)))(images)
    loaded = tf.saved_model.load(str(saved_model))
    results = [
        loaded.signatures["serving_default"](encoded=tf.constant(encoded)),
        loaded.signatures["images"](images=images),
    ]
    return max(
        float(tf.reduce_max(tf.abs(result["probabilities"] - expected)))
        for result in results
    )


def _replace(output: Path, written: Path, old: Path) -> None:
    """Puts `written` where `output` is; what was there goes to `old`."""
    if output.exists():
        os.rename(output, old)
    try:
        os.rename(written, output)
    except OSError:
        if old.exists():
            os.rename(old, output)
        raise


def _say(
    output: Path, described: dict[str, Any], difference: float, data: Dataset | None
) -> None:
    evaluation = described["evaluation"]
    error = f", top-1 error {evaluation['top1_error']:.2f} %" if evaluation else ""
    images = (
        f"{min(CHECK_IMAGES, len(data.validation))} validation images"
        if data
        else f"{CHECK_IMAGES} random images, since the data set is not here "
        "(--data_dir says where it is)"
    )
    path = output / SAVED_MODEL
    print(
        f"exported step {described['step']} (epoch {described['epoch']:.2f}{error})\n"
        f"  SavedModel  {path}\n"
        f"  metadata    {output / METADATA}\n"
        f"checked on {images}: probabilities differ by at most {difference:.3g}\n"
        f"load it with\n"
        f"  import tensorflow as tf\n"
        f'  model = tf.saved_model.load("{path}")\n'
        '  print(model.signatures["serving_default"](encoded=tf.constant('
        '[open("image.jpg", "rb").read()])))',
        flush=True,
    )


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
