"""The helper processes and their stand-ins within the loop, under one suite; and what a killed helper means."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.journal import Disk, HelperPreparer, helper, segments, sync_program
from pydanube_broker.journal.helper import HelperSyncer, InlineSyncer, Preparer, Syncer
from pydanube_broker.journal.records import FILE_HEADER_BYTES, read_file_header
from pydanube_broker.journal.sync_program import MESSAGE, prepare, rename_new
from pydanube_core.errors import JournalReadOnly, Overloaded

from tests.broker.journal.ledger import SEGMENT_BYTES, Desk, InlinePreparer, turns_until

pytestmark = pytest.mark.usefixtures("cold_helpers")

SYNCERS: dict[str, Callable[[], Syncer]] = {
    "inline": lambda: InlineSyncer(Disk()),
    "helper": HelperSyncer,
}
PREPARERS: dict[str, Callable[[], Preparer]] = {
    "inline": lambda: InlinePreparer(Disk()),
    "helper": HelperPreparer,
}


@pytest.fixture
def open_descriptors() -> Iterator[None]:
    """Nothing that a test opens may be left open."""
    if not Path("/proc/self/fd").exists():
        yield
        return
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.fixture(params=["inline", "helper"])
def syncer(request: pytest.FixtureRequest) -> Callable[[], Syncer]:
    return SYNCERS[request.param]


@pytest.fixture(params=["inline", "helper"])
def preparer(request: pytest.FixtureRequest) -> Callable[[], Preparer]:
    return PREPARERS[request.param]


async def append(desk: Desk, topic: int, size: int) -> None:
    while True:
        try:
            desk.append(topic, size=size)
            break
        except Overloaded:
            await asyncio.sleep(0.001)
    assert await desk.durable()


@pytest.mark.usefixtures("open_descriptors")
@pytest.mark.anyio
async def test_what_is_acknowledged_survives_rolls_and_restarts(
    tmp_path: Path, syncer: Callable[[], Syncer], preparer: Callable[[], Preparer]
) -> None:
    with anyio.fail_after(60):
        desk = Desk(tmp_path / "j", syncer=syncer(), preparer=preparer())
        await desk.start()
        for step in range(20):
            await append(desk, 1 + step % 2, 200 + step * 150)
        assert desk.journal.statistics().segments > 2
        desk.journal.abandon()
        again = Desk(tmp_path / "j", desk.truth, syncer=syncer(), preparer=preparer())
        await again.start()
        await append(again, 1, 100)
        await again.journal.close()


@pytest.mark.usefixtures("open_descriptors")
@pytest.mark.anyio
async def test_a_syncer_reports_what_was_asked_for_and_its_errors(
    tmp_path: Path, syncer: Callable[[], Syncer]
) -> None:
    with anyio.fail_after(30):
        said: list[tuple[int, OSError | None, float]] = []
        sync = syncer()
        sync.done = lambda lsn, error, seconds, waited_s: said.append((lsn, error, seconds))
        files = [os.open(tmp_path / str(i), os.O_RDWR | os.O_CREAT) for i in range(2)]
        reading, writing = os.pipe()
        try:
            for slot, fd in enumerate((*files, writing)):
                sync.open(slot, fd)
            sync.sync((0, 1), 77)
            await turns_until(lambda: len(said) == 1)
            assert said[0][:2] == (77, None)
            assert 0 <= said[0][2] < 30
            sync.forget(0)
            sync.sync((1, 2), 88)  # a pipe cannot be synced
            await turns_until(lambda: len(said) == 2)
            lsn, error, _ = said[1]
            assert lsn == 88
            assert isinstance(error, OSError)
            assert error.errno in (errno.EINVAL, errno.EROFS)
            await asyncio.sleep(0.02)
            assert len(said) == 2, "an answer comes once"
        finally:
            sync.close()
            for fd in (*files, reading, writing):
                os.close(fd)


@pytest.mark.usefixtures("open_descriptors")
@pytest.mark.anyio
async def test_a_preparer_makes_whole_files_and_reports_what_stands_in_the_way(
    tmp_path: Path, preparer: Callable[[], Preparer]
) -> None:
    with anyio.fail_after(30):
        said: list[tuple[int, OSError | None]] = []
        make = preparer()
        make.done = lambda base, error: said.append((base, error))
        try:
            path = tmp_path / f"{SEGMENT_BYTES:020d}.journal"
            make.prepare(path, SEGMENT_BYTES, SEGMENT_BYTES)
            await turns_until(lambda: len(said) == 1)
            assert said == [(SEGMENT_BYTES, None)]
            data = path.read_bytes()
            assert read_file_header(data) == (1, SEGMENT_BYTES, SEGMENT_BYTES)
            assert data[FILE_HEADER_BYTES:] == bytes(SEGMENT_BYTES - FILE_HEADER_BYTES)
            path.write_bytes(b"in use")
            make.prepare(path, SEGMENT_BYTES, SEGMENT_BYTES)
            await turns_until(lambda: len(said) == 2)
            assert isinstance(said[1][1], OSError)
            assert said[1][1].errno == errno.EEXIST
            assert path.read_bytes() == b"in use", "a live segment is never replaced"
            make.prepare(tmp_path / "nowhere" / "x.journal", 0, SEGMENT_BYTES)
            await turns_until(lambda: len(said) == 3)
            assert isinstance(said[2][1], OSError)
            assert said[2][1].errno == errno.ENOENT
            assert os.listdir(tmp_path) == [path.name], "nothing is left half-made"
        finally:
            make.close()


@pytest.mark.anyio
async def test_a_sync_helper_that_dies_in_a_sync_makes_the_journal_read_only(tmp_path: Path) -> None:
    """An error that it had seen would be lost with it."""
    with anyio.fail_after(30):
        syncer = HelperSyncer()
        desk = Desk(tmp_path / "j", syncer=syncer)
        await desk.start()
        os.kill(syncer.pid, signal.SIGSTOP)  # so that the sync is asked for and cannot be answered
        desk.append(1)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert desk.truth.promised == {}
        os.kill(syncer.pid, signal.SIGKILL)
        assert not await desk.durable()
        with pytest.raises(JournalReadOnly) as caught:
            desk.append(1)
        assert caught.value.details["outcome"] == "unknown"
        assert len(desk.ledger.failures) == 1
        await desk.journal.close()
        again = Desk(tmp_path / "j", desk.truth)
        await again.start()
        await again.journal.close()


class NotedSyncer(HelperSyncer):
    """Notes when the last request had been sent."""

    asked_s: float | None = None

    def sync(self, slots: tuple[int, ...], lsn: int) -> None:
        super().sync(slots, lsn)
        self.asked_s = time.monotonic()


@pytest.mark.anyio
async def test_the_wait_for_a_helper_that_does_not_run_is_told_apart_from_the_sync(tmp_path: Path) -> None:
    told: list[tuple[float, float]] = []
    with anyio.fail_after(30):
        syncer = NotedSyncer()
        desk = Desk(tmp_path / "j", syncer=syncer)
        await desk.start()
        desk.append(1)
        assert await desk.durable()
        syncer.asked_s = None
        desk.journal.when_synced(lambda seconds, waited_s: told.append((seconds, waited_s)))
        os.kill(syncer.pid, signal.SIGSTOP)  # it waits for a request, and has none
        desk.append(1)
        await turns_until(lambda: syncer.asked_s is not None)
        asked_s = syncer.asked_s
        await anyio.sleep(0.3)
        runs_s = time.monotonic()
        os.kill(syncer.pid, signal.SIGCONT)
        assert await desk.durable()
        done_s = time.monotonic()
        await desk.journal.close()
    assert asked_s is not None
    seconds, waited_s = told[0]
    assert waited_s >= runs_s - asked_s
    assert seconds <= done_s - runs_s, "the wait is no part of the sync"


@pytest.mark.anyio
async def test_a_sync_helper_that_dies_idle_makes_the_journal_read_only(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        syncer = HelperSyncer()
        desk = Desk(tmp_path / "j", syncer=syncer)
        await desk.start()
        os.kill(syncer.pid, signal.SIGKILL)
        await turns_until(lambda: desk.journal.read_only is not None)
        await desk.journal.close()


@pytest.mark.anyio
async def test_a_segment_helper_that_dies_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing durable depends on it."""
    monkeypatch.setattr(segments, "RETRY_S", 0.0)
    with anyio.fail_after(30):
        preparer = HelperPreparer()
        desk = Desk(tmp_path / "j", preparer=preparer)
        await desk.start()
        await desk.rested()
        first = preparer.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        for _ in range(3):  # roll once: a segment is asked for
            desk.append(1, size=4500)
        desk.append(1, size=4500)
        os.kill(first, signal.SIGKILL)
        await desk.rested()
        assert preparer.pid not in (None, first)
        assert await desk.durable()
        assert desk.journal.read_only is None
        await desk.journal.close()
        again = Desk(tmp_path / "j", desk.truth)
        await again.start()
        await again.journal.close()


