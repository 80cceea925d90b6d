"""The timer of all subscriptions: what has arrived goes before what is late."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import uvloop
from pydanube_broker.delivery.engine import Deadlines


class Noted:
    """Something with a deadline that notes when it was ticked."""

    def __init__(self, seen: list[str], ticked: asyncio.Event) -> None:
        self.due_at_ms: int | None = None
        self.seen, self.ticked = seen, ticked

    def tick(self) -> None:
        self.seen.append("expired")
        self.ticked.set()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_that_arrived_while_the_loop_was_held_up_is_read_before_its_deadline_passes(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """uvloop runs its timers behind the reads of a turn: an ack that came during a long one lost."""

    async def answer_during_a_long_read() -> list[str]:
        seen: list[str] = []
        ticked = asyncio.Event()
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        with ExitStack() as stack:
            ack, ackers_end, other, others_end = (
                stack.enter_context(end) for _ in range(2) for end in socket.socketpair()
            )

            def read_long() -> None:
                other.recv(1)
                ackers_end.send(b"a")
                end = time.monotonic() + 0.02
                while time.monotonic() < end:
                    pass

            loop.add_reader(ack, lambda: (ack.recv(1), seen.append("answered")))
            loop.add_reader(other, read_long)
            late = Noted(seen, ticked)  # held here: the timer holds nothing
            deadlines.schedule(late, deadlines.now_ms() + 5)
            others_end.send(b"o")
            await ticked.wait()
            loop.remove_reader(ack)
            loop.remove_reader(other)
        deadlines.close()
        return seen

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(answer_during_a_long_read()) == ["answered", "expired"]
