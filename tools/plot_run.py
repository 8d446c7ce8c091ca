"""Draws a run: training and validation error, and the learning rate beside them.

python tools/plot_run.py --model_dir=RUN [--output=curves.png]
"""

from pathlib import Path

from absl import flags as absl_flags

from tf_goyal import evaluator, files, flags, run_log


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    absl_flags.DEFINE_string(
        "model_dir", None, "Folder of the run.", flag_values=values, required=True
    )
    absl_flags.DEFINE_string(
        "output", None, "PNG to write; by default curves.png there.", flag_values=values
    )


def draw(lines: list[dict], followed: list[dict], output: Path) -> None:
    """Writes the PNG.

    Args:
      lines: as of `run_log.read`.
      followed: as of `evaluator.lines`.
      output: the file.

    Raises:
      ValueError: there is nothing to draw.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    train = [line for line in lines if line["kind"] == "train"]
    evaluated = [line for line in lines if line["kind"] == "eval"]
    if not train:
        raise ValueError("the log holds no training step yet")
    figure, (errors, rate) = pyplot.subplots(
        2, sharex=True, figsize=(7, 5.2), height_ratios=(3, 1.2), layout="constrained"
    )
    errors.plot(
        [line["epoch"] for line in train],
        [line["top1_error"] for line in train],
        color="tab:blue",
        alpha=0.45,
        linewidth=1,
        label="training, one step",
    )
    for name, evaluations, colour, marker in (
        ("validation", evaluated, "tab:red", "o"),
        ("evaluator", followed, "tab:green", "x"),
    ):
        if evaluations:
            errors.plot(
                [line["epoch"] for line in evaluations],
                [line["top1_error"] for line in evaluations],
                color=colour,
                marker=marker,
                markersize=3,
                label=f"{name}, last {evaluations[-1]['top1_error']:.2f} %",
            )
    errors.set_ylabel("top-1 error (%)")
    errors.set_ylim(0, 100)
    errors.legend(frameon=False)
    errors.grid(alpha=0.3)
    rate.plot(
        [line["epoch"] for line in train],
        [line["lr"] for line in train],
        color="black",
        linewidth=1.2,
    )
    if min(line["lr"] for line in train) > 0:
        rate.set_yscale("log")
    rate.set_ylabel("learning rate")
    rate.set_xlabel("epoch")
    rate.grid(alpha=0.3)
    figure.savefig(output, dpi=120)
    pyplot.close(figure)


def main(_: list[str]) -> int:
    """Reads the log and draws. Returns the exit code."""
    model_dir = files.path(flags.FLAGS.model_dir)
    default = model_dir / "curves.png" if files.is_local(model_dir) else "curves.png"
    output = Path(flags.FLAGS.output or default)
    try:
        lines = run_log.read(str(model_dir))
    except FileNotFoundError as error:
        raise ValueError(f"--model_dir must be a run's folder: {error}") from error
    draw(lines, evaluator.lines(str(model_dir)), output)
    print(output)
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
