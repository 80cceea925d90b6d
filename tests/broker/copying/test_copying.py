"""Copies of many topics on one stream: whatever is slow, lost or granted in any order, each arrives as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.copying import source as source_module
from pydanube_broker.copying.credit import CHUNK_BYTES, MOST_BYTES, STREAM_BYTES, ReceiverCredit, SenderCredit
from pydanube_broker.copying.messages import (
    MOST_CURSORS,
    Answer,
    Assembly,
    Chunk,
    End,
    Failure,
    Grant,
    Marks,
    Request,
    Round,
    SessionMark,
    Start,
    chunks_of,
)
from pydanube_broker.copying.pace import ROUNDS, Pace
from pydanube_broker.copying.piece import Piece, encode_piece
from pydanube_broker.copying.source import MOST_ROUNDS, Source
from pydanube_broker.copying.target import Answers, Copies
from pydanube_broker.topics.producers import MAX_PRODUCERS
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads
from pydanube_core.batch import broker_part, encode_batch
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    CorruptObject,
    DiskFull,
    InvalidArgument,
    Overloaded,
    Unavailable,
)

steady = settings(derandomize=True, deadline=None, max_examples=100)
OWNER = BrokerId(1)


# -- credit ------------------------------------------------------------------------------------------------------


@steady
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "take", "slow"]), st.integers(1, 3), st.integers(1, CHUNK_BYTES)),
        max_size=200,
    )
)
def test_no_more_is_on_its_way_than_was_granted_and_one_chunk(steps: list[tuple[str, int, int]]) -> None:
    bound, stream_bound = 4 * CHUNK_BYTES, STREAM_BYTES
    sender, stream = SenderCredit(), ReceiverCredit(stream_bound)
    topics = {n: ReceiverCredit(bound) for n in (1, 2, 3)}
    way: dict[int, list[int]] = {n: [] for n in topics}  # chunks that left and were not taken
    for n in topics:
        sender.open(n, bound)
    for what, n, size in steps:
        if what == "send" and sender.may_send(n):
            sender.sent(n, size)
            way[n].append(size)
        elif what == "take" and way[n]:
            taken = way[n].pop(0)
            sender.grant(n, topics[n].taken(taken))
            sender.grant(0, stream.taken(taken))
        assert sum(way[n]) <= bound + CHUNK_BYTES
        assert sum(map(sum, way.values())) <= stream_bound + CHUNK_BYTES
    for n in topics:  # once all was taken each may send again: no credit has leaked away
        for taken in way[n]:
            sender.grant(n, topics[n].taken(taken))
            sender.grant(0, stream.taken(taken))
        assert sender.may_send(n)


@pytest.mark.parametrize(("topic", "count"), [(7, -1), (7, MOST_BYTES), (0, -1), (0, MOST_BYTES)])
def test_credit_that_no_peer_may_grant_is_refused(topic: int, count: int) -> None:
    sender = SenderCredit()
    sender.open(7, 5)
    with pytest.raises(InvalidArgument, match="at most"):
        sender.grant(topic, count)
    with pytest.raises(InvalidArgument, match="at most"):
        sender.open(8, MOST_BYTES + 1)


def test_credit_for_a_topic_that_is_over_changes_nothing() -> None:
    sender = SenderCredit()
    sender.open(7, 5)
    sender.close(7)
    sender.grant(7, 10)
    assert not sender.may_send(7)


# -- pieces in chunks ----------------------------------------------------------------------------------------------


def piece_of(topic_id: int, first: int, sizes: list[int]) -> Piece:
    batches, at = [], first
    for size in sizes:
        head = broker_part(base_offset=at, last_offset=at, epoch=1, append_time_ms=1)
        batches.append(head + encode_batch([bytes(size)], producer_id=1, producer_epoch=1, first_sequence=at))
        at += 1
    return Piece(topic_id=topic_id, epoch=1, first_offset=first, end_offset=at, batches=tuple(batches))


@pytest.mark.parametrize("sizes", [[], [10], [CHUNK_BYTES - 200], [CHUNK_BYTES], [700_000, 10, 300_000]])
def test_a_piece_comes_together_from_its_chunks(sizes: list[int]) -> None:
    piece, assembly = piece_of(7, 3, sizes), Assembly()
    found = [assembly.add(chunk) for chunk in chunks_of(piece, 1)]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] is not None
    assert b"".join(encode_piece(found[-1])) == b"".join(encode_piece(piece))
    assert assembly.is_whole


def test_a_chunk_of_another_topics_piece_is_refused() -> None:
    (chunk,) = chunks_of(piece_of(7, 0, [1]), 1)
    with pytest.raises(CorruptObject, match="came with a piece of topic 7"):
        Assembly().add(Chunk(8, 1, chunk.data, True))


# -- both ends -----------------------------------------------------------------------------------------------------


class Log:
    """A topic of the owner: its pieces, as they are read."""

    def __init__(self, topic_id: int, sizes: list[int]) -> None:
        self.topic_id, self.name = topic_id, f"t{topic_id}"
        self.sizes = sizes
        self.limits: list[int] = []
        self.pieces = [piece_of(topic_id, n, [size]) for n, size in enumerate(sizes)]

    def journal_bytes(self, offset: int) -> int:
        return sum(self.sizes[offset:])

    def slow_down(self, bytes_per_s: int) -> None:
        self.limits.append(bytes_per_s)

    def keep_slow(self) -> None:
        """Nothing counts here."""


class Ends:
    """An owner and a target, with a stream between them that can be cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, logs: list[Log]) -> None:
        self.logs = {log.topic_id: log for log in logs}
        self.refuses: dict[int, ClusterError] = {}
        self.streams: list[tuple[Source, Answers]] = []
        self.on_the_way: list[int] = []  # bytes sent and not taken, each time a chunk is sent
        self._untaken = 0
        self.copies = Copies(self._open)

        async def pieces(
            topic: Log, first: int | None, threads: WorkerThreads, *, last: bool
        ) -> AsyncIterator[Piece]:
            for piece in topic.pieces[first or 0 :]:
                yield piece
            if not topic.pieces[first or 0 :]:
                yield piece_of(topic.topic_id, first or 0, [])

        monkeypatch.setattr(source_module, "pieces_of", pieces)

    def _open(self, owner: BrokerId, answers: Answers) -> Ends._Wire:
        async def permit(request: Round) -> Topic:
            if request.topic_id in self.refuses:
                raise self.refuses[request.topic_id]
            return self.logs[request.topic_id]  # type: ignore[return-value]

        def send(answer: Answer) -> None:
            if isinstance(answer, Chunk):
                self._untaken += len(answer.data)
                self.on_the_way.append(self._untaken)
            answers.answered(answer)

        made = Source(permit, WorkerThreads(), send=send, writable=lambda: True)
        self.streams.append((made, answers))
        return Ends._Wire(made)

    class _Wire:
        def __init__(self, made: Source) -> None:
            self.made = made

        def send(self, request: Request) -> None:
            self.made.handle(request)

        def close(self) -> None:
            self.made.close()

    def cut(self) -> None:
        made, answers = self.streams[-1]
        made.close()
        answers.lost(Unavailable("cut"))

    async def copy(
        self,
        topic_id: int,
        first: int | None = None,
        taken: Callable[[Piece], object] = lambda piece: None,
        begun: Callable[[int], None] = lambda size: None,
    ) -> list[Piece]:
        found: list[Piece] = []

        async def sink(piece: Piece) -> None:
            self._untaken -= len(b"".join(encode_piece(piece)))
            found.append(piece)
            waits = taken(piece)
            if isinstance(waits, anyio.Event):
                await waits.wait()

        await self.copies.round(OWNER, topic_id, 1, first, sink, begun=begun)
        return found


