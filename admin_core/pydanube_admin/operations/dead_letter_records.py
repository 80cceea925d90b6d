"""Dead letters as their topic holds them, and the record of their replays."""

from __future__ import annotations

import asyncio
import hashlib
import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from pydanube_core.batch import timing
from pydanube_core.errors import Conflict
from pydanube_core.facts import MessageFacts, StateItem
from pydanube_core.units import format_time

from pydanube_admin.engine.context import Context

MAX_RECORD_BYTES: Final = 128 * 1024  # of the replays that are remembered of one subscription
MAX_TRIES: Final = 10  # of a change of that record, each after another replay changed it
MAX_REASON_CHARS: Final = 256  # any producer of the topic may have written it, and all are held at once
ADDED: Final = frozenset(
    {
        "x-original-topic", "x-original-subscription", "x-original-topic-offset", "x-original-producer-id",
        "x-original-broker-addr", "x-poison-policy", "x-delivery-attempt", "x-failure-reason",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter without its payload."""

    log: str  # of the dead-letter topic
    offset: int
    original_log: str
    original_offset: int | None
    deliveries: int
    reason: str
    digest: bytes  # of all that a copy keeps of its original
    timed: bool  # the broker made it, so the publish time is the original's

    @property
    def original(self) -> tuple[str, int | None]:
        return self.original_log, self.original_offset

    @property
    def contents(self) -> tuple[str, int | None, bytes]:
        """Return the original with the digest: a forged letter does not stand for one that the broker made."""
        return self.original_log, self.original_offset, self.digest


def own_attributes(message: MessageFacts) -> dict[str, str]:
    """Return a letter's attributes without those that the broker added.

    The item has most of their values. `messages.peek` of the dead-letter topic shows all.
    """
    is_long = len(message.attributes.get("x-failure-reason", "")) > MAX_REASON_CHARS
    return {
        name: value
        for name, value in message.attributes.items()
        if name not in ADDED or (name == "x-failure-reason" and is_long)
    }


def digest_of(message: MessageFacts, *, timed: bool) -> bytes:
    """Return a digest of a message without the attributes that the broker adds to a copy, or leaves out there."""
    changed = ADDED.union(timing.NAMES)
    attributes = sorted((name, value) for name, value in message.attributes.items() if name not in changed)
    head = json.dumps([message.key, attributes, message.publish_time_ms if timed else None])
    found = hashlib.blake2b(head.encode("utf-8", "surrogatepass"), digest_size=16)
    found.update(message.payload)
    return found.digest()


def letter_of(message: MessageFacts) -> Letter:
    attributes = message.attributes
    offset, tries = attributes.get("x-original-topic-offset", ""), attributes.get("x-delivery-attempt", "")
    timed = "x-original-producer-id" in attributes
    return Letter(
        log=message.topic,
        offset=message.offset,
        original_log=attributes["x-original-topic"],
        original_offset=int(offset) if offset.isdecimal() and len(offset) < 19 else None,
        deliveries=max(1, int(tries)) if tries.isdecimal() and len(tries) < 9 else 1,
        reason=attributes.get("x-failure-reason", "")[:MAX_REASON_CHARS],
        digest=digest_of(message, timed=timed),
        timed=timed,
    )


async def remembered_replays(context: Context, key: str) -> list[dict[str, Any]]:
    """Return the replays of a subscription, oldest first: {call_id, at_ms, principal, topic, topic_id, ranges}."""
    return _decoded(await context.port.read_state(key))


async def replays_of(
    remembered: Sequence[Mapping[str, Any]], ids: Mapping[str, int], found: Sequence[Letter]
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the replays of each letter that was replayed."""
    replays: dict[tuple[str, int], list[dict[str, Any]]] = {}
    by_log: dict[str, list[int]] = defaultdict(list)  # ascending, as they were read
    for letter in found:
        by_log[letter.log].append(letter.offset)
    for each in remembered:
        await asyncio.sleep(0)
        if ids.get(each["topic"]) != each["topic_id"]:
            continue  # of a topic of that name that is gone
        said = {
            "call_id": each["call_id"],
            "at": format_time(each["at_ms"]),
            "principal": each["principal"],
        }
        offsets = by_log[each["topic"]]
        for start, end in each["ranges"]:
            for offset in offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]:
                replays.setdefault((each["topic"], offset), []).append(said)
    return replays


async def change_replays(
    context: Context, key: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    """Change the record of replays, also if other replays of the subscription do so concurrently.

    Raises `Conflict`: others have changed it `MAX_TRIES` times meanwhile.
    """
    for left in reversed(range(MAX_TRIES)):
        item = await context.port.read_state(key)
        changed = encoded_replays(change(_decoded(item)))
        try:
            await context.port.write_state(
                {key: changed}, expected={key: None if item is None else item.revision}
            )
        except Conflict:
            if not left:
                raise
        else:
            return


def _decoded(item: StateItem | None) -> list[dict[str, Any]]:
    return [] if item is None else list(json.loads(item.value)["replays"])


def encoded_replays(replays: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode the notes of replays, oldest first. The oldest go when there are too many."""
    sizes = accumulate(len(json.dumps(each)) + 2 for each in reversed(replays))
    gone = sum(size > MAX_RECORD_BYTES for size in sizes)
    return json.dumps({"version": 1, "replays": replays[gone:]}).encode()
