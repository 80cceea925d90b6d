"""Add payloads, keys and attributes to a lane in slices, each as large as the batch and the window permit."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add

from pydanube.routing import attributes_bytes
from pydanube.sending.ledger import Ledger
from pydanube.sending.outbound import MESSAGE_OVERHEAD_BYTES
from pydanube.sending.publish_lane import PublishLane
from pydanube.sending.window import Window


async def add_slices(
    lane: PublishLane,
    payloads: list[bytes],
    keys: list[bytes | None] | None,
    attributes: list[Mapping[str, str] | None] | None = None,
    *,
    window: Window,
    ledger: Ledger,
    bound: bool = True,
) -> None:
    """Add messages in order, waiting for room, and note them: ≈ 0.1 µs per message, 0.4 with keys, 1 with attributes.

    `bound`: they have to stay in this partition.

    Raises `MessageTooLarge`, or the error for which the window is shut. Earlier messages are handed over.
    """
    all_sizes = list(map(len, payloads))
    if keys is not None:
        try:
            all_sizes = list(map(add, all_sizes, map(len, keys)))  # type: ignore[arg-type]  # raises if a key is None
        except TypeError:
            all_sizes = [size + len(key or b"") for size, key in zip(all_sizes, keys, strict=True)]
    if attributes is not None:
        more = [attributes_bytes(each) if each else 0 for each in attributes]
        all_sizes = list(map(add, all_sizes, more))
    start = 0
    while start < len(payloads):
        rest, sizes = (payloads[start:], all_sizes[start:]) if start else (payloads, all_sizes)
        if max(sizes) > window.max_message_bytes:
            at = next((i for i, size in enumerate(sizes) if window.too_large(len(rest[i]), size)), None)
            if at == 0:
                window.refuse_size(sizes[0])
            rest, sizes = rest[:at], sizes[:at]
        total = sum(sizes) + MESSAGE_OVERHEAD_BYTES * len(rest)
        if lane.gathering.bytes + total > lane.limit_bytes:
            room = lane.limit_bytes - lane.gathering.bytes
            count = total = 0
            for size in sizes:
                if total + size + MESSAGE_OVERHEAD_BYTES > room:
                    break
                total += size + MESSAGE_OVERHEAD_BYTES
                count += 1
            if count == 0 and lane.gathering.bytes:
                lane.seal()
                continue
            if count == 0:  # larger than a batch: it travels alone
                count, total = 1, sizes[0] + MESSAGE_OVERHEAD_BYTES
            rest = rest[:count]
        if len(rest) > window.messages:
            rest = rest[: window.messages]
            total = sum(sizes[: len(rest)]) + MESSAGE_OVERHEAD_BYTES * len(rest)
        before = lane.gathering
        if window.waiting or window.free_messages < len(rest) or window.free_bytes < total:
            await window.room(len(rest), total)
            if lane.gathering is not before or lane.gathering.bytes + total > lane.limit_bytes:
                # other senders have used the batch while this waited: give back and measure again
                window.give_back(len(rest), total)
                continue
        else:
            window.reserve(len(rest), total)
        batch = lane.gathering
        first = not batch.payloads
        if keys is not None:
            batch.add_keys(keys[start : start + len(rest)])
        if attributes is not None:
            batch.add_attributes(attributes[start : start + len(rest)])
        batch.payloads += rest
        batch.bytes += total
        batch.bound = batch.bound or bound
        if first:
            lane.first_message()
        ledger.note(batch, len(rest))
        start += len(rest)
