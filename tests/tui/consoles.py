"""A console on a real broker in memory, with its keys pressed as a person would; and a screen's text.

async with opened(cluster, "topics") as (app, press):
    await press("/", *"orders", "enter")
    assert "orders" in screen(app)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydanube_admin.remote import OpsClient
from pydanube_tui.cluster import Cluster, Options
from pydanube_tui.console import Console
from pydanube_tui.files import picture
from pydanube_tui.source import Caller
from pydanube_tui.views import place
from textual import events

from tests.admin.real_broker import Administered

Press = Callable[..., Awaitable[None]]


def client_of(cluster: Administered, *, writes: bool = False) -> OpsClient:
    """A client of the admin core behind the broker's port, in this process."""
    return OpsClient(
        cluster.url, principal="tester@here", face="tui", entry=cluster.core.serve_call, read_only=not writes
    )


def console_of(
    cluster: Administered, words: str, *, caller: Caller | None = None, files: Path = Path(), **options: Any
) -> Console:
    """A console that begins at a view."""
    here = Cluster(name="test", admin_url=cluster.url, broker_url=cluster.broker.broker_url)
    return Console(
        [here],
        Options(files=files, refresh_s=60.0, **options),
        start=place(words.split()),
        caller=caller or client_of(cluster, writes=bool(options.get("allow_writes"))),
    )


@asynccontextmanager
async def opened(
    cluster: Administered, words: str = "overview", *, size: tuple[int, int] = (100, 30), **options: Any
) -> AsyncIterator[tuple[Console, Press]]:
    """The console with its first answer on the screen, and how its keys are pressed."""
    app = console_of(cluster, words, **options)
    async with app.run_test(size=size) as pilot:
        await app.settled.wait()

        async def press(*keys: str) -> None:
            await pilot.press(*keys)
            await app.settled.wait()
            await pilot.pause()

        await pilot.pause()
        yield app, press


def screen(app: Console) -> str:
    """Return the screen as text."""
    return picture(app, "text")


def said(app: Console) -> list[str]:
    """Return the notices that are on the screen, oldest first."""
    return [each.message for each in app._notifications]


def send_key(app: Console, key: str) -> None:
    """Press a key without waiting for what it does, as one of a terminal's chunk."""
    app._driver.send_message(events.Key(key, key if len(key) == 1 else None))  # type: ignore[union-attr]


def keys_shown(app: Console) -> list[str]:
    """The rows that are shown, by their keys."""
    return [row.key for row in app.grid.rows if not row.heading]