@pytest.mark.anyio
async def test_a_helper_that_cannot_be_started_is_back_pressure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(30):
        said: list[OSError | None] = []
        make = HelperPreparer()
        make.done = lambda base, error: said.append(error)

        def refuse(*args: object, **kwargs: object) -> None:
            raise OSError(errno.EAGAIN, "no more processes")

        monkeypatch.setattr(subprocess, "Popen", refuse)
        make.prepare(tmp_path / "x.journal", 0, SEGMENT_BYTES)
        await turns_until(lambda: bool(said))
        assert said[0] is not None
        assert said[0].errno == errno.EAGAIN


class NoChild:
    """Takes the place of the program. The test reads what it would have read."""

    pid = 0

    def wait(self, timeout: float) -> int:
        return 0


@pytest.mark.anyio
async def test_a_sync_is_a_request_per_file_with_the_time_of_its_group_and_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `sync_program` lists them: fields that a request does not use are 0."""
    ends: list[socket.socket] = []

    def keep(theirs: socket.socket) -> NoChild:
        ends.append(theirs.dup())
        return NoChild()

    monkeypatch.setattr(helper, "spawn", keep)
    said: list[tuple[int, int | None, float, float]] = []
    syncer = HelperSyncer()
    syncer.done = lambda lsn, error, seconds, waited_s: said.append(
        (lsn, None if error is None else error.errno, seconds, waited_s)
    )
    with ends[0] as program, anyio.fail_after(30):
        before_ns = time.monotonic_ns()
        syncer.sync((3, 9, 4), 1 << 40)
        syncer.forget(9)
        requests = [MESSAGE.unpack(program.recv(MESSAGE.size)) for _ in range(4)]
        asked_ns = requests[0][-1]
        assert before_ns <= asked_ns <= time.monotonic_ns()
        assert requests == [*((b"S", slot, 1 << 40, 0, asked_ns) for slot in (3, 9, 4)), (b"C", 9, 0, 0, 0)]
        # In pieces, and each of its own time: the first one's wait counts, and the sum of the syncs.
        answers = b"".join(
            MESSAGE.pack(b"S", 0, 1 << 40, ns, wait) for ns, wait in ((1000, 70), (2000, 80), (4000, 90))
        )
        program.sendall(answers[:50])
        program.sendall(answers[50:])
        await turns_until(lambda: bool(said))
        assert said == [(1 << 40, None, 7000 / 1e9, 70 / 1e9)]
        syncer.sync((3, 4), 8)
        program.sendall(MESSAGE.pack(b"S", errno.ENOSPC, 8, 10, 20) + MESSAGE.pack(b"S", 0, 8, 10, 20))
        await turns_until(lambda: len(said) == 2)
        assert said[1][:2] == (8, errno.ENOSPC)
        syncer.sync((4,), 16)
        program.sendall(MESSAGE.pack(b"S", 0, 16, 30, 5))
        await turns_until(lambda: len(said) == 3)
        assert said[2] == (16, None, 30 / 1e9, 5 / 1e9), "nothing of the group before it counts"
    syncer.close()


def start_program(sock: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-E", str(sync_program.__file__), str(sock.fileno())],
        pass_fds=(sock.fileno(),),
    )


def test_the_program_ends_with_its_broker() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = start_program(theirs)
    ours.close()
    assert child.wait(timeout=30) == 0


def test_the_program_speaks_in_pieces_of_any_size(tmp_path: Path) -> None:
    """A request may arrive byte by byte, with its descriptor on the first byte."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = start_program(theirs)
        ours.settimeout(30)
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        message = MESSAGE.pack(b"O", 3, 0, 0, 0)
        socket.send_fds(ours, [message[:1]], [fd])
        os.close(fd)
        for byte in message[1:] + MESSAGE.pack(b"S", 3, 55, 0, 0) * 2:
            ours.send(bytes([byte]))
        answer = b""
        while len(answer) < 2 * MESSAGE.size:
            answer += ours.recv(7)
        for at in (0, MESSAGE.size):
            kind, error, lsn, *_ = MESSAGE.unpack_from(answer, at)
            assert (kind, error, lsn) == (b"S", 0, 55)
    assert child.wait(timeout=30) == 0


