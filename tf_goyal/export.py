"""python -m tf_goyal.export: a trained model for those who use it.

    python -m tf_goyal.export --model_dir=RUN [--formats=saved_model,keras,backbone]

writes into RUN/export, besides metadata.json:

    saved_model  saved_model/, which loads with TensorFlow alone. Its signatures:
                   serving_default  encoded: string [b], JPEG, PNG, GIF or BMP files,
                                    which it crops as evaluation does
                   images           images: uint8 [b, S, S, 3], RGB, of the model's size
                 return `probabilities` float32 [b, classes], `classes` int64 [b] (the
                 most probable one) and `labels` string [b] (its name);
                   features         images: uint8 [b, H, W, 3], RGB, of any size
                 returns float32 [b, h, w, channels] of each stage, "stage2" to "stage5"
    keras        model.keras, which loads after `import tf_goyal.resnet`, and
                 plain.keras, which loads with Keras alone: float [b, H, W, 3], RGB,
                 0 to 255, of any size, to logits [b, classes]
    backbone     backbone/, a checkpoint for tf-models-official's detectors
                 (ResNet-50, 101 and 152)
    tflite       model.tflite, in float32: pixels of the model's size to probabilities
    onnx         model.onnx, the same; needs pip install "tf_goyal[onnx]"

Each carries the metadata: labels, preprocessing, padding, epsilon, recipe, step, error,
hash. Before anything replaces an older export, each file is read back and held against
the model that it was made from.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from absl import flags as absl_flags

from tf_goyal import checkpoint, datasets, export_files, files, flags, start, trained
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset
from tf_goyal.export_files import FORMATS, METADATA, SAVED_MODEL
from tf_goyal.trained import TrainedModel

CHECK_FAILED = 1  # exit code
CHECK_IMAGES = 32


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
    absl_flags.DEFINE_list(
        "formats",
        ["saved_model"],
        f"Of {', '.join(FORMATS)}; see above.",
        flag_values=values,
    )


def main(_: list[str]) -> int:
    """Writes, checks, and puts in place. Returns the exit code.

    Raises:
      ValueError: checkpoint, data, formats or output folder are refused.
    """
    found = trained.load(flags.FLAGS.model_dir, flags.FLAGS.step)
    settings = found.settings
    export_files.check(flags.FLAGS.formats, settings.model)
    data = _data(found, flags.FLAGS.data_dir)
    output = _output(settings.model_dir, flags.FLAGS.output)
    replaced = _held(output)
    with _folder_beside(output) as beside:
        # From here on TensorFlow runs.
        start.tensorflow()
        import tensorflow as tf

        from tf_goyal import build, export_formats, export_metadata

        # A GPU's TensorFloat-32 would differ from other runtimes by more than allowed.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        build.prepare_tensorflow(settings)
        model = build.model(settings, len(found.labels), any_size=True)
        checkpoint.assign("model", model.variables, found.arrays)

        written = Path(beside) / "new"
        written.mkdir()
        described = export_metadata.metadata(found, model)
        text = json.dumps(described, indent=2, ensure_ascii=False) + "\n"
        (written / METADATA).write_text(text, encoding="utf-8")
        encoded, images = check_images(settings, data)
        made = export_formats.Trained(
            model, settings, found.labels, text, written, encoded, images
        )
        differences = {}
        for name in dict.fromkeys(flags.FLAGS.formats):
            checked = export_formats.WRITERS[name](made)
            if not checked.difference <= checked.allowed:  # NaN is no success
                print(
                    f"export: {name} read back differs from the model by "
                    f"{checked.difference:.3g} (at most {checked.allowed:g} is "
                    "allowed): nothing exported",
                    file=sys.stderr,
                )
                return CHECK_FAILED
            differences[name] = checked.difference
        _replace(output, written, Path(beside) / "old")
    print(_said(output, described, differences, data), flush=True)
    if lost := [name for name in replaced if not (output / name).exists()]:
        print(f"removed with the earlier export there: {', '.join(lost)}", flush=True)
    return 0


def _output(model_dir: str, told: str | None) -> Path:
    """The folder to write, links followed: what it is a link to is replaced.

    Raises:
      ValueError: it is none on a disk.
    """
    where = files.path(told) if told else files.path(model_dir) / "export"
    if not files.is_local(where):
        raise ValueError(
            "--output must name a folder on a disk, also where --model_dir is a store, "
            f"from which it can be copied; received --output={told or ''} and "
            f"--model_dir={model_dir}"
        )
    return Path(os.path.realpath(where))


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


def _held(output: Path) -> list[str]:
    """The names in an earlier export; none where there is none.

    Raises:
      ValueError: `output` is something else.
    """
    ours = {METADATA, *(name for names in FORMATS.values() for name in names)}
    try:
        held = sorted(path.name for path in output.iterdir()) if output.exists() else []
    except OSError as error:
        raise _not_writable(output, error) from error
    strange = [name for name in held if name not in ours]
    if strange or (held and METADATA not in held):
        raise ValueError(
            "--output must be a new folder, an empty one or an earlier export; "
            f"{output} holds {', '.join((strange or held)[:3])}: name another folder"
        )
    return held


def _folder_beside(output: Path) -> tempfile.TemporaryDirectory:
    """A folder on the disk of `output`, removed with all that is left in it.

    Raises:
      ValueError: nothing can be written there.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent)
    except OSError as error:
        raise _not_writable(output, error) from error


