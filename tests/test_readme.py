"""The README's tables and numbers are those of tools/results/."""

import json
import statistics

import pytest
import tool_runs

README = tool_runs.TOOLS.parent / "README.md"


def result(name):
    return json.loads((tool_runs.TOOLS / "results" / f"{name}.json").read_text())


NETWORKS = ("1 ms, 1 Gbit/s", "loopback")


@pytest.mark.parametrize("network", NETWORKS)
def test_the_table_of_algorithms(network):
    """Of 8 processes, as tools/bench_allreduce.py prints it."""
    (entry,) = [
        entry
        for entry in result("bench_allreduce")["runs"]
        if (entry["network"], entry["processes"]) == (network, 8)
    ]
    assert tool_runs.load("bench_allreduce").table(entry) in README.read_text("utf-8")


def test_what_auto_takes_is_nearly_the_quickest():
    """At most 9 %, for 2, 4 and 8 processes on both networks, 1 KiB to 64 MiB."""
    entries = [
        entry
        for entry in result("bench_allreduce")["runs"]
        if entry["network"] in NETWORKS and entry["processes"] in (2, 4, 8)
    ]
    assert len(entries) == 6
    for entry in entries:
        assert [size["elements"] for size in entry["sizes"]][::7] == [256, 2**24]
        assert max(size["auto_over_best"] for size in entry["sizes"]) < 1.09


def test_the_training_step_on_two_hosts():
    """Seconds and ratios, rounded as they stand there."""
    (entry,) = result("bench_overlap")["runs"]
    seconds, over = entry["seconds"], entry["over_larger"]
    same = entry["over_float32"]
    text = (
        f"compute alone {seconds['compute']:.2f} s, its reduction alone "
        f"{seconds['ours alone']:.2f} s | {seconds['ours']:.2f} s, "
        f"**{over['ours']:.2f}×** the larger of the two; with bfloat16 on the wire "
        f"{seconds['ours_bfloat16']:.2f} s, **{same['ours_bfloat16']:.2f}×** the same, "
        f"{over['ours_bfloat16']:.2f}× the larger of compute and its own reduction "
        f"({seconds['ours_bfloat16 alone']:.2f} s). TensorFlow's default "
        f"{seconds['tensorflow']:.2f} s ({same['tensorflow']:.2f}×), its packs of 8 MB "
        f"{seconds['tensorflow_8mb']:.2f} s ({same['tensorflow_8mb']:.2f}×)"
    )
    assert text in README.read_text("utf-8")


def test_the_quick_starts_lines():
    """The first and the last evaluation, and the two lines of the log."""
    path = tool_runs.TOOLS / "results" / "digits_log.jsonl"
    lines = path.read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    evaluations = [line for line in found if line["kind"] == "eval"]
    readme = README.read_text("utf-8")
    for line in (evaluations[0], evaluations[-1]):
        assert (
            f"epoch {line['epoch']:6.2f}  top-1 error {line['top1_error']:6.2f} %  "
            f"loss {line['loss']:.4f}  ({line['images']} images)"
        ) in readme
    last = [line["top1_error"] for line in evaluations[-5:]]
    assert (
        f"top-1 error {last[-1]:5.2f} % (median of the last 5 evaluations: "
        f"{statistics.median(last):.2f} %), 297 images"
    ) in readme
    (train,) = [
        line
        for line, of in zip(lines, found)
        if of["kind"] == "train" and of["step"] == 100
    ]
    (final,) = [
        line
        for line, of in zip(lines, found)
        if of["kind"] == "eval" and of["step"] == 352
    ]
    assert f"{train}\n{final}\n" in readme


def test_the_parity_with_the_model_garden():
    """Of its ResNet-50: at most 6e-5; all variables of all three."""
    cases = result("garden_parity")["cases"]
    of_50 = [case for case in cases if case["network"] == "resnet50"]
    assert max(max(case["largest_difference"].values()) for case in of_50) < 6e-5
    assert {case["padding"] for case in of_50} == {"same", "symmetric"}
    counts = {case["network"]: case["variables"] for case in cases}
    assert counts == {"resnet50": 265, "resnet101": 520, "resnet152": 775}


def test_the_table_of_faults():
    """As tools/chaos.py prints it; and that nothing is wrong in it."""
    found = result("chaos")
    assert "\n".join(found["table"]) in README.read_text("utf-8")
    assert found["faults"] == found["same_hash"] == len(found["trainings"]) == 100


def test_the_tables_of_detection():
    """Both, the AP of the quick start's training, and its backbone's error."""
    found, text = result("detection"), README.read_text("utf-8")
    for table in ("table_a", "table_b"):
        assert "\n".join(found[table]) in text
    (row,) = [row for row in found["a"] if row["kn"] == 128]
    for kind in ("box", "mask"):
        ap = [
            row["detector"]["ap"][f"{kind} {name}"] for name in ("AP", "AP50", "AP75")
        ]
        assert f"| {kind} | {' | '.join(f'{value:.1f}' for value in ap)} |" in text
    error = f"not in the paper; {row['top1_error']:.2f} here"
    assert f"| `digits_resnet50` | 128 | 0.1 | {error} |" in text
    (again,) = [row["linear"] for row in found["b"] if row["images_per_step"] == 4]
    assert again["settings"] == row["detector"]["settings"]  # one training, twice
