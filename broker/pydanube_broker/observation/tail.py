"""The newest messages of a log, for diagnosis: sequences that repeat, and how far publish times are from append times.

The cost has a bound: `MOST_MESSAGES` and `MOST_BYTES` are decoded, about a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from pydanube_core.diagnosis.views import PublishClock, Repetition, Tail
from pydanube_core.errors import ClusterError

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import BatchColumns, DecodedBatch, view_of
from pydanube_broker.topics.topic import Topic

MOST_MESSAGES: Final = 500
MOST_BYTES: Final = 512 << 10
# Different payloads in a sequence: with fewer they may be heartbeats of many services, or states that seldom change
FEWEST_MESSAGES: Final = 20
FEWEST_BATCHES: Final = 3  # of a producer: one alone may have waited for the broker
MOST_PRODUCERS: Final = 16

_Message = tuple[bytes | None, int]  # key, hash of the payload


def tail_of(topic: Topic) -> Tail | None:
    """Look at the newest messages. None if they are not in memory, or producers do not write the log."""
    if not topic.stores or topic.is_system or topic.link is not None or not topic.producer_seen:
        return None
    mean = topic.bytes_in / topic.messages_in if topic.messages_in else 1024.0
    most = min(MOST_MESSAGES, int(MOST_BYTES / max(mean, 1.0)))
    begin = max(topic.start_offset, topic.commit - most)
    if topic.commit - begin < FEWEST_MESSAGES:
        return None
    try:
        batches = topic.read(begin, topic.commit, MOST_BYTES)
    except ClusterError:
        return None
    return None if not batches else _seen(batches)


def _seen(batches: Sequence[CachedBatch]) -> Tail:
    offsets: list[int] = []
    messages: list[_Message] = []
    names: list[str] = []
    behind_ms: dict[str, list[int]] = {}  # producer → append time less publish time, one of each batch
    left = MOST_BYTES
    for batch in reversed(batches):  # newest first, so that only the oldest are left out
        left -= view_of(batch).part.raw_bytes
        if left < 0:
            break
        decoded, append_ms = DecodedBatch(batch), BatchColumns(batch).head.append_time_ms
        keys = decoded.keys or [None] * batch.count
        senders = [decoded.producer(at)[1] for at in range(batch.count)]
        offsets[:0] = decoded.offsets
        messages[:0] = zip(keys, map(hash, decoded.payloads), strict=True)
        names[:0] = senders
        for name, publish_ms in dict(zip(senders, decoded.publish_times_ms, strict=True)).items():
            behind_ms.setdefault(name, []).append(append_ms - publish_ms)
    producers = sorted(set(names))[:MOST_PRODUCERS]
    whole = longest_repetition(messages)
    at = list(range(len(messages)))
    for name in producers if whole is None and len(producers) > 1 else ():
        own = [place for place in range(len(names)) if names[place] == name]
        whole = longest_repetition([messages[place] for place in own])
        at = own
        if whole is not None:
            break
    return Tail(
        messages=len(messages),
        repetition=None
        if whole is None
        else Repetition(
            messages=whole[2],
            first_offset=offsets[at[whole[0]]],
            again_offset=offsets[at[whole[1]]],
            producers=tuple(
                sorted({names[at[place + i]] for place in whole[:2] for i in range(whole[2])})[
                    :MOST_PRODUCERS
                ]
            ),
        ),
        clocks=tuple(
            PublishClock(
                producer=name,
                batches=len(found),
                behind_s=median(found) / 1000,
                spread_s=(max(found) - min(found)) / 1000,
            )
            for name in producers
            if len(found := behind_ms[name]) >= FEWEST_BATCHES
        ),
    )


def longest_repetition(messages: Sequence[_Message]) -> tuple[int, int, int] | None:
    """Return (first, again, length) of the longest run that came before in the same order. O(messages).

    A run holds `FEWEST_MESSAGES` different payloads at least.
    """
    last: dict[_Message, int] = {}
    best: tuple[int, int, int] | None = None
    begin, distance = 0, 0
    for at, message in enumerate([*messages, None]):
        before = None if message is None else last.get(message)
        if before is None or at - before != distance:
            length = at - begin
            if (
                distance
                and length >= FEWEST_MESSAGES
                and (best is None or length > best[2])
                and len({payload for _, payload in messages[begin:at]}) >= FEWEST_MESSAGES
            ):
                best = begin - distance, begin, length
            begin, distance = at, 0 if before is None else at - before
        if message is not None:
            last[message] = at
    return best
