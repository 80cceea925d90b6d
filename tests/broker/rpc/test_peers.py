"""Whom connections are counted as: by their address, which of IPv6 is the network that a machine has to itself."""

from __future__ import annotations

import pytest
from pydanube_broker.rpc.caller import Peer


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("ipv4:10.0.0.1:50123", "ipv4:10.0.0.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:50123", "ipv6:[2001:db8:1:2::]/64"),
        ("ipv6:[2001:db8:1:2::ffff]:1", "ipv6:[2001:db8:1:2::]/64"),
        ("ipv6:[fe80::1%eth0]:1", "ipv6:[fe80::]/64"),
        ("ipv6:[::1]:1", "ipv6:[::]/64"),
        ("ipv6:[::ffff:10.0.0.1]:50123", "ipv4:10.0.0.1"),
        ("unix:", "unix:"),
    ],
)
def test_a_peer_is_counted_by_what_one_machine_has(address: str, host: str) -> None:
    """Whoever had a network of IPv6 had 2^64 addresses, and as many tries at a token, places and parts of the memory."""
    assert Peer(address=address).host == host
