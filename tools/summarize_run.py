"""Prints what came out of a run: error, length, speed, and where its files are.

python tools/summarize_run.py --model_dir=RUN
"""

import json

from absl import flags as absl_flags

from tf_goyal import evaluator, files, flags, run_log


def define(values: absl_flags.FlagValues) -> None:
    """The flag of this tool."""
    absl_flags.DEFINE_string(
        "model_dir", None, "Folder of the run.", flag_values=values, required=True
    )


def rows(model_dir: files.AnyPath) -> list[tuple[str, str]]:
    """What the summary says: names and texts.

    Raises:
      ValueError: `model_dir` holds no run that has evaluated.
    """
    try:
        lines = run_log.read(str(model_dir))
        config = json.loads((model_dir / "config.json").read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"--model_dir must be a run's folder: {error}") from error
    train = [line for line in lines if line["kind"] == "train"]
    followed = evaluator.lines(str(model_dir))
    # With --eval_every=0 only the evaluator has evaluated.
    evaluated = [line for line in lines if line["kind"] == "eval"] or followed
    if not train or not evaluated:
        raise ValueError(f"{model_dir} holds no evaluation yet")
    reported = run_log.reported_error(evaluated)
    speeds = sorted(line["images_per_second"] for line in train)
    found = [
        (
            "top-1 error",
            f"{reported['last']:.2f} % (median of the last 5 evaluations: "
            f"{reported['median_of_last_5']:.2f} %), "
            f"{evaluated[-1]['images']:,} images",
        ),
        (
            "length",
            f"{train[-1]['epoch']:.2f} epochs, {train[-1]['step']:,} of "
            f"{config['derived']['total_steps']:,} steps of "
            f"{config['flags']['global_batch']:,} images",
        ),
        ("speed", f"{speeds[len(speeds) // 2]:,.0f} images/s"),
        ("weights", f"sha256 {evaluated[-1]['weights_sha256'][:16]}…"),
    ]
    if followed:
        found.append(
            (
                "evaluator",
                f"{len(followed)} checkpoints, the last of step "
                f"{followed[-1]['step']:,}: {followed[-1]['top1_error']:.2f} %",
            )
        )
    for name, file in (
        ("log", "log.jsonl"),
        ("curves", "curves.png"),
        ("SavedModel", "export/saved_model"),
    ):
        if (model_dir / file).exists():
            found.append((name, str(model_dir / file)))
    return found


def main(_: list[str]) -> int:
    """Prints the summary. Returns the exit code."""
    found = rows(files.path(flags.FLAGS.model_dir))
    width = max(len(name) for name, _ in found)
    for name, text in found:
        print(f"{name:{width}}  {text}")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