@asynccontextmanager
async def ends(monkeypatch: pytest.MonkeyPatch, *logs: Log) -> AsyncIterator[Ends]:
    made = Ends(monkeypatch, list(logs))
    with anyio.fail_after(20):
        yield made
    made.copies.close()
    for each, _ in made.streams:
        each.close()
    await asyncio.sleep(0)


def offsets(pieces: list[Piece]) -> list[int]:
    return [piece.first_offset for piece in pieces]


@pytest.mark.anyio
async def test_many_topics_come_on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [Log(n, [n * 1000] * (n % 5)) for n in range(1, 60)]
    async with ends(monkeypatch, *logs) as both:
        async with anyio.create_task_group() as group:
            found: dict[int, list[Piece]] = {}

            async def one(topic_id: int) -> None:
                found[topic_id] = await both.copy(topic_id)

            for log in logs:
                group.start_soon(one, log.topic_id)
        assert len(both.streams) == 1
        for log in logs:
            assert offsets(found[log.topic_id]) == (offsets(log.pieces) or [0])


@pytest.mark.anyio
async def test_a_sink_that_takes_nothing_bounds_its_topic_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, quick = Log(1, [200_000] * 100), Log(2, [200_000] * 60)
    async with ends(monkeypatch, slow, quick) as both:
        open_now, begun = anyio.Event(), anyio.Event()

        def wait(piece: Piece) -> anyio.Event:
            begun.set()
            return open_now

        found: list[list[Piece]] = []
        async with anyio.create_task_group() as group:

            async def slowly() -> None:
                found.append(await both.copy(1, taken=wait))

            group.start_soon(slowly)
            await begun.wait()
            assert len(await both.copy(2)) == 60
            assert max(both.on_the_way) < 6 << 20, "20 MB wait at the owner, not here"
            open_now.set()
        assert len(found[0]) == 100


