import tensorflow as tf

from tf_goyal.arrivals import Arrivals


def test_each_message_counts_each_time_it_comes():
    arrivals = Arrivals()

    @tf.function
    def step(x):
        arrivals.count(x, "first")
        doubled = x + x
        arrivals.count(doubled, "second")
        return x  # nothing depends on what is counted

    assert arrivals.counts() == {}
    for times in (1, 2, 3):
        step(tf.constant(1.0))
        assert arrivals.counts() == {"first": times, "second": times}


def test_two_accounts_do_not_mix():
    one, other = Arrivals(), Arrivals()
    tf.function(lambda x: one.count(x, "a"))(tf.constant(1))
    assert (one.counts(), other.counts()) == ({"a": 1}, {})
