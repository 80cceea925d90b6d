"""The states of a message and of a consumer, and every way from one to another, as data.

`Window` keeps messages as bit masks and `Members` keeps consumers as a list, so neither has a place where a state is
written down. These tables are that place: for the reader, and for the tests, which run subscriptions through random
histories and compare every change with them in both directions (nothing happens that is not here, and nothing is here
that never happens).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class MessageState(StrEnum):
    """Where one message stands with one subscription. A message is in one state at a time."""

    UNSEEN = "unseen"  # at or above `next`: not read yet
    READY = "ready"  # read, and may be sent as soon as a consumer has credit
    IN_FLIGHT = "in flight"  # sent to a consumer that has not answered
    WAITING = "waiting"  # came back; sent again when its delay is over
    BLOCKED = "blocked"  # has used up its deliveries, and the policy is to stop here
    LEAVING = "leaving"  # has used up its deliveries, and its copy is on the way to the dead-letter topic
    ACKNOWLEDGED = "acknowledged"  # done with: answered, dropped, copied, skipped, or below the floor


_S = MessageState

MESSAGE_MOVES: Final[dict[tuple[MessageState, MessageState], str]] = {
    (_S.UNSEEN, _S.IN_FLIGHT): "read, and a consumer has credit",
    (_S.UNSEEN, _S.READY): "read for another consumer than its own, which has no credit (key-shared)",
    (_S.UNSEEN, _S.ACKNOWLEDGED): "skipped, or acknowledged before a restart",
    (_S.READY, _S.IN_FLIGHT): "a consumer has credit, and nothing before it in its order stops it",
    (
        _S.READY,
        _S.ACKNOWLEDGED,
    ): "skipped, answered late, gone from the log, or no consumer's filters take its key",
    (_S.IN_FLIGHT, _S.ACKNOWLEDGED): "acknowledged, or has used up its deliveries under the policy drop",
    (_S.IN_FLIGHT, _S.READY): "given back, or its consumer is gone, or it failed and there is no delay",
    (_S.IN_FLIGHT, _S.WAITING): "negatively acknowledged, or not answered in time",
    (_S.IN_FLIGHT, _S.BLOCKED): "has used up its deliveries under the policy block",
    (_S.IN_FLIGHT, _S.LEAVING): "has used up its deliveries under the policy dead_letter",
    (_S.WAITING, _S.READY): "its delay is over",
    (_S.WAITING, _S.ACKNOWLEDGED): "answered late, skipped, or gone from the log",
    (_S.BLOCKED, _S.ACKNOWLEDGED): "skipped, answered late, gone from the log, or the policy became drop",
    (_S.BLOCKED, _S.READY): "the policy allows more deliveries now",
    (_S.BLOCKED, _S.LEAVING): "the policy became dead_letter",
    (_S.BLOCKED, _S.BLOCKED): "the policy changed, and it has used up its deliveries by the new one too",
    (
        _S.LEAVING,
        _S.ACKNOWLEDGED,
    ): "its copy is on stable storage, it was skipped, or it is gone from the log",
    (_S.LEAVING, _S.LEAVING): "its copy was refused; asked for again after the policy's delay",
    (_S.ACKNOWLEDGED, _S.READY): "redelivered by an operator",
    (_S.ACKNOWLEDGED, _S.UNSEEN): "redelivered by an operator, and not read since a restart",
    (_S.LEAVING, _S.BLOCKED): "its copy was refused, and the policy became block meanwhile",
}
"""From one state to another, and by what. A seek is none of them: it starts a new generation, in which what lies at
or above its offset is unseen and everything below it acknowledged."""


class ConsumerState(StrEnum):
    """Where one consumer stands with its subscription."""

    ABSENT = "absent"
    ACTIVE = "active"  # may be sent messages, as far as its credit goes
    STANDBY = "standby"  # failover: takes over when those before it are gone, or set aside
    SET_ASIDE = "set aside"  # let everything expire; is sent nothing
    ON_TRIAL = "on trial"  # was set aside; is sent one message at a time until it answers


_C = ConsumerState

CONSUMER_MOVES: Final[dict[tuple[ConsumerState, ConsumerState], str]] = {
    (_C.ABSENT, _C.ACTIVE): "joins; in failover as the first, or in the place of the active one by its name",
    (_C.ABSENT, _C.STANDBY): "joins a failover subscription that has an active consumer",
    (_C.STANDBY, _C.ACTIVE): "all consumers before it are gone, or set aside",
    (_C.ACTIVE, _C.SET_ASIDE): "let everything expire, and somebody else takes its messages",
    (_C.SET_ASIDE, _C.ACTIVE): "answers, or nobody else is left",
    (_C.SET_ASIDE, _C.STANDBY): "failover: answers; it stands behind whoever took over",
    (_C.SET_ASIDE, _C.ON_TRIAL): "its trial is due; not in failover",
    (_C.ON_TRIAL, _C.ACTIVE): "answers",
    (_C.ON_TRIAL, _C.SET_ASIDE): "let its message expire",
    (_C.SET_ASIDE, _C.ABSENT): "leaves, or another took over its name",
    (_C.ON_TRIAL, _C.ABSENT): "leaves, or another took over its name",
    (_C.ACTIVE, _C.ABSENT): "leaves, or another took over its name; what it held comes back",
    (_C.STANDBY, _C.ABSENT): "leaves, or another took over its name",
}
