"""The one idea: what comes out does not depend on the hardware's layout."""

import json

import layouts
import numpy as np
import pytest

# A process starts slowly, so each layout is started once and trains all it has to.
PLAIN = {"workers": 4, "worker_batch": 3, "steps": 1, "momentum": 0.0}
TWENTY = {"steps": 20, "learning_rate": 0.01}
EVERYTHING = {"statistics": "global", "steps": 2, "momentum": 0.0}
RUNS = {
    "exact": {"exact": True},
    "exact_buckets_of_0": {"exact": True, "bucket_bytes": 0},
    "exact_buckets_of_4k": {"exact": True, "bucket_bytes": 2**12},
    "exact_bucket_of_all": {"exact": True, "bucket_bytes": 2**30},
    "fast": {},
    "plain": {**PLAIN, "weight_decay": 0.0},
    "plain_decayed": {**PLAIN, "weight_decay": 0.01},
    "usual": {"workers": 2},
    "bright": {"workers": 2, "bright": True},
    "twenty": TWENTY,
    "twenty_exact": {**TWENTY, "exact": True},
    "everything": EVERYTHING,
    "nan": {"nan_on": 1, "steps": 2},
    "nan_exact": {"nan_on": 1, "steps": 2, "exact": True},
}
# C4: 20 steps with each algorithm; two hosts of two processes where there are four.
ALGORITHMS = {
    "ring": {"algorithm": "ring"},
    "halving_doubling": {"algorithm": "halving_doubling"},
    "hierarchical": {"algorithm": "hierarchical", "hosts": [[0], [1]]},
    "one_host": {"algorithm": "hierarchical", "hosts": [[0, 1]]},
}
HOSTS = {3: [[0, 2], [1]], 4: [[0, 2], [1, 3]]}
for algorithm, settings in ALGORITHMS.items():
    RUNS[f"twenty_{algorithm}"] = {**TWENTY, **settings}
    RUNS[f"twenty_{algorithm}_exact"] = {**TWENTY, **settings, "exact": True}
for wire in ("bfloat16", "float16"):
    for algorithm in ("auto", "halving_doubling"):
        RUNS[f"{wire}_{algorithm}"] = {"algorithm": algorithm, "wire": wire}
for processes, hosts in HOSTS.items():
    for algorithm in ("halving_doubling", "hierarchical"):
        RUNS[f"exact_{algorithm}_{processes}"] = {
            "exact": True,
            "algorithm": algorithm,
            "hosts": hosts,
            "bucket_bytes": 2**12,
        }
