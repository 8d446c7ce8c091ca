"""host:port."""

import pytest

from tf_goyal.host_port import check, endpoint


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("a:1", ("a", 1)),
        ("A.Example.org:02222", ("a.example.org", 2222)),
        ("my_host-1:65535", ("my_host-1", 65535)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:1", ("::1", 1)),
        ("[0:0:0:0:0:0:0:1]:1", ("::1", 1)),
        ("[2001:DB8::1]:1", ("2001:db8::1", 1)),
    ],
)
def test_equal_addresses_are_equal(address, found):
    assert endpoint(address, "HERE") == found


@pytest.mark.parametrize(
    "address", ["a:0", "a:65536", "a", "a:x", "::1:1", "", 1, None]
)
def test_what_is_no_address(address):
    """S4: port 0, and its kind; the field is named first."""
    with pytest.raises(ValueError, match="^HERE must "):
        endpoint(address, "HERE")


def test_the_first_place_that_is_wrong_is_named():
    check("LIST", [("x", "a:1"), ("y", "b:1"), ("z", "a:2")])
    with pytest.raises(ValueError, match='^LIST: .* x and z are both "A:1"$'):
        check("LIST", [("x", "a:1"), ("y", "b:1"), ("z", "A:1")])
    with pytest.raises(ValueError, match="^LIST: y must end in a port"):
        check("LIST", [("x", "a:1"), ("y", "b:"), ("z", "a:1")])