def _not_writable(output: Path, error: OSError) -> ValueError:
    return ValueError(
        f"--output must be a folder that can be written, received {output}: "
        f"{error.strerror}"
    )


def check_images(
    settings: Config, data: Dataset | None
) -> tuple[list[bytes], np.ndarray]:
    """Encoded images, and what evaluation makes of them: uint8 [b, S, S, 3]."""
    import tensorflow as tf

    from tf_goyal import augment, build, export_formats, input_pipeline

    evaluation = export_formats.evaluation_settings(settings)
    if data is None:
        shorter = settings.eval_shorter_side
        noise = np.random.default_rng(0).integers(
            0, 256, [CHECK_IMAGES, shorter, shorter + 32, 3], np.uint8
        )
        encoded = [tf.io.encode_jpeg(image).numpy() for image in noise]
        images = [augment.eval_image(image, **evaluation) for image in encoded]
        return encoded, np.stack(images)
    split = data.validation
    count = min(CHECK_IMAGES, len(split))
    batches = input_pipeline.EvalBatches(
        split,
        build.labels(settings, data),
        batch=count,
        batches=range(1),
        **evaluation,
    )
    images, _, counts, _ = next(iter(batches))
    encoded = [split.read(int(record))[0] for record in tf.where(counts)[:, 0]]
    return encoded, tf.boolean_mask(images, counts).numpy()


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


def _said(
    output: Path,
    described: dict,
    differences: dict[str, float],
    data: Dataset | None,
) -> str:
    """What was written, how it was checked, and how it is loaded."""
    evaluation = described["evaluation"]
    error = f", top-1 error {evaluation['top1_error']:.2f} %" if evaluation else ""
    lines = [
        f"exported step {described['step']} (epoch {described['epoch']:.2f}{error})"
    ]
    for name, difference in differences.items():
        paths = "  ".join(str(output / file) for file in FORMATS[name])
        lines.append(f"  {name:<11}  {paths}  (differs by at most {difference:.3g})")
    lines.append(f"  metadata     {output / METADATA}")
    images = (
        f"{min(CHECK_IMAGES, len(data.validation))} validation images"
        if data
        else f"{CHECK_IMAGES} random images, since the data set is not here "
        "(--data_dir says where it is)"
    )
    lines.append(f"checked on {images}")
    if "saved_model" in differences:
        lines += [
            "load it with",
            "  import tensorflow as tf",
            f'  model = tf.saved_model.load("{output / SAVED_MODEL}")',
            '  print(model.signatures["serving_default"](encoded=tf.constant('
            '[open("image.jpg", "rb").read()])))',
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
