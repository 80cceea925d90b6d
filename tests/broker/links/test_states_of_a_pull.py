"""The state of a mirror's log while this side's object store is away, and its lag while its last append time is unknown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.copying.messages import Marks
from pydanube_broker.links import pull as pull_module
from pydanube_broker.links.pull import DIVERGED, FAILED, Allowance, Pull
from pydanube_core.errors import Diverged, StoreUnavailable
from pydanube_core.links import MirrorFacts

pytestmark = pytest.mark.anyio

END = 20
MARKS = Marks(topic_id=5, number=1, start=0, end=END + 5, time_ms=1_767_225_600_000, cursors={}, sessions=[])


def _pull(copies: Any) -> Pull:
    topic = SimpleNamespace(
        name="/default/t",
        link="eu",
        closed=None,
        commit=END,
        start_offset=0,
        subscriptions={},
        state=SimpleNamespace(next_offset=END, append_time_ms=0),
    )
    link = SimpleNamespace(name="eu", paused=False, start="earliest")
    made: Any = Pull
    return cast(
        Pull,
        made(
            link, topic, "/default/t", "eu-1", copies, lambda: (5, "http://x"), Allowance(0), lambda: 7, None
        ),
    )


class Source:
    """Ends a round as a source that has another message there, or sends its marks."""

    def __init__(self, *, diverges: bool) -> None:
        self.pull: Pull
        self._diverges = diverges

    async def round(self, *given: Any, **named: Any) -> None:
        if self._diverges:
            raise Diverged("another message at offset 19")
        self.pull.marked(MARKS)
        await asyncio.Event().wait()


async def _states(
    monkeypatch: pytest.MonkeyPatch, reads: list[Exception | None], source: Source
) -> MirrorFacts:
    """Return the facts when all reads of the object store are done: each fails so, or finds no time."""
    monkeypatch.setattr(pull_module, "_AGAIN_S", 0.001)
    done = asyncio.Event()
    left = list(reads)

    async def read(*given: Any) -> int | None:
        if not left:
            done.set()
            await asyncio.Event().wait()
        error = left.pop(0)
        if error is not None:
            raise error
        return None

    monkeypatch.setattr(pull_module, "append_time_at", read)
    pull = source.pull = _pull(source)
    task = asyncio.create_task(pull.run())
    try:
        await asyncio.wait_for(done.wait(), 20)
        return pull.facts()
    finally:
        task.cancel()


AWAY = StoreUnavailable("the object store of this cluster is away", store="s3://here")


async def test_a_mirror_whose_own_object_store_is_away_does_not_blame_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await _states(monkeypatch, [AWAY], Source(diverges=False))
    assert (found.state, found.why) == (FAILED, AWAY.message)


async def test_a_mirror_that_diverged_stays_so_while_its_object_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await _states(monkeypatch, [None, AWAY], Source(diverges=True))
    assert found.state == DIVERGED


async def test_the_lag_in_time_is_unknown_if_the_last_message_was_trimmed() -> None:
    pull = _pull(Source(diverges=False))
    pull.marked(MARKS)
    found = pull.facts()
    assert (found.lag_messages, found.lag_ms, found.complete_until_ms) == (5, None, None)
