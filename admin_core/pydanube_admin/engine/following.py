"""Follow moves that a call has begun, as a task: until every topic has arrived, or a move has failed for good.

A move does not need its task. The task reports its progress, begins a cancelled move again
after a pause, and has the outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, Conflict, Retryable
from pydanube_core.facts import FailedMoveFacts

LOOK_S: Final = 0.5
ATTEMPTS: Final = 5  # of one topic
FIRST_PAUSE_S: Final = 1.0  # before the second attempt, doubled for each later one
UNSEEN_S: Final = 30.0  # how long a move that has begun may be invisible to this broker
SHOWN: Final = 20  # topics whose progress a task shows

#: reports progress, an entry for each topic
ReportProgress = Callable[[Sequence[Mapping[str, Any]]], None]
#: begins to move a topic, and returns its target
Begin = Callable[[str], Awaitable[str]]


@dataclass(slots=True)
class _Followed:
    """One topic. `known_begin`: begin of its newest failed move that is counted already, or is older than the task."""

    target: str
    known_begin: int | None
    attempts: int = 1
    again_s: float | None = None  # time of the next attempt, None while a move is under way
    unseen_since_s: float | None = None


class FollowedMoves:
    """See the module. Create it before the moves begin, so that earlier failures can be distinguished."""

    def __init__(self, port: ClusterPort, failed_before: Sequence[FailedMoveFacts]) -> None:
        self._port = port
        self._before = {each.topic: each.begun_at_ms for each in failed_before}
        self._topics: dict[str, _Followed] = {}
        self._arrived: dict[str, str] = {}

    @classmethod
    async def of(cls, port: ClusterPort) -> FollowedMoves:
        return cls(port, await port.failed_moves())

    @property
    def targets(self) -> dict[str, str]:
        """Return the topics that have arrived, each with its broker."""
        return dict(self._arrived)

    def add(self, moves: Mapping[str, str]) -> None:
        """Follow begun moves, concrete topic → target."""
        for topic, target in moves.items():
            self._topics[topic] = _Followed(target, self._before.get(topic))

    def add_refused(self, moves: Mapping[str, str]) -> None:
        """Follow moves that could not begin, and begin them again after a pause."""
        again_s = anyio.current_time() + FIRST_PAUSE_S
        for topic, target in moves.items():
            self._topics[topic] = _Followed(target, self._before.get(topic), again_s=again_s)

    async def until_over(self, begin: Begin, report: ReportProgress) -> None:
        """Wait until every topic has arrived. Cancelling the wait cancels no move.

        Raises `ClusterError`: why a topic was not moved. Moves of others may still be under way.
        """
        while self._topics:
            await self._look(begin, report)
            if self._topics:
                await anyio.sleep(LOOK_S)

    async def _look(self, begin: Begin, report: ReportProgress) -> None:
        under_way = {move.topic: move for move in await self._port.moves()}
        failed = {move.topic: move for move in await self._port.failed_moves()}
        for topic, each in list(self._topics.items()):
            if topic in under_way:
                each.unseen_since_s = None
            elif each.again_s is not None:
                if anyio.current_time() >= each.again_s:
                    await self._begin_again(topic, each, begin)
            elif (failure := failed.get(topic)) and failure.begun_at_ms != each.known_begin:
                self._note_failure(each, failure)
            elif await self._has_arrived(topic, each):
                del self._topics[topic]
                self._arrived[topic] = each.target
        report(
            self._progress(
                {topic: (move.copied_bytes, move.total_bytes) for topic, move in under_way.items()}
            )
        )

    @staticmethod
    async def _begin_again(topic: str, each: _Followed, begin: Begin) -> None:
        each.attempts += 1
        try:
            each.target = await begin(topic)
        except Conflict:  # another call has begun to move it, or it is there
            pass
        except Retryable:
            if each.attempts >= ATTEMPTS:
                raise
            each.again_s = anyio.current_time() + FIRST_PAUSE_S * 2 ** (each.attempts - 1)
            return
        each.again_s = None

    @staticmethod
    def _note_failure(each: _Followed, failure: FailedMoveFacts) -> None:
        each.known_begin = failure.begun_at_ms
        if each.attempts >= ATTEMPTS:
            raise ClusterError.from_dict(
                {
                    "code": failure.code,
                    "message": f"{failure.topic} was not moved to broker {failure.target} in {ATTEMPTS} attempts, and stays "
                    f"with broker {failure.owner}: {failure.why}",
                    "details": {"topic": failure.topic, "broker_id": failure.target},
                }
            )
        each.again_s = anyio.current_time() + FIRST_PAUSE_S * 2 ** (each.attempts - 1)

    async def _has_arrived(self, topic: str, each: _Followed) -> bool:
        """Return whether the target owns the topic. Raises `Conflict`, `TopicNotFound` if it never will."""
        owners = await self._port.owners(topic)
        at = owners[0].broker_id if owners and owners[0] is not None else None
        if at == each.target:
            return True
        now_s = anyio.current_time()
        each.unseen_since_s = each.unseen_since_s or now_s
        if now_s - each.unseen_since_s < UNSEEN_S:
            return False
        raise Conflict(
            f"{topic} is not on its way to broker {each.target} any more: "
            + ("it was deleted" if not owners else f"it is with broker {at}"),
            topic=topic,
            retryable=False,
        )

    def _progress(self, sizes: Mapping[str, tuple[int | None, int | None]]) -> list[Mapping[str, Any]]:
        total = len(self._topics) + len(self._arrived)
        found: list[Mapping[str, Any]] = []
        if total > 1:
            found.append({"done": len(self._arrived), "total": total, "unit": "topics"})
        for topic, each in list(self._topics.items())[:SHOWN]:
            done, size = sizes.get(topic, (None, None))
            found.append(
                {
                    "topic": topic,
                    "to_broker": each.target,
                    "attempt": each.attempts,
                    "done": done or 0,
                    "total": size,
                    "unit": "bytes",
                }
            )
        return found
