"""How a move looks in the metadata: the stage of an assignment, and what is handed over with it.

| stage | `broker_id`, `epoch` | who may change it |
|---|---|---|
| `serving` | the owner | who begins a move |
| `moving` | the owner, which still serves | the owner, the target, the leader |
| `sealed` | the last owner, which serves no more | the leader |
| `assigned` | the next owner, which does not serve yet | it, by opening; the leader, in a higher epoch |

Opening makes it `serving` again; `sealed_epoch` stays, and tells a broker that comes back that what it has of that
epoch, or an older one, was handed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydanube_broker.records.json_record import UNLESS_DEFAULT, JsonRecord

MAX_PARTS: Final = 512  # with names of objects of 200 characters half of what a value may have


class Stage(StrEnum):
    SERVING = "serving"
    MOVING = "moving"
    SEALED = "sealed"
    ASSIGNED = "assigned"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverPart(JsonRecord):
    """A section of a fragment (`topics.fragment`): bytes `[start, end)` of an object, their SHA-256 in hex."""

    key: str
    start: int
    end: int
    digest: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord(JsonRecord):
    """A move under way.

    ready: the incarnation in which the target has a copy of the parts written while the owner serves; None until then.
    copied: how many parts the target has said to have, where it asks for what came meanwhile.
    offers: how many times the owner has offered more, after the first parts.
    """

    source: str
    target: str
    begun_at_ms: int
    ready: int | None = None
    parts: tuple[HandOverPart, ...] = ()
    copied: Annotated[int, UNLESS_DEFAULT] = 0
    offers: Annotated[int, UNLESS_DEFAULT] = 0