@pytest.mark.anyio
async def test_a_round_goes_on_where_a_lost_stream_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ends(monkeypatch, Log(1, [300_000] * 40)) as both:
        got: list[Piece] = []

        def cut_in_the_middle(piece: Piece) -> None:
            got.append(piece)
            if len(got) == 7:
                both.cut()

        with pytest.raises(Unavailable, match="cut"):
            await both.copy(1, taken=cut_in_the_middle)
        rest = await both.copy(1, first=got[-1].end_offset)
        assert offsets([*got, *rest]) == list(range(40))
        assert len(both.streams) == 2


@pytest.mark.anyio
async def test_a_topic_that_may_not_be_copied_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ends(monkeypatch, Log(1, [1]), Log(2, [1])) as both:
        both.refuses[1] = Conflict("not here")
        with pytest.raises(Conflict, match="not here"):
            await both.copy(1)
        assert len(await both.copy(2)) == 1


@pytest.mark.anyio
async def test_a_target_without_room_refuses_a_round_before_anything_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ends(monkeypatch, Log(1, [200_000] * 10), Log(2, [1])) as both:

        def no_room(size: int) -> None:
            raise DiskFull(f"{size} bytes do not fit")

        taken: list[Piece] = []
        with pytest.raises(DiskFull, match="2000000 bytes"):
            await both.copy(1, taken=taken.append, begun=no_room)
        assert not taken
        assert len(await both.copy(2)) == 1


@pytest.mark.anyio
async def test_the_owner_slows_producers_down_that_outrun_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(1, [30_000] * 100)
    async with ends(monkeypatch, log) as both:
        for _ in range(ROUNDS):
            await both.copy(1)  # each from the beginning: what is missing does not get less
            assert not log.limits
        await both.copy(1)
        (limit,) = log.limits
        assert limit > 0


def test_a_copy_that_comes_closer_slows_nothing_down() -> None:
    pace = Pace(1)
    pace.rate_bytes_s = 50
    assert [pace.round_begins(missing << 20) for missing in (800, 700, 500, 400, 350, 240)] == [None] * 6
    assert pace.round_begins(230 << 20) == 25, (
        "less than half of what it was three rounds before is not there yet"
    )


def test_missing_bytes_that_double_in_one_round_slow_the_producers_down_at_once() -> None:
    pace = Pace(1)
    pace.rate_bytes_s = 50
    assert [pace.round_begins(missing << 20) for missing in (100, 200, 401)] == [None, None, 25]
    few = Pace(2)
    few.rate_bytes_s = 50
    assert [few.round_begins(missing) for missing in (10, 1000, 100_000)] == [None] * 3, (
        "it is copied in a moment"
    )


@pytest.mark.anyio
async def test_a_cancelled_round_leaves_its_credit_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ends(monkeypatch, Log(1, [200_000] * 100), Log(2, [200_000] * 200)) as both:
        for _ in range(20):  # were it lost, 20 times the credit of a topic would be more than the stream has
            with anyio.CancelScope() as scope:

                def cancel(piece: Piece, scope: anyio.CancelScope = scope) -> anyio.Event:
                    scope.cancel()
                    return anyio.Event()

                await both.copy(1, taken=cancel)
        assert len(await both.copy(2)) == 200


@pytest.mark.anyio
async def test_rounds_beyond_the_bound_are_refused_alone() -> None:
    answers: list[Answer] = []

    async def never(request: Round) -> Topic:
        await anyio.sleep_forever()
        raise AssertionError

    made = Source(never, WorkerThreads(), send=answers.append, writable=lambda: True)
    for n in range(MOST_ROUNDS + 1):
        made.handle(Round(topic_id=n + 1, number=1, revision=1, first=None, last=False, credit=1))
    (refused,) = answers
    assert isinstance(refused, Failure)
    assert refused.topic_id == MOST_ROUNDS + 1
    assert isinstance(refused.error, Overloaded)
    made.close()
    await asyncio.sleep(0)


