"""The access mode of a producer's request."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from pydanube_broker.topics.gate import AccessMode, TopicGate
from pydanube_broker.topics.limits import Limits
from pydanube_core.errors import ClusterError, InvalidArgument, LimitReached, ProducerFenced


@pytest.mark.parametrize("mode", list(AccessMode))
def test_a_producer_gets_the_mode_that_it_asks_for(mode: AccessMode) -> None:
    assert AccessMode.parse(mode.value) is mode


def test_a_producer_that_asks_for_no_mode_shares_its_topic() -> None:
    assert AccessMode.parse("") is AccessMode.SHARED


def test_a_mode_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidArgument, match="'only me': use shared, exclusive or named") as refused:
        AccessMode.parse("only me")
    assert refused.value.details["field"] == "access_mode"


class Connection:
    """A producer's, which notes why it ended."""

    def __init__(self) -> None:
        self.ended: list[ClusterError] = []

    def end(self, error: ClusterError) -> None:
        self.ended.append(error)


def names(gate: TopicGate) -> list[str]:
    return [name for _, name, _, _ in gate.attached()]


@pytest.mark.parametrize("mode", [AccessMode.EXCLUSIVE, AccessMode.NAMED])
def test_a_connection_that_takes_over_a_name_ends_the_former_and_alone_remains(mode: AccessMode) -> None:
    gate = TopicGate("/default/t", Limits(max_producers_per_topic=1), count(1))
    first, second = Connection(), Connection()
    of_gate: Any = gate
    of_gate.attach(first, "p", mode, 0)
    of_gate.attach(second, "p", mode, 1)
    assert [error.details["reason"] for error in first.ended] == ["taken_over"]
    assert [(name, one) for _, name, _, one in of_gate.attached()] == [("p", second)]
    of_gate.detach(first)
    assert gate.held_by == ("p" if mode is AccessMode.EXCLUSIVE else None), (
        "an old connection that closes late"
    )
    of_gate.detach(second)
    assert (names(gate), gate.held_by) == ([], None)
    assert second.ended == []


def test_an_exclusive_producer_needs_a_topic_without_others_and_keeps_it_alone() -> None:
    gate: Any = TopicGate("/default/t", Limits(), count(1))
    shared, other = Connection(), Connection()
    gate.attach(shared, "a", AccessMode.SHARED, 0)
    with pytest.raises(ProducerFenced) as refused:
        gate.attach(other, "b", AccessMode.EXCLUSIVE, 1)
    assert (refused.value.details["reason"], refused.value.details["holder"]) == ("not_alone", "a")
    gate.detach(shared)
    gate.attach(other, "b", AccessMode.EXCLUSIVE, 0)
    with pytest.raises(ProducerFenced) as refused:
        gate.attach(shared, "a", AccessMode.SHARED, 1)
    assert (refused.value.details["reason"], refused.value.details["holder"]) == ("exclusive", "b")
    assert names(gate) == ["b"]


def test_as_many_producers_as_the_limit_attach_and_no_more() -> None:
    gate: Any = TopicGate("/default/t", Limits(max_producers_per_topic=2), count(1))
    for present in range(2):
        gate.attach(Connection(), str(present), AccessMode.SHARED, present)
    with pytest.raises(LimitReached):
        gate.attach(Connection(), "2", AccessMode.SHARED, 2)
    assert names(gate) == ["0", "1"]
