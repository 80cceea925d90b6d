"""Decide how to handle a call whose topic this broker does not serve. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from pydanube_core.facts import BrokerAddress

# The leader ends a move that hangs after 60 s, and the topic is back a moment later
PATIENCE_S: Final = 120.0


class Handling(Enum):
    """The ways to handle a call of a client."""

    HERE = "here"  # this broker serves the topic, or reports that it does not exist
    CARRY = "carry"  # to its owner
    HOLD = "hold"  # until it has one
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlace:
    """The facts about a call's topic by which the call is handled.

    Attributes:
        known: the topic is in the catalog.
        served: this broker serves the topic now.
        owner: the broker that has opened the topic, or None if no broker has.
        relayed: the call came from another broker, and is not relayed again.
        waited_s: how long the call has been held, in total.
    """

    known: bool
    served: bool
    owner: BrokerAddress | None
    me: str
    relayed: bool
    waited_s: float


def decide(standing: TopicPlace) -> Handling:
    """Decide how to handle the call. `CARRY` goes to `standing.owner`."""
    if standing.served or not standing.known:
        return Handling.HERE
    owner = standing.owner
    if owner is not None and owner.broker_id != standing.me:
        if standing.relayed or not owner.broker_url:
            return Handling.REFUSE
        return Handling.CARRY if standing.waited_s < PATIENCE_S else Handling.REFUSE
    return Handling.HOLD if standing.waited_s < PATIENCE_S else Handling.REFUSE
