"""Failed logins wait longer the more there are, by address, and memory for them is bounded."""

from __future__ import annotations

import time
from collections import Counter
from typing import cast

import pytest
from pydanube_broker.rpc.caller import Peer
from pydanube_broker.security.access_records import AccessRecords
from pydanube_broker.security.authenticator import (
    FORGOTTEN_AFTER_S,
    FREE,
    MOST_ADDRESSES,
    Authenticator,
    FailedLogins,
)


def test_the_wait_doubles_up_to_the_longest_and_is_forgotten() -> None:
    logins = FailedLogins(2.0)
    waits = []
    for _ in range(FREE + 6):
        logins.note("a", 0.0)
        waits.append(logins.wait_s("a", 0.0))
    assert waits == [0.0] * FREE + [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert logins.wait_s("b", 0.0) == 0.0
    assert logins.wait_s("a", FORGOTTEN_AFTER_S) == 2.0
    assert logins.wait_s("a", FORGOTTEN_AFTER_S + 1) == 0.0
    assert logins.note("a", FORGOTTEN_AFTER_S + 1) == 1


def test_failures_add_up_as_long_as_none_is_forgotten_before_the_next() -> None:
    """The time of the last one counts: else a guess per minute would never be slowed."""
    logins = FailedLogins(2.0)
    now_s = 0.0
    for _ in range(FREE + 4):
        logins.note("a", now_s)
        now_s += FORGOTTEN_AFTER_S
    assert logins.wait_s("a", now_s) == 2.0
    assert logins.note("a", now_s + 1) == 1


def test_the_first_and_every_tenth_power_is_told() -> None:
    logins = FailedLogins(2.0)
    told = [logins.note("a", 0.0) for _ in range(1000)]
    assert [each for each in told if each] == [1, 10, 100, 1000]


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    logins = FailedLogins(2.0)
    for number in range(MOST_ADDRESSES + 10):
        for _ in range(FREE + 1):
            logins.note(str(number), 0.0)
    assert [logins.wait_s(each, 0.0) > 0 for each in ("0", "9", "10")] == [False, False, True]


def test_refusals_are_delayed_for_no_longer_because_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were timed by the wall clock: set back by an hour, an address was slowed for that hour."""
    wall, monotonic = time.time, time.monotonic
    peer = Peer(address="ipv4:10.0.0.1:5")
    keeper = Authenticator(
        cast(AccessRecords, None),
        None,
        required=True,
        refused=Counter(),
        failed=FailedLogins(2.0),
        connections=lambda identity: lambda: None,
    )
    for _ in range(FREE + 1):
        keeper.note_failure("credential", peer)
    assert keeper.wait_s(peer) > 0
    monkeypatch.setattr("time.time", lambda: wall() - 3600)
    monkeypatch.setattr("time.monotonic", lambda: monotonic() + FORGOTTEN_AFTER_S + 1)
    assert keeper.wait_s(peer) == 0
