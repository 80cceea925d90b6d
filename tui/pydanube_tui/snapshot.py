"""Draw one screen without a terminal."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from pydanube_core.errors import ClusterError, Unavailable

from pydanube_tui.console import Console
from pydanube_tui.files import Form, picture
from pydanube_tui.payloads import json_text

SETTLED_S: Final = 1.0  # between the two readings that rates need


async def draw(app: Console, form: Form | Literal["json"], size: tuple[int, int], *, timeout_s: float) -> str:
    """Start the application on a screen of that size, wait for its answers, and return the drawing.

    Raises:
        ClusterError: the error of one of the view's operations.
    """
    async with app.run_test(size=size) as pilot:
        await _answered(app, timeout_s)
        if app.view.live or app.view.measures(app.feed.answers if app.feed else {}):
            await pilot.pause(SETTLED_S)
            app.settled.clear()
            app.wake.set()
            await _answered(app, timeout_s)
        await pilot.pause()
        return json_text(page_json(app)) + "\n" if form == "json" else picture(app, form)


async def _answered(app: Console, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await app.settled.wait()
    except TimeoutError:
        raise Unavailable(f"{app.cluster.admin_url} has not answered in {timeout_s:g} s") from None
    error = app.standing.error
    if isinstance(error, ClusterError):
        raise error


def page_json(app: Console) -> dict[str, object]:
    """Return the screen as data: the head lines, and the rows that match the filter."""
    grid = app.grid
    return {
        "view": app.target.view,
        "arguments": dict(app.target.arguments),
        "as_of_ms": app.standing.as_of_ms,
        "head": ["".join(text for text, _ in spans).rstrip() for spans in app.page.head],
        "columns": [column.name for column in grid.page.columns],
        "rows": [
            {
                "key": row.key,
                "cells": [row.cell(at).text for at in range(len(grid.page.columns))],
                "item": dict(row.item),
            }
            for row in grid.rows
            if not row.heading
        ],
    }
