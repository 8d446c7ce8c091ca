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
        ("a.b.:1", ("a.b.", 1)),
        ("a" * 63 + ":1", ("a" * 63, 1)),
        (".".join(["a" * 49] * 5) + ".bcd:1", (".".join(["a" * 49] * 5) + ".bcd", 1)),
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


@pytest.mark.parametrize(
    "host", ["run-1..svc", ".a", ".", "a..", "a" * 64, ".".join(["a" * 49] * 6)]
)
def test_a_host_that_no_name_server_can_know(host):
    with pytest.raises(ValueError, match="^HERE must have a host whose parts between"):
        endpoint(f"{host}:1", "HERE")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", "0x0.0", "[::]", "[0::0]", "[::ffff:0.0.0.0]"]
)
def test_an_address_of_every_machine_is_no_address_among_several(host):
    """The others would call themselves."""
    check("LIST", [("x", f"{host}:1")])
    with pytest.raises(ValueError, match="^LIST: y must be an address where the other"):
        check("LIST", [("x", "a:1"), ("y", f"{host}:1")])


def test_the_first_place_that_is_wrong_is_named():
    check("LIST", [("x", "a:1"), ("y", "b:1"), ("z", "a:2")])
    with pytest.raises(ValueError, match='^LIST: .* x and z are both "A:1"$'):
        check("LIST", [("x", "a:1"), ("y", "b:1"), ("z", "A:1")])
    with pytest.raises(ValueError, match="^LIST: y must end in a port"):
        check("LIST", [("x", "a:1"), ("y", "b:"), ("z", "a:1")])