@pytest.mark.parametrize(("number", "answered"), [(0, 0), (errno.ENOSPC, errno.ENOSPC), (None, errno.EIO)])
def test_the_program_answers_0_the_number_of_an_error_or_an_io_error_without_one(
    monkeypatch: pytest.MonkeyPatch, number: int | None, answered: int
) -> None:
    def refuse(fd: int) -> None:
        if number == 0:
            return
        raise OSError("no number") if number is None else OSError(number, "the disk is full")

    monkeypatch.setattr(sync_program, "datasync", refuse)
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(30)
        socket.send_fds(ours, [MESSAGE.pack(b"O", 3, 0, 0, 0)], [ours.fileno()])
        ours.send(MESSAGE.pack(b"S", 3, 55, 0, 0) + MESSAGE.pack(b"C", 3, 0, 0, 0))
        ours.shutdown(socket.SHUT_WR)  # the program ends after its answer
        sync_program.main(theirs.detach())
        kind, error, lsn, *_ = MESSAGE.unpack(ours.recv(MESSAGE.size))
    assert (kind, error, lsn) == (b"S", answered, 55)


def test_two_helpers_of_two_brokers_do_not_touch_each_others_files(tmp_path: Path) -> None:
    """The second broker's segment is in use when the first broker's helper finishes its own."""
    path = tmp_path / "00000000000000000000.journal"
    prepare(str(path), SEGMENT_BYTES, b"second")
    with path.open("r+b") as file:
        file.write(b"acknowledged")
    with pytest.raises(FileExistsError):
        prepare(str(path), SEGMENT_BYTES, b"first")
    assert path.read_bytes().startswith(b"acknowledged")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_files_get_their_name_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "old").write_bytes(b"1")
    rename_new(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == b"1"
    (tmp_path / "old").write_bytes(b"2")
    with pytest.raises(OSError, match="no hard links"):
        rename_new(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == b"1"
