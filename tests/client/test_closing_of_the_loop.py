"""Calls of a sync client in other threads end when it closes, whenever that is."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pydanube.blocking.loop import Loop
from pydanube.testing import InMemoryCluster
from pydanube_core.errors import ClosedResource


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


@contextmanager
def stopping(loop: Loop, close: Callable[[], None]) -> Iterator[None]:
    """Call `close` in a thread. The loop's own thread stands still in the body, after the stop."""
    stop, stopped, go_on = loop.loop.stop, threading.Event(), threading.Event()

    def stop_and_stand() -> None:
        stop()
        stopped.set()
        go_on.wait(60)

    loop.loop.stop = stop_and_stand  # type: ignore[method-assign]
    closed = in_thread(close)
    assert stopped.wait(60)
    try:
        yield
    finally:
        go_on.set()
        closed.result(60)


async def done() -> int:
    return 1


def test_a_call_that_runs_when_the_client_closes_ends() -> None:
    loop, running = Loop(), threading.Event()

    async def endless() -> None:
        running.set()
        await asyncio.Event().wait()

    call = in_thread(lambda: loop.call(endless()))
    assert running.wait(60)
    loop.close()
    with pytest.raises(ClosedResource, match="during the call"):
        call.result(60)


def test_a_call_after_the_stop_is_refused_although_the_thread_still_runs() -> None:
    loop = Loop()
    with stopping(loop, loop.close), pytest.raises(ClosedResource):
        in_thread(lambda: loop.call(done())).result(60)
    with pytest.raises(ClosedResource):
        loop.call(done())


def test_a_call_that_ends_by_itself_keeps_its_result_and_its_error() -> None:
    loop = Loop()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    assert loop.call(done()) == 1
    with pytest.raises(CancelledError):
        loop.call(cancelled())
    loop.close()


def test_a_call_that_cannot_be_cancelled_does_not_hold_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.blocking.loop.CANCEL_S", 0.1)
    loop, running = Loop(), threading.Event()

    async def deaf() -> None:
        running.set()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    call = in_thread(lambda: loop.call(deaf()))
    assert running.wait(60)
    loop.close()
    with pytest.raises(ClosedResource):
        call.result(60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_after_the_end_of_the_loops_thread_are_refused() -> None:
    loop = Loop()

    async def exits() -> None:
        raise SystemExit

    with pytest.raises(BaseException, match=r"^$|closed"):
        in_thread(lambda: loop.call(exits())).result(60)
    with pytest.raises(ClosedResource):
        in_thread(lambda: loop.call(done())).result(60)
    loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_may_leave_the_block_of_its_parents_client(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        child = os.fork()
        if not child:
            status = 1
            try:
                with pytest.raises(ClosedResource):
                    producer.send(b"x")
                with suppress(ClosedResource):
                    client.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send(b"x").offset == 0


def test_events_end_without_an_error_while_the_client_closes(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    monkeypatch.setattr("pydanube.sync.Loop", lambda: loop)
    with memory.connect_sync() as client:
        events = client.events()
        first = in_thread(lambda: next(events))
        while not first.done():
            with client.producer("t"):
                pass
        with stopping(loop, client.close):
            in_thread(lambda: list(events)).result(60)
