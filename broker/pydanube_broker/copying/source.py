"""The source of copies: answers the rounds that one peer requests, for many topics on one stream.

Each round is a task. It reads a piece, sends its chunks as credit and the stream's buffer allow, and reads the next one.
So a round holds one piece in memory, and a stream at most `_PIECES`. A round beyond the stream's maximum is refused. A
round that follows its topic then waits for more (`following`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, NoReturn

from pydanube_core.errors import ClusterError, Internal, Overloaded

from pydanube_broker.copying.credit import SenderCredit
from pydanube_broker.copying.following import Follower, check_continues, next_piece
from pydanube_broker.copying.messages import (
    Answer,
    Chunk,
    End,
    Failure,
    Grant,
    Leave,
    Request,
    Round,
    Start,
    chunks_of,
)
from pydanube_broker.copying.pace import Pace
from pydanube_broker.copying.piece import Piece
from pydanube_broker.copying.reading import pieces_of
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads

log = logging.getLogger("pydanube.copying")

MOST_ROUNDS: Final = 512  # concurrent rounds of a stream: a drain moves 200 topics concurrently
MOST_FOLLOWED: Final = 20_000  # the same of a link's stream, where most rounds are quiet
MARKS_S: Final = 1.0  # between two marks of a topic that is followed
_PIECES: Final = 16

#: returns the topic of a round, or raises `ClusterError` if the peer may not copy it
Permit = Callable[[Round], Awaitable[Topic]]


class Source:
    """One peer's stream. Single user: the loop.

    Args:
        permit: see `Permit`.
        send: queues an answer.
        writable: returns whether the stream's buffer has room. The caller calls `wake` when that may have changed.
        most: maximum of concurrent rounds.
        check: called before anything of a followed topic is sent. Raises `ClusterError` if the peer may no longer copy it.
    """

    def __init__(
        self,
        permit: Permit,
        worker_threads: WorkerThreads,
        *,
        send: Callable[[Answer], None],
        writable: Callable[[], bool],
        most: int = MOST_ROUNDS,
        check: Callable[[Topic], None] | None = None,
    ) -> None:
        self._permit = permit
        self._check = check
        self._most = most
        self._followers: set[Follower] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._worker_threads = worker_threads
        self._send = send
        self._writable = writable
        self._credit = SenderCredit()
        self._rounds: dict[int, asyncio.Task[None]] = {}
        self._pieces = asyncio.Semaphore(_PIECES)
        self._more = asyncio.Event()
        self._paces: dict[int, Pace] = {}

    def handle(self, request: Request) -> None:
        """Handle a request of the peer. Raises `InvalidArgument`: its credit is negative or above `MOST_BYTES`."""
        match request:
            case Round():
                self._leave(request.topic_id)
                if len(self._rounds) >= self._most:
                    error = Overloaded(f"{self._most} topics are being copied on this stream")
                    self._send(Failure(request.topic_id, request.number, error))
                    return
                self._credit.open(request.topic_id, request.credit)
                self._rounds[request.topic_id] = asyncio.get_running_loop().create_task(self._serve(request))
            case Grant(topic_id, count):
                self._credit.grant(topic_id, count)
                self.wake()
            case Leave(topic_id):
                self._leave(topic_id)

    def wake(self) -> None:
        """Continue rounds that wait for credit or for room in the stream."""
        more, self._more = self._more, asyncio.Event()
        more.set()

    def close(self) -> None:
        """Cancel all rounds, because the stream has ended."""
        for topic_id in list(self._rounds):
            self._leave(topic_id)

    def _leave(self, topic_id: int) -> None:
        self._credit.close(topic_id)
        task = self._rounds.pop(topic_id, None)
        if task is not None:
            task.cancel()

    async def _serve(self, request: Round) -> None:
        topic_id, number = request.topic_id, request.number
        answer: Answer
        try:
            topic = await self._permit(request)
            if request.follow:
                await self._follow(topic, request)
            missing = topic.journal_bytes(request.first or 0)
            self._send(Start(topic_id, number, missing))
            self._slow_down(topic, request, missing)
            answer = End(topic_id, number, await self._send_pieces(topic, request))
        except ClusterError as error:
            answer = Failure(topic_id, number, error)
        except Exception as error:
            log.exception("copy_failed", extra={"topic_id": topic_id})
            answer = Failure(topic_id, number, Internal(f"copying topic {topic_id} failed: {error}"))
        if self._rounds.get(topic_id) is asyncio.current_task():
            del self._rounds[topic_id]
            self._credit.close(topic_id)
        self._send(answer)

    def _slow_down(self, topic: Topic, request: Round, missing: int) -> None:
        """Limit the topic's producers if its copy does not come closer to them."""
        if request.last:
            self._paces.pop(request.topic_id, None)
            return
        pace = self._paces.get(request.topic_id)
        if pace is None or pace.revision != request.revision:
            while len(self._paces) >= MOST_ROUNDS:  # of moves that were cancelled
                del self._paces[next(iter(self._paces))]
            pace = self._paces[request.topic_id] = Pace(request.revision)
        limit = pace.round_begins(missing)
        if limit is not None:
            topic.slow_down(limit)
            log.info("producers_slowed_down", extra={"topic": topic.name, "bytes_per_s": limit})

    async def _send_pieces(self, topic: Topic, request: Round) -> int:
        """Send the pieces of a round. Return the end offset of the last one."""
        end, sent, begun_s = 0, 0, time.monotonic()
        pieces = pieces_of(topic, request.first, self._worker_threads, last=request.last)
        async with aclosing(pieces):
            while True:
                async with self._pieces:
                    piece = await anext(pieces, None)
                    if piece is None:
                        break
                    sent += await self._send_piece(piece, request.number)
                    end = piece.end_offset
                    topic.keep_slow()
        if (pace := self._paces.get(request.topic_id)) is not None:
            pace.rate_bytes_s = int(sent / max(1e-3, time.monotonic() - begun_s))
        return end

    async def _send_piece(self, piece: Piece, number: int) -> int:
        """Send a piece. Return its size in bytes."""
        sent = 0
        for chunk in chunks_of(piece, number):
            await self._send_chunk(chunk)
            sent += len(chunk.data)
        return sent

    async def _follow(self, topic: Topic, request: Round) -> NoReturn:
        """Send stored and new messages until the topic is closed or the round is left. Raises the error that ends it."""
        at = await check_continues(topic, request, self._worker_threads)
        follower = Follower(topic)
        topic.listeners.add(follower)
        self._followers.add(follower)
        if self._timer is None:
            self._look_later()
        try:
            while True:
                follower.more.clear()
                if topic.closed is not None:
                    raise topic.closed
                # A quiet topic costs nothing, unlike a check of all streams (`RightsWatch`)
                if self._check is not None:
                    self._check(topic)
                if follower.is_due:
                    await self._send_marks(follower, request.number)
                if at >= topic.commit:
                    await follower.more.wait()
                    continue
                async with self._pieces:
                    piece = await next_piece(topic, at, self._worker_threads)
                    if piece is not None:
                        if follower.needs_marks_before(piece):
                            await self._send_marks(follower, request.number)
                        await self._send_piece(piece, request.number)
                        at = piece.end_offset
        finally:
            topic.listeners.discard(follower)
            self._followers.discard(follower)

    async def _send_marks(self, follower: Follower, number: int) -> None:
        """Send a topic's marks when the stream has room. They are made only then, so none wait in the stream's buffer."""
        await self._room()
        for marks in follower.marks(number):
            self._send(marks)
            await self._room()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(MARKS_S, self._look)

    def _look(self) -> None:
        self._timer = None
        for follower in self._followers:
            follower.look()
        if self._followers:
            self._look_later()

    async def _room(self) -> None:
        while not self._writable():
            await self._more.wait()

    async def _send_chunk(self, chunk: Chunk) -> None:
        while not (self._credit.may_send(chunk.topic_id) and self._writable()):
            await self._more.wait()
        self._credit.sent(chunk.topic_id, len(chunk.data))
        self._send(chunk)
