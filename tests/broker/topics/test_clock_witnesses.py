"""A clock that is wrong from the start deletes nothing too early: what deletes by age goes by the slowest witness too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.relay.membership import Seals
from pydanube_broker.wall_clock import APART_MS, HEARD_MS, WallClock, WitnessKind
from pydanube_core.errors import PermissionDenied

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TRUE_MS = 1_800_000_000_000


class Machine:
    """A machine whose clock is wrong by `off_ms`."""

    def __init__(self, off_ms: int) -> None:
        self.passed_ms, self.off_ms = 0, off_ms
        self.clock = WallClock(wall_ms=lambda: self.true_ms + self.off_ms, counter_ms=lambda: self.passed_ms)

    @property
    def true_ms(self) -> int:
        return TRUE_MS + self.passed_ms


@given(off_ms=st.integers(-30 * DAY_MS, 30 * DAY_MS), passed_ms=st.integers(0, 30 * DAY_MS))
def test_with_a_right_witness_nothing_is_deleted_early_and_nothing_is_taken_for_the_future(
    off_ms: int, passed_ms: int
) -> None:
    machine = Machine(off_ms)
    machine.clock.witness("the object store", machine.true_ms, kind=WitnessKind.STORE)
    machine.passed_ms = passed_ms
    assert machine.clock.earliest_ms() <= machine.true_ms + APART_MS
    assert machine.clock.latest_ms() >= machine.true_ms - APART_MS
    assert (machine.clock.contradiction() is None) is (abs(off_ms) <= APART_MS)


def test_a_clock_without_a_witness_or_with_one_that_agrees_is_believed() -> None:
    machine = Machine(0)
    assert machine.clock.earliest_ms() == machine.clock.latest_ms() == machine.true_ms
    machine.clock.witness("the clock of broker 2", machine.true_ms + APART_MS, kind=WitnessKind.BROKER)
    assert machine.clock.apart_ms() == (0, 0)
    assert machine.clock.contradiction() is None


def test_another_broker_counts_until_it_has_not_been_heard_for_an_hour() -> None:
    machine = Machine(25 * HOUR_MS)
    machine.clock.witness("the clock of broker 2", machine.true_ms, kind=WitnessKind.BROKER)
    machine.passed_ms = HEARD_MS
    assert machine.clock.earliest_ms() == machine.true_ms
    assert "25" not in (machine.clock.contradiction() or "") or "broker 2" in (
        machine.clock.contradiction() or ""
    )
    machine.passed_ms += 1
    assert machine.clock.apart_ms() == (0, 0)


def test_a_start_before_the_newest_message_is_behind_and_a_long_stop_is_not_ahead() -> None:
    behind = Machine(-2 * HOUR_MS)
    behind.clock.witness("the newest message of the journal", behind.true_ms, kind=WitnessKind.PAST)
    assert behind.clock.apart_ms() == (0, 2 * HOUR_MS)
    assert "behind the newest message" in (behind.clock.contradiction() or "")
    later = Machine(0)
    later.clock.witness(
        "the newest message of the journal", later.true_ms - 30 * DAY_MS, kind=WitnessKind.PAST
    )
    assert later.clock.apart_ms() == (0, 0)


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_messages_from_the_future_are_named_with_their_topic_and_end(is_confirmed: bool) -> None:
    machine = Machine(0)
    machine.clock.started(TRUE_MS + 2 * HOUR_MS, before_ms=None, newest_topic="/default/orders")
    if is_confirmed:
        machine.clock.witness("the clock of broker 2", machine.true_ms, kind=WitnessKind.BROKER)
    said = machine.clock.contradiction() or ""
    assert "topic /default/orders has messages from the future, up to 2027-01-15T10:00:00Z" in said
    assert ("The clock agrees with broker 2" in said) is is_confirmed
    assert "there is nothing to set" in said.lower()
    assert "Set the clocks" not in said
    machine.passed_ms = 2 * HOUR_MS
    if is_confirmed:
        machine.clock.witness("the clock of broker 2", machine.true_ms, kind=WitnessKind.BROKER)
    assert (machine.clock.contradiction() is None) is is_confirmed


def test_a_broker_whose_clock_is_apart_is_heard_and_seals_its_call_again() -> None:
    receiver, sender = Seals(b"s" * 32, "1"), Seals(b"s" * 32, "2")
    heard: list[tuple[str, int]] = []
    receiver.heard = lambda broker_id, at_ms: heard.append((broker_id, at_ms))
    wrong_ms = TRUE_MS + 25 * HOUR_MS
    sealed = sender.seal("1", None, b"x", wrong_ms)
    with pytest.raises(PermissionDenied) as refused:
        receiver.open(sealed, TRUE_MS)
    assert sender.differs("1", sealed, refused.value.details) == -25 * HOUR_MS
    assert receiver.open(sender.seal("1", None, b"x", wrong_ms), TRUE_MS).request == b"x"
    assert heard == [("2", wrong_ms)] * 2, "its own clock, each time"
    with pytest.raises(PermissionDenied) as refused:  # a clock that was set right is measured again
        receiver.open(sealed := sender.seal("1", None, b"x", TRUE_MS), TRUE_MS)
    assert sender.differs("1", sealed, refused.value.details) == 0
    assert receiver.open(sender.seal("1", None, b"x", TRUE_MS), TRUE_MS).request == b"x"


def test_a_difference_of_clocks_counts_only_with_the_receiver_s_proof_for_that_call() -> None:
    receiver, sender = Seals(b"s" * 32, "1"), Seals(b"s" * 32, "2")
    sealed, other = (sender.seal("1", None, b"x", TRUE_MS + HOUR_MS) for _ in range(2))
    with pytest.raises(PermissionDenied) as refused:
        receiver.open(sealed, TRUE_MS)
    told = refused.value.details
    assert sender.differs("1", other, told) is None
    assert sender.differs("1", sealed, told | {"apart_ms": HOUR_MS}) is None
    assert sender.differs("1", sealed, told | {"apart_proof": "é"}) is None
    assert sender.differs("1", sealed, {"apart_ms": -HOUR_MS}) is None
    with pytest.raises(PermissionDenied):
        receiver.open(sender.seal("1", None, b"x", TRUE_MS + HOUR_MS), TRUE_MS)


def test_a_stranger_is_not_heard() -> None:
    receiver = Seals(b"s" * 32, "1")
    heard: list[object] = []
    receiver.heard = lambda broker_id, at_ms: heard.append(broker_id)
    with pytest.raises(PermissionDenied):
        receiver.open(Seals(b"other" * 7, "2").seal("1", None, b"x", TRUE_MS), TRUE_MS)
    assert heard == []