BUCKETS = ["exact_buckets_of_0", "exact_buckets_of_4k", "exact_bucket_of_all"]
PLANS = {  # (processes, devices): runs
    (1, 1): [
        *["exact", "fast", "plain", "plain_decayed", "usual", "bright", "twenty"],
        *["twenty_exact", "everything"],
    ],
    (1, 2): [
        *["exact", "plain", "plain_decayed", "everything"],
        *["twenty_ring_exact", "twenty_halving_doubling_exact"],
        *["fast", "bfloat16_auto", "float16_halving_doubling"],
    ],
    (1, 3): ["exact", "everything"],
    (1, 4): ["plain", "plain_decayed"],
    (2, 1): [
        *["exact", *BUCKETS, "bright", "twenty", "nan", "nan_exact"],
        *[name for name in RUNS if name.startswith(("twenty_", "bfloat", "float16"))],
    ],
    (3, 1): ["exact", "exact_halving_doubling_3", "exact_hierarchical_3"],
    (4, 1): ["exact", "exact_halving_doubling_4", "exact_hierarchical_4"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(name, processes, devices) -> what each rank ended with."""
    done = {}

    def result(name, processes=1, devices=1):
        layout = (processes, devices)
        if layout not in done:
            folder = tmp_path_factory.mktemp("layout")
            runs = {name: RUNS[name] for name in PLANS[layout]}
            done[layout] = layouts.train(folder, runs, *layout)
        return done[layout][name]

    return result


@pytest.mark.parametrize(
    ("processes", "devices"), [(2, 1), (3, 1), (4, 1), (1, 2), (1, 3)]
)
def test_exact_sum_gives_the_same_bits_on_every_layout(trained, processes, devices):
    """4 virtual workers alone, on 2, 3 (1 + 1 + 2) and 4 processes or devices."""
    alone = trained("exact")[0]
    for result in trained("exact", processes, devices):
        assert layouts.difference(result, alone) == 0.0
        np.testing.assert_array_equal(result["losses"], alone["losses"])


def test_exact_and_fast_sums_agree_to_rounding(trained):
    """The fixed point's unit of 2^-50 is far below float32's own rounding."""
    exact, fast = trained("exact")[0], trained("fast")[0]
    assert 0.0 < layouts.difference(fast, exact) < 1e-4
    np.testing.assert_allclose(fast["losses"], exact["losses"], rtol=1e-4)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", ["plain", "plain_decayed"])
def test_one_batch_of_12_on_1_2_and_4_devices(trained, name, devices):
    """M1: plain SGD, with and without weight decay: same loss and weights to 1e-6."""
    one, more = trained(name)[0], trained(name, devices=devices)[0]
    np.testing.assert_allclose(more["losses"], one["losses"], atol=1e-6)
    assert layouts.difference(more, one) < 1e-6


def test_running_statistics_where_one_worker_sees_only_bright_images(trained):
    """M8: equal on both processes, and those of one process with the same workers."""
    first, second = trained("bright", processes=2)
    alone, usual = trained("bright")[0], trained("usual")[0]
    assert layouts.difference(first, second) == 0.0
    for name in (n for n in first if "moving" in n):
        np.testing.assert_allclose(first[name], alone[name], rtol=1e-3, atol=1e-5)
    # The bright worker counts: without it the statistics are others.
    assert layouts.difference(usual, alone) > 1e-2


@pytest.mark.parametrize("name", BUCKETS)
def test_buckets_change_nothing(trained, name):
    """C3: every gradient alone, many buckets, one larger than the model."""
    for result in trained(name, processes=2):
        assert layouts.difference(result, trained("exact")[0]) == 0.0


@pytest.mark.parametrize("name", ["twenty", *[f"twenty_{a}" for a in ALGORITHMS]])
def test_twenty_steps_with_each_algorithm(trained, name):
    """C4: rounding only in float32, nothing with the exact sum."""
    first, second = trained(name, 2)
    assert layouts.difference(first, second) == 0.0
    assert layouts.difference(first, trained("twenty")[0]) < 1e-4
    exact = trained(f"{name}_exact", 2)[0]
    assert layouts.difference(exact, trained("twenty_exact")[0]) == 0.0


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"])
def test_an_algorithm_between_processes_does_no_harm_in_one(trained, algorithm):
    """Two devices of one process have nothing to send."""
    result = trained(f"twenty_{algorithm}_exact", devices=2)[0]
    assert layouts.difference(result, trained("twenty_exact")[0]) == 0.0


@pytest.mark.parametrize("processes", HOSTS)
@pytest.mark.parametrize("algorithm", ["halving_doubling", "hierarchical"])
def test_exact_sum_by_our_algorithms(trained, processes, algorithm):
    """Binary blocks of 2 + 1, two hosts of two processes: the bits of one process."""
    for result in trained(f"exact_{algorithm}_{processes}", processes):
        assert layouts.difference(result, trained("exact")[0]) == 0.0


@pytest.mark.parametrize("algorithm", ["auto", "halving_doubling"])
@pytest.mark.parametrize(("wire", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_half_precision_on_the_wire(trained, wire, unit, algorithm):
    """--gradient_dtype: the same bits on both ranks, an error as of the rounding."""
    first, second = trained(f"{wire}_{algorithm}", 2)
    assert layouts.difference(first, second) == 0.0
    fast = trained("fast")[0]
    assert 0.0 < layouts.difference(first, fast) < 20 * unit
    # Only gradients are rounded: the first step's loss is of the same weights, and 257
    # would be 256 in bfloat16.
    np.testing.assert_allclose(first["losses"][0], fast["losses"][0], rtol=1e-6)
    assert first["replaced"].tolist() == [257] * len(first["losses"])


@pytest.mark.parametrize("name", ["bfloat16_auto", "float16_halving_doubling"])
def test_nothing_is_rounded_inside_of_a_process(trained, name):
    """--gradient_dtype is of what travels between processes."""
    fast, half = trained("fast", devices=2)[0], trained(name, devices=2)[0]
    assert layouts.difference(half, fast) == 0.0


@pytest.mark.parametrize("devices", [2, 3])
def test_statistics_over_all_images_do_not_depend_on_the_devices(trained, devices):
    """--bn_statistics=global: 4 workers on 1, 2 and 3 devices."""
    one, more = trained("everything")[0], trained("everything", devices=devices)[0]
    np.testing.assert_allclose(more["losses"], one["losses"], rtol=1e-5)
    assert layouts.difference(more, one) < 1e-4


def test_a_wish_to_stop_reaches_every_process_at_the_same_step(trained):
    """Rank 1 wishes at step 2; it travels in that step's all-reduce."""
    for result in trained("exact", processes=2):
        assert result["stops"].tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("name", ["nan", "nan_exact"])
def test_a_nan_on_one_worker_is_known_to_all_and_blamed_on_it(trained, name):
    """F4: all see a loss that is not finite in the same step, and whose it is."""
    results = trained(name, processes=2)
    for result in results:
        assert np.isfinite(result["losses"]).tolist() == [True, False]
        found = json.loads(str(result["found"]))
        assert found["ranks"] == [1]
        assert "nan" in found["gradient_norms"].values() or name == "nan_exact"
        assert "conv0/kernel" in found["gradient_norms"]
    # Rank 0's own part is in order.
    assert np.isfinite(results[0]["evidence"]).all()
    assert results[0]["evidence"].all()
    assert not np.isfinite(results[1]["evidence"]).all()


def test_a_finite_loss_costs_no_look_at_the_gradients(trained):
    assert not trained("exact", processes=2)[0]["evidence"].any()
