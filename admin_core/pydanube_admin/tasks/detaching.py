"""A call that nobody waits for: what its context carries until there is a task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pydanube_admin.tasks.records import TaskRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Detachment:
    """`begun` gets the record once it is kept; `before` is the record of a task that is taken up again."""

    via: str
    begun: asyncio.Future[TaskRecord]
    before: TaskRecord | None = None
