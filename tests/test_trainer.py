"""How the loop ends, and what it saves: over stand-ins, without a network."""

import contextlib
from types import SimpleNamespace

import pytest

from tf_goyal.trainer import Trainer

FULL = "the disk is full"


class Told(list):
    """A log, and a place for lines: names of what was told."""

    def write(self, _, event, **__):
        self.append(event)

    def say(self, text):
        self.append(text)


@pytest.mark.parametrize(
    ("code", "why", "ends", "told"),
    [
        (0, "", 0, ["done"]),
        (143, "", 143, []),
        (3, "", 3, []),
        (0, FULL, 2, ["not_saved"]),
        (143, FULL, 2, ["not_saved"]),
        (3, FULL, 3, []),
    ],
)
def test_f6_an_end_without_its_last_checkpoint_is_logged(code, why, ends, told):
    """F6: an evaluator waits for no more; the others wait for the write before."""
    order, log = [], Told()
    trainer = SimpleNamespace(
        asked=SimpleNamespace(finishing=contextlib.nullcontext),
        writer=SimpleNamespace(wait=lambda: order.append("written") or why),
        meet=lambda: order.append("met"),
        log=log,
        cadence=SimpleNamespace(total_steps=8),
        _train=lambda *_: code,
    )
    assert Trainer.train(trainer, 0) == ends
    assert (order, log) == (["written", "met"], told)


@pytest.mark.parametrize(
    ("busy", "last", "saved"),
    [(False, False, [4]), (False, True, [4]), (True, True, [4]), (True, False, [])],
)
def test_what_cannot_be_written_meanwhile_is_skipped(busy, last, saved):
    """The others do not wait for slow storage, but for the last checkpoint."""
    found, log, shown = [], Told(), Told()
    trainer = SimpleNamespace(
        writer=SimpleNamespace(busy=busy, save=lambda step, *_: found.append(step)),
        log=log,
        metadata={},
        broken=SimpleNamespace(as_json=dict),
        state=dict,
    )
    Trainer._save(trainer, 4, False, last, shown)
    assert found == saved
    assert log == ([] if saved else ["checkpoint_skipped"])
    assert [line.startswith("not saved at step 4: ") for line in shown] == (
        [] if saved else [True]
    )
