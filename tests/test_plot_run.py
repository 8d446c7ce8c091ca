"""The curves of a run."""

import matplotlib
import pytest
import tool_runs

plot_run = tool_runs.load("plot_run")


@pytest.fixture
def labels(monkeypatch, tmp_path):
    """Draws, and returns what the legend says."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    def drawn(lines, followed):
        figures = []
        monkeypatch.setattr(pyplot, "close", figures.append)
        plot_run.draw(lines, followed, tmp_path / "curves.png")
        monkeypatch.undo()
        pyplot.close(*figures)
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
        return figures[0].axes[0].get_legend_handles_labels()[1]

    return drawn


def test_what_training_and_the_evaluator_found(labels):
    """S5: each with its last error; who has found nothing is not there."""
    train = {"kind": "train", "epoch": 1.0, "lr": 0.1, "top1_error": 50.0}
    own = {"kind": "eval", "epoch": 1.0, "top1_error": 40.0}
    followed = [{**own, "top1_error": 39.0}, {**own, "top1_error": 31.25}]
    first = "training, one step"
    assert labels([train], []) == [first]
    assert labels([train, own], []) == [first, "validation, last 40.00 %"]
    assert labels([train], followed) == [first, "evaluator, last 31.25 %"]
    assert len(labels([train, own], followed)) == 3
    with pytest.raises(ValueError, match="no training step"):
        labels([own], followed)
