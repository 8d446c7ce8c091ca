"""Images per second, with the clock in hand."""

from tf_goyal import meter
from tf_goyal.meter import Meter


def test_seconds_add_up_and_evaluation_does_not_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])
    counter = Meter(global_batch=64)

    # Two steps of 2 s: 0.5 s input, 1.25 s compute, 0.25 s exposed communication.
    for _ in range(2):
        started = now[0]
        now[0] += 2.0
        counter.add(started, started + 0.5, 0.25)
    now[0] += 60.0  # an evaluation
    counter.restart()
    taken = counter.take()

    assert taken == {
        "images_per_second": 32.0,
        "seconds": {"input": 0.5, "compute": 1.25, "exposed_communication": 0.25},
    }
    started = now[0]
    now[0] += 1.0
    counter.add(started, started, 0.0)
    assert counter.take()["images_per_second"] == 64.0
