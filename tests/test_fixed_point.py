"""float32 as int64 fixed point of unit 2^-50."""

import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import fixed_point

UNIT = 2.0**-50


def encode(values, terms=1):
    fixed, faults = fixed_point.encode([tf.constant(values, tf.float32)], terms)
    return fixed[0].numpy(), int(faults[0])


def test_values_by_hand():
    fixed, faults = encode([0.0, 1.0, -1.0, UNIT, -UNIT, 0.75, 3.0 * UNIT])
    assert fixed.tolist() == [0, 2**50, -(2**50), 1, -1, 3 * 2**48, 3]
    assert faults == 0


@pytest.mark.parametrize(("halves", "nearest"), [(0.99, 0), (1.0, 0), (1.01, 1)])
def test_what_is_smaller_than_a_unit_is_rounded_half_to_even(halves, nearest):
    assert encode([halves * UNIT / 2])[0].tolist() == [nearest]


def test_no_bit_of_a_value_from_2_to_the_minus_26_on_is_lost():
    values = np.float32([2.0**-26 * (1 + 2.0**-23), 1 / 3, -1e-3, 4095.9998])
    decoded = fixed_point.decode(tf.constant(encode(values)[0])).numpy()
    np.testing.assert_array_equal(decoded, values)


@pytest.mark.parametrize("terms", [1, 3, 256])
def test_the_limit_is_refused_and_the_number_below_it_is_not(terms):
    limit = np.float32(fixed_point.limit(terms))
    below = np.nextafter(limit, np.float32(0))
    assert encode([below, -below], terms)[1] == 0
    for beyond in (limit, -limit, np.nextafter(limit, np.float32(np.inf))):
        fixed, faults = encode([0.5, beyond], terms)
        assert faults == 1
        assert fixed.tolist() == [0, 0]


def test_the_largest_terms_add_up_without_overflow():
    terms = 256
    below = np.nextafter(np.float32(fixed_point.limit(terms)), np.float32(0))
    total = terms * int(encode([below], terms)[0][0])  # Python's integers
    assert total < 2**63 - 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted_once_a_tensor(value):
    good = tf.constant([1.0])
    bad = tf.constant([value, value])
    fixed, faults = fixed_point.encode([good, bad, bad], 1)
    assert faults.numpy().tolist() == [0, 1, 1]
    assert fixed[0].numpy().tolist() == [2**50]


def test_the_sum_has_no_order():
    random = np.random.default_rng(0)
    values = (random.normal(size=1000) * 10.0 ** random.integers(-8, 2, 1000)).astype(
        np.float32
    )
    forward = encode(values)[0].sum()
    assert forward == encode(random.permutation(values))[0].sum()
    # In float32 the order shows.
    assert np.cumsum(values)[-1] != np.cumsum(values[::-1])[-1]
