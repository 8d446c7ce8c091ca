"""Who has been silent for too long, counted in this process' own time."""

from tf_goyal.silence import Silence


def test_silence_is_too_long_only_beyond_the_limit():
    silence = Silence([0, 1], seconds=10, interval=2)
    for _ in range(5):
        assert silence.tick(2.0) == []  # 2, 4, 6, 8, 10
    silence.heard(1)
    assert silence.tick(0.001) == [0]


def test_a_process_that_was_stopped_itself_does_not_judge_by_its_clock():
    """After an hour's sleep it listens for some intervals before it says a word."""
    silence = Silence([1], seconds=10, interval=2)
    assert silence.tick(3600.0) == []  # counts as two intervals
    assert silence.tick(3600.0) == []
    assert silence.tick(3600.0) == [1]


def test_whoever_said_goodbye_may_be_silent():
    silence = Silence([1, 2], seconds=1, interval=1)
    silence.forget(1)
    silence.heard(1)
    assert silence.tick(2.0) == [2]