@pytest.mark.anyio
async def test_answers_of_an_earlier_round_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ends(monkeypatch, Log(1, [10])) as both:
        await both.copy(1)
        _, answers = both.streams[0]
        for chunk in chunks_of(piece_of(1, 0, [10]), 1):
            answers.answered(chunk)
        answers.answered(End(1, 1, 99))
        assert offsets(await both.copy(1, first=1)) == [1]


@pytest.mark.anyio
async def test_marks_that_come_while_the_sink_is_slow_are_joined() -> None:
    """They take no credit: a source sent one a second for as long as a link's limit held its piece up."""
    answers: list[Answers] = []
    got: list[Marks] = []
    slow, taken = anyio.Event(), anyio.Event()

    class Wire:
        def send(self, request: Request) -> None:
            """Nobody answers."""

        def close(self) -> None:
            """Nothing to close."""

    def open_wire(owner: object, to: Answers) -> Wire:
        answers.append(to)
        return Wire()

    async def sink(piece: Piece) -> None:
        taken.set()
        await slow.wait()

    def mark(end: int) -> Marks:
        return Marks(
            topic_id=7,
            number=1,
            start=0,
            end=end,
            time_ms=end,
            cursors={"same": b"%d" % end, f"s{end}": b"x"},
            sessions=[SessionMark(end, 1, 77, "p")],
        )

    copies, most = Copies(open_wire), MOST_CURSORS + 5
    async with anyio.create_task_group() as group:

        async def follow() -> None:
            with pytest.raises(Unavailable):
                await copies.round(OWNER, 7, 0, 0, sink, marked=got.append)

        group.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        for chunk in chunks_of(piece_of(7, 0, [10]), 1):
            answers[0].answered(chunk)
        await taken.wait()
        for end in (1, 2, 3):
            answers[0].answered(mark(end))
        slow.set()
        await anyio.wait_all_tasks_blocked()
        (joined,) = got
        assert (joined.end, joined.time_ms) == (3, 3)
        assert joined.cursors == {"same": b"3", "s1": b"x", "s2": b"x", "s3": b"x"}
        assert [each.producer_id for each in joined.sessions] == [1, 2, 3]
        flood = mark(0)
        flood = replace(
            flood,
            cursors={f"f{n}": b"" for n in range(most)},
            sessions=[SessionMark(n, 1, 7, "") for n in range(2 * MAX_PRODUCERS)],
        )
        answers[0].answered(flood)
        answers[0].answered(mark(9))
        await anyio.wait_all_tasks_blocked()
        found = got[-1]
        assert len(found.cursors) == MOST_CURSORS
        assert len(found.sessions) == MAX_PRODUCERS
        assert found.sessions[-1].producer_id == 9
        assert "s9" in found.cursors
        answers[0].lost(Unavailable("over"))


Told = Marks | int  # what a round has given: marks, or the offset of a piece


