"""Decide where a call goes whose topic this broker does not serve. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from pydanube_core.facts import BrokerAddress

PATIENCE_S: Final = (
    120.0  # a move that hangs is ended by the leader after 60 s, and the topic is back a moment later
)


class Handling(Enum):
    """The ways to handle a call of a client."""

    HERE = "here"  # this broker serves the topic, or can say best that there is none
    CARRY = "carry"  # to its owner
    HOLD = "hold"  # until it has one
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlace:
    """The facts about a call's topic by which the call is handled.

    Attributes:
        known: it is in the catalog.
        served: by this broker, now.
        owner: the broker that has opened it; None while nobody has.
        relayed: the call came from another broker, and goes no further.
        waited_s: how long it has been held, all together.
    """

    known: bool
    served: bool
    owner: BrokerAddress | None
    me: str
    relayed: bool
    waited_s: float


def decide(standing: TopicPlace) -> Handling:
    """Decide what to do with the call; `CARRY` goes to `standing.owner`."""
    if standing.served or not standing.known:
        return Handling.HERE
    owner = standing.owner
    if owner is not None and owner.broker_id != standing.me:
        if standing.relayed or not owner.broker_url:
            return Handling.REFUSE
        return Handling.CARRY if standing.waited_s < PATIENCE_S else Handling.REFUSE
    return Handling.HOLD if standing.waited_s < PATIENCE_S else Handling.REFUSE
