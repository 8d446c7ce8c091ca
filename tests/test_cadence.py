"""When things happen."""

import pytest

from tf_goyal.cadence import Cadence

IMAGENET = 1281167


def cadence(**settings):
    defaults = {
        "total_steps": 14076,
        "total_images": 90 * IMAGENET,
        "global_batch": 8192,
        "train_images": IMAGENET,
        "eval_every": 1.0,
        "checkpoint_every": 5.0,
        "keep_every": 0.0,
        "log_every": 10,
    }
    return Cadence(**{**defaults, **settings})


@pytest.mark.parametrize(
    ("steps", "evaluates"),
    # 156.39 steps an epoch: the first is complete with step 157, the second with 313.
    [(1, False), (156, False), (157, True), (158, False), (312, False), (313, True)],
)
def test_an_epoch_is_complete_when_its_last_image_was_seen(steps, evaluates):
    assert cadence().evaluates(steps) is evaluates


@pytest.mark.parametrize(
    ("steps", "saves"), [(781, False), (782, True), (783, False), (14076, True)]
)
def test_every_five_epochs_and_at_the_end(steps, saves):
    assert cadence().saves(steps) is saves


def test_a_frequency_is_the_decimal_number_that_was_written():
    """0.1 epochs of 100 images at kn = 1 are 10 steps, each time."""
    ten = cadence(
        eval_every=0.1,
        total_steps=1000,
        total_images=1000,
        global_batch=1,
        train_images=100,
    )
    assert [s for s in range(1, 101) if ten.evaluates(s)] == list(range(10, 101, 10))


def test_more_than_one_epoch_a_step_evaluates_once_each_step():
    big = cadence(global_batch=8, train_images=3, total_steps=9, total_images=72)
    assert all(big.evaluates(steps) for steps in range(1, 10))


def test_images_end_with_the_run():
    """D2: 7 images, kn = 4, 3 epochs: 6 steps that learn from 21 images."""
    small = cadence(total_steps=6, total_images=21, global_batch=4, train_images=7)
    assert [small.images(s) for s in (0, 1, 5, 6)] == [0, 4, 20, 21]
    assert small.epoch(6) == 3.0


@pytest.mark.parametrize(
    ("steps", "logs"), [(9, False), (10, True), (11, False), (14076, True)]
)
def test_log_lines(steps, logs):
    assert cadence().logs(steps) is logs


def test_never_evaluates():
    """--eval_every=0: an evaluator does it, at the end too."""
    never = cadence(eval_every=0.0)
    assert not any(never.evaluates(s) for s in (157, 313, 14076))


@pytest.mark.parametrize(
    ("steps", "keeps"),
    # 10 epochs are complete with step 1564 (1563.9); 90 with the last.
    [(782, False), (1563, False), (1564, True), (1565, False), (14076, True)],
)
def test_checkpoints_that_are_kept_for_good(steps, keeps):
    assert cadence(keep_every=10.0).keeps(steps) is keeps
    assert not cadence().keeps(steps)


def test_the_end_of_a_run_is_kept_only_where_its_epochs_are():
    """A longer run must keep the same ones."""
    short = cadence(keep_every=10.0, total_steps=1600)
    assert short.saves(1600) and not short.keeps(1600)
