r"""The paper's two tables of Mask R-CNN, in small, on the digits.

python tools/detection_tables.py --work=FOLDER

(a) Backbones trained with growing minibatches kn (linear scaling), and the box and mask
    AP of Mask R-CNN from each, beside its classification error (§5.4, table 4a).
(b) Mask R-CNN's own training with 1, 2, 4 and 8 images a step, with the linear scaling
    rule and without it, the same images in all (table 4b).

Each is one run, so that small differences say nothing. BatchNorm of the detectors is
frozen, as without it in the paper's: the images of a step change nothing but the step.

Everything runs in FOLDER, one after another, some hours on two cores; started again it
goes on where it was. Needs tools/detection/setup. Writes tools/results/detection.json
with the tables in Markdown, and a picture beside it.
"""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine
from absl import flags as absl_flags

from tf_goyal import flags

ROOT = Path(__file__).resolve().parent.parent
RESULT = "detection"
MINIBATCHES = (64, 128, 256, 512)
IMAGES_PER_STEP = (1, 2, 4, 8)
RECIPE, IMAGE_SIZE = "digits_resnet50", 128
TRAIN_IMAGES, VALIDATION_IMAGES = 600, 100
BASE_IMAGES, BASE_LR = 2, 0.01
# Of table a, and the backbone of table b.
DETECTOR = {"images_per_step": 4, "lr_scaling": "linear"}
BACKBONE_OF_B = 128


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    absl_flags.DEFINE_string("work", None, "Folder of the runs.", flag_values=values)
    absl_flags.DEFINE_string(
        "garden_python",
        str(ROOT / ".venv-detection" / "bin" / "python"),
        "The interpreter that tools/detection/setup makes.",
        flag_values=values,
    )
    absl_flags.DEFINE_integer(
        "images_seen",
        800,
        "By each Mask R-CNN in its training.",
        lower_bound=1,
        flag_values=values,
    )
    absl_flags.DEFINE_float(
        "epochs", 20.0, "Of each backbone's training.", flag_values=values
    )