class SlowRound:
    """A round that follows topic 7. Its sink takes a piece when it is let."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.error: ClusterError | None = None
        self._answers: list[Answers] = []
        self._let = asyncio.Semaphore(0)
        self._copies = Copies(self._open_wire)

    def send(self, request: Request) -> None:
        """Nobody answers."""

    def close(self) -> None:
        """Nothing to close."""

    def _open_wire(self, owner: object, to: Answers) -> SlowRound:
        self._answers.append(to)
        return self

    async def _sink(self, piece: Piece) -> None:
        await self._let.acquire()
        self.told.append(piece.first_offset)

    async def run(self) -> None:
        try:
            await self._copies.round(OWNER, 7, 0, 0, self._sink, marked=self.told.append)
        except ClusterError as error:
            self.error = error

    async def piece(self, offset: int) -> None:
        for chunk in chunks_of(piece_of(7, offset, [10]), 1):
            self._answers[0].answered(chunk)
        await turn()

    async def marks(self, end: int, cursors: dict[str, bytes], sessions: list[int]) -> None:
        self._answers[0].answered(
            Marks(
                topic_id=7, number=1, start=0, end=end, time_ms=end, cursors=cursors,
                sessions=[SessionMark(each, 1, 77, "p") for each in sessions],
            )
        )  # fmt: skip
        await turn()

    async def take(self) -> None:
        self._let.release()
        await turn()


async def turn() -> None:
    """Let the round do all that it can."""
    for _ in range(5):
        await asyncio.sleep(0)


steps_of_a_round = st.lists(
    st.one_of(
        st.just("piece"),
        st.just("take"),
        st.tuples(st.sets(st.sampled_from("abc")), st.booleans()),
    ),
    max_size=30,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(steps=steps_of_a_round)
def test_marks_never_come_late_whatever_waits(steps: list[str | tuple[set[str], bool]]) -> None:
    """A session comes before the pieces that were sent after it, and a cursor's last state comes in the end."""

    async def follow() -> None:
        slow, pieces, last = SlowRound(), 0, dict[str, bytes]()
        opened: list[tuple[int, int]] = []  # a session, and the pieces that were sent before it
        task = asyncio.create_task(slow.run())
        await turn()
        for sent, step in enumerate(steps, 1):
            match step:
                case "piece":
                    await slow.piece(pieces)
                    pieces += 1
                case "take":
                    await slow.take()
                case (names, opens):
                    assert not isinstance(names, str)
                    changed = {name: b"%s%d" % (name.encode(), sent) for name in names}
                    last |= changed
                    opened += [(sent, pieces)] * bool(opens)
                    await slow.marks(pieces, changed, [sent] * bool(opens))
        for _ in range(pieces):
            await slow.take()
        assert not slow.error
        told: dict[str, bytes] = {}
        done, known = [], dict[int, int]()
        for each in slow.told:
            if isinstance(each, int):
                done.append(each)
                continue
            known |= {session.producer_id: len(done) for session in each.sessions}
            for name, cursor in each.cursors.items():
                assert int(cursor[1:]) > int(told.get(name, b"x0")[1:]), "newer ones only"
                told[name] = cursor
        assert done == list(range(pieces))
        assert told == last
        assert known.keys() == {session for session, _ in opened}
        assert all(known[session] <= before for session, before in opened)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(follow())


@pytest.mark.anyio
async def test_hundreds_of_subscriptions_that_read_do_not_end_the_round_of_a_slow_mirror() -> None:
    """Each second's cursors waited, 120 MB in 40 s, and an honest source was said to have sent more than it was granted."""
    slow = SlowRound()
    async with anyio.create_task_group() as group:
        group.start_soon(slow.run)
        await turn()
        for second in range(40):
            await slow.piece(second)
            cursors = {f"s{n}": bytes([second]) * 10_000 for n in range(300)}
            await slow.marks(second + 1, cursors, [])
        for _ in range(40):
            await slow.take()
        assert slow.error is None
        (first, *others) = [each for each in slow.told if isinstance(each, Marks) and each.cursors]
        assert not others
        assert first.cursors == {f"s{n}": bytes([39]) * 10_000 for n in range(300)}
        group.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["chunks", "empty chunks", "cursors"])
async def test_a_source_that_sends_more_than_it_was_granted_fails_its_round(kind: str) -> None:
    """All of it waited in memory while the sink did."""
    answers: list[Answers] = []
    grants: list[int] = []
    slow, taken = anyio.Event(), anyio.Event()

    class Wire:
        def send(self, request: Request) -> None:
            if isinstance(request, Grant) and not request.topic_id:
                grants.append(request.count)

        def close(self) -> None:
            """Nothing to close."""

    def open_wire(owner: object, to: Answers) -> Wire:
        answers.append(to)
        return Wire()

    async def sink(piece: Piece) -> None:
        taken.set()
        await slow.wait()

    def flood() -> Iterator[Answer]:
        state = Marks(topic_id=7, number=1, start=0, end=0, time_ms=0, cursors={}, sessions=[])
        for n in range({"chunks": 100, "empty chunks": 70_000, "cursors": 70}[kind]):
            yield Chunk(7, 1, bytes(CHUNK_BYTES if kind == "chunks" else 0), ends_piece=False)
            cursors = {f"s{n}": bytes(1 << 20)}
            yield replace(state, cursors=cursors) if kind == "cursors" else Start(7, 1, 0)

    copies = Copies(open_wire)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:

            async def follow() -> None:
                refused: type[ClusterError] = CorruptObject
                if kind == "cursors":  # a source may have as many
                    refused = Overloaded
                with pytest.raises(refused, match="more than"):
                    await copies.round(OWNER, 7, 0, 0, sink, marked=lambda marks: None)

            group.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            for chunk in chunks_of(piece_of(7, 0, [10]), 1):
                answers[0].answered(chunk)
            await taken.wait()
            for answer in flood():
                answers[0].answered(answer)
            slow.set()
    if kind == "chunks":
        assert sum(grants) > 100 * CHUNK_BYTES - STREAM_BYTES // 2, "the other topics of the stream go on"
