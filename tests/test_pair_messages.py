"""Keys of messages, and what is refused before one is sent.

That they arrive is in test_halving_doubling.py and test_hierarchical.py.
"""

import pytest
import tensorflow as tf

from tf_goyal import pair_messages


def keys(sender, receiver, message):
    """Group and instance of a message, as the sender's op has them."""
    with tf.Graph().as_default():
        known = {"sender": sender, "receiver": receiver, "message": message}
        sent = pair_messages.send(tf.ones([2]), **known, name="a")
        received = pair_messages.receive([2], tf.float32, **known, name="b")
        found = [
            tuple(int(tf.get_static_value(op.inputs[i])) for i in indices)
            for op, indices in ((sent.op, (2, 3)), (received.op, (1, 2)))
        ]
    assert found[0] == found[1]
    return found[0]


def test_each_pair_direction_and_message_has_keys_of_its_own():
    """The first and the last of all; int32, in groups out of the way of TensorFlow's.

    Its strategies count theirs up from 1. Instances belong to a group.
    """
    last, most = pair_messages.MAX_RANKS - 1, pair_messages.MAX_MESSAGES - 1
    found = [
        keys(sender, receiver, message)
        for sender, receiver in ((0, 1), (1, 0), (1, 2), (0, last), (last, last - 1))
        for message in (0, 1, most)
    ]
    assert len({*found}) == len(found)
    groups, instances = zip(*found, strict=True)
    assert 2**30 <= min(groups) <= max(groups) < 2**31
    assert 0 <= min(instances) <= max(instances) < 2**31


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"receiver": 0}, "from one rank below 32768 to another, got 0 to 0"),
        ({"sender": -1}, "from one rank below 32768 to another, got -1 to 1"),
        ({"receiver": 32768}, "from one rank below 32768 to another, got 0 to 32768"),
        ({"message": -1}, "must be from 0 to 1073741823, got -1"),
        ({"message": 2**30}, "must be from 0 to 1073741823, got 1073741824"),
        ({"tensor": tf.constant([True])}, "bfloat16, got bool"),
    ],
)
def test_refused(changes, refused):
    good = {"tensor": tf.ones([2]), "sender": 0, "receiver": 1, "message": 0}
    with pytest.raises(ValueError, match=refused):
        pair_messages.send(**{**good, **changes}, name="a")