def run(command: list[Any], log: Path) -> None:
    """Runs a command, its output in a file.

    Raises:
      RuntimeError: it failed; the message has the end of what it said.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        done = subprocess.run(
            [*map(str, command)], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )
    if done.returncode:
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{command[1:3]} ended with {done.returncode}:\n{said}")


def coco(work: Path) -> Path:
    """The data set, made if it is not there."""
    folder, beside = work / "coco", work / ".coco"
    if not folder.exists():
        shutil.rmtree(beside, ignore_errors=True)
        counts = [f"--train={TRAIN_IMAGES}", f"--validation={VALIDATION_IMAGES}"]
        command = [sys.executable, ROOT / "tools" / "make_digits_coco.py", *counts]
        size = f"--size={IMAGE_SIZE}"
        run([*command, size, f"--out={beside}"], work / "coco.log")
        beside.rename(folder)
    return folder


def backbone(work: Path, kn: int, epochs: float) -> tuple[Path, dict[str, Any]]:
    """A trained and exported backbone: its folder, and what it says of itself."""
    model_dir = work / f"backbone-{kn}"
    exported = model_dir / "export" / "backbone"
    # Training leaves at once what is done already, and refuses other settings by name.
    scaled = [f"--recipe={RECIPE}", f"--global_batch={kn}", f"--epochs={epochs:g}"]
    place, log = f"--model_dir={model_dir}", work / f"backbone-{kn}.log"
    run([sys.executable, "-m", "tf_goyal.train", *scaled, place], log)
    run([sys.executable, "-m", "tf_goyal.export", "--formats=backbone", place], log)
    return exported, json.loads((exported / "metadata.json").read_text("utf-8"))


def detector(
    work: Path,
    name: str,
    data: Path,
    source: tuple[Path, dict[str, Any]],
    **settings: Any,
) -> dict[str, Any]:
    """What `mask_rcnn.py` says of a training from a backbone, run if it has not been.

    Raises:
      ValueError: it was run with other settings.
    """
    exported, about = source
    model_dir = work / name
    metrics = model_dir / "metrics.json"
    told = {
        "image_size": IMAGE_SIZE,
        "base_lr": BASE_LR,
        "base_images": BASE_IMAGES,
        "rois": 32,
        "detections": 20,
        "anchor_size": 4.0,
        "flip": False,
        **settings,
    }
    if not metrics.exists():
        script = ROOT / "tools" / "detection" / "mask_rcnn.py"
        files = {"model_dir": model_dir, "backbone": exported}
        for split in ("train", "validation"):
            files[f"{split}_annotations"] = data / "annotations" / f"{split}.json"
            files[f"{split}_images"] = data / split
        written = [f"--{key}={value}" for key, value in {**files, **told}.items()]
        python = Path(flags.FLAGS.garden_python).absolute()
        run([python, script, *written], work / f"{name}.log")
    found = json.loads(metrics.read_text())
    told["backbone_sha256"] = about["weights_sha256"]
    other = [key for key, value in told.items() if found["settings"][key] != value]
    if other:
        raise ValueError(
            f"{model_dir} was run with other settings of {', '.join(other)}: remove "
            "it, or name another --work"
        )
    for path in [
        key for key in found["settings"] if "/" in str(found["settings"][key])
    ]:
        del found["settings"][path]  # of this machine
    return found


def percent(found: dict[str, Any], kind: str) -> str:
    """Box or mask AP as a table shows it."""
    return "diverged" if found["diverged"] else f"{found['ap'][f'{kind} AP']:.1f}"


def table_a(rows: list[dict[str, Any]]) -> str:
    """In Markdown."""
    lines = [
        "| kn of the backbone | its top-1 error, % | box AP | mask AP |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['kn']} | {row['top1_error']:.2f} | "
        f"{percent(row['detector'], 'box')} | {percent(row['detector'], 'mask')} |"
        for row in rows
    ]
    return "\n".join(lines)


def table_b(rows: list[dict[str, Any]]) -> str:
    """In Markdown; the rule on the left, without it on the right."""
    lines = [
        "| images a step | rate, scaled | box AP | mask AP | the same rate | box AP | "
        "mask AP |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [str(row["images_per_step"])]
        for rule in ("linear", "none"):
            found = row[rule]
            cells += [f"{found['schedule']['rate']:g}", percent(found, "box")]
            cells.append(percent(found, "mask"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(
    rows_a: list[dict[str, Any]], rows_b: list[dict[str, Any]], output: Path
) -> None:
    """AP against kn and the backbone's error; AP against images a step, both rules."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    def number(found: dict[str, Any], kind: str) -> float:
        return math.nan if found["diverged"] else found["ap"][f"{kind} AP"]

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 3.4), sharey=True, layout="constrained"
    )
    for kind, color in (("box", "tab:red"), ("mask", "tab:blue")):
        kns = [row["kn"] for row in rows_a]
        values = [number(row["detector"], kind) for row in rows_a]
        left.plot(kns, values, "o-", color=color, label=f"{kind} AP")
        for rule, line in (("linear", "o-"), ("none", "s--")):
            images = [row["images_per_step"] for row in rows_b]
            values = [number(row[rule], kind) for row in rows_b]
            how = "linear scaling" if rule == "linear" else "the same rate"
            right.plot(images, values, line, color=color, label=f"{kind} AP, {how}")
    for axis, ticks, text in (
        (left, MINIBATCHES, "minibatch kn of the backbone's training"),
        (right, IMAGES_PER_STEP, "images a step of Mask R-CNN's training"),
    ):
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_xlabel(text)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    left.set_ylabel("AP, %")
    figure.savefig(output, dpi=120)
    pyplot.close(figure)


def main(_: list[str]) -> int:
    """Runs what is missing, and writes. Returns the exit code."""
    values = flags.FLAGS
    if not values.work:
        raise ValueError("--work must name a folder for the runs, received none")
    if not Path(values.garden_python).exists():
        raise ValueError(
            f"--garden_python must be an interpreter, there is none at "
            f"{values.garden_python}: tools/detection/setup makes it"
        )
    work = Path(values.work).absolute()
    data = coco(work)
    seen = {"images_seen": values.images_seen}
    rows_a, rows_b = [], []
    for kn in MINIBATCHES:
        source = backbone(work, kn, values.epochs)
        found = detector(work, f"a-{kn}", data, source, **DETECTOR, **seen)
        error = source[1]["evaluation"]["top1_error"]
        rows_a.append({"kn": kn, "top1_error": error, "detector": found})
        print(table_a(rows_a), flush=True)
    source = backbone(work, BACKBONE_OF_B, values.epochs)
    for images in IMAGES_PER_STEP:
        row: dict[str, Any] = {"images_per_step": images}
        for rule in ("linear", "none"):
            # For the base the rule changes nothing.
            rule_there = "linear" if images == BASE_IMAGES else rule
            told = {"images_per_step": images, "lr_scaling": rule_there, **seen}
            name = f"b-{images}-{rule_there}"
            row[rule] = detector(work, name, data, source, **told)
        rows_b.append(row)
        print(table_b(rows_b), flush=True)
    result = {
        "recipe": RECIPE,
        "epochs": values.epochs,
        "runs_of_each": 1,
        "backbone_of_b": BACKBONE_OF_B,
        "a": rows_a,
        "b": rows_b,
        "table_a": table_a(rows_a).splitlines(),
        "table_b": table_b(rows_b).splitlines(),
    }
    path = machine.write(RESULT, result)
    draw(rows_a, rows_b, path.with_suffix(".png"))
    print(f"in {path}")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
