"""Export a range of a topic as one file: `objects.export`.

What is not in the cold tier yet is tiered first, so that the file holds everything that was acknowledged when the call
came. The objects are read one after the other, each looked up in the catalog when its turn comes: a compaction in
between changes nothing.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import anyio
from pydanube_core.errors import ObjectMissing

from pydanube_broker.long_work import Work
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.topic import Topic

_ABORT_DEADLINE_S = 5.0


async def export_range(
    tier: Tier, topic: Topic, *, start: int, end: int, path: Path, file_format: str, work: Work
) -> dict[str, Any]:
    """Write `[start, end)` to `path`; returns {messages, bytes}. Cancelled or failed, there is no file."""
    child = tier.child
    token = secrets.token_hex(8)
    await child.call(
        "export_begin",
        {
            "token": token,
            "path": str(path),
            "format": file_format,
            "partition": topic.options.partition,
            "meta": {
                "cluster": tier.cluster,
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "start": start,
                "end": end,
            },
        },
    )
    try:
        await tier.tiered_up_to(topic, end)
        work.total = end - start
        at = start
        while at < end:
            entry = await tier.catalog.find(topic.topic_id, at)
            if entry is None:
                raise ObjectMissing(
                    f"the catalog has no object for offsets {at} to {end} of {topic.name}: see `danube objects verify`",
                    topic=topic.name,
                    offset=at,
                )
            if entry.start < end:
                tier.room.check(entry.bytes, f"the export of {topic.name}", local=path.parent)
                await child.call(
                    "export_add",
                    {
                        **tier.cold.where(topic.topic_id, entry),
                        "token": token,
                        "start": at,
                        "end": min(end, entry.end),
                    },
                )
            at = min(end, entry.end)
            work.done = at - start
        said, _ = await child.call("export_finish", {"token": token})
    except BaseException:
        with anyio.move_on_after(_ABORT_DEADLINE_S, shield=True):
            await child.call("export_abort", {"token": token})
        raise
    return said
