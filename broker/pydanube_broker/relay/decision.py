"""Where a call goes whose topic this broker does not serve; pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from pydanube_core.facts import BrokerAddress

PATIENCE_S: Final = (
    120.0  # a move that hangs is ended by the leader after 60 s, and the topic is back a moment later
)


class Way(Enum):
    """What becomes of the call."""

    HERE = "here"  # this broker serves the topic, or can say best that there is none
    CARRY = "carry"  # to its owner
    HOLD = "hold"  # until it has one
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of a call's topic.

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


def decide(standing: Standing) -> Way:
    """Say where the call goes; `CARRY` goes to `standing.owner`."""
    if standing.served or not standing.known:
        return Way.HERE
    owner = standing.owner
    if owner is not None and owner.broker_id != standing.me:
        if standing.relayed or not owner.broker_url:
            return Way.REFUSE
        return Way.CARRY if standing.waited_s < PATIENCE_S else Way.REFUSE
    return Way.HOLD if standing.waited_s < PATIENCE_S else Way.REFUSE
