"""Find delayed and expired messages among those that were read for a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydanube_core.batch.timing import has_attributes, timings

from pydanube_broker.journal.tail_cache import CachedBatch
from pydanube_broker.subscription.batch_columns import producer_bytes, view_of
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.planning import Plan
from pydanube_broker.subscription.ranges import Range, total
from pydanube_broker.subscription.routes.routed_part import KeptColumns, gather
from pydanube_broker.subscription.subscription import Subscription


@dataclass(frozen=True, slots=True)
class TimedPart:
    """The messages of a batch, within the ranges of a plan, that must not be sent now.

    Attributes:
        expired: ranges whose time to live is over.
        waits: ranges that are due later, their due time by the clock that gives append times, and the delay
            of each message.
    """

    batch: CachedBatch
    expired: list[Range]
    waits: list[tuple[Range, int, int]]


def timed_parts(
    batches: Sequence[CachedBatch], ranges: Sequence[Range], now_ms: int, *, delays: bool, ahead_ms: int = 0
) -> Iterator[TimedPart]:
    """Return the parts of batches that must not be sent now, in their order.

    Args:
        ahead_ms: by how much a witness is behind this clock. A message expires only when it has by both
            clocks.
        delays: False for messages that were sent or held before. Then only expiry counts.
    """
    for batch in batches:
        if not has_attributes(producer_bytes(batch)):
            continue
        view = view_of(batch)
        found = timings(view)
        if found is None:
            continue
        appended_ms = batch.append_time_ms
        without_holes = batch.end - batch.base == batch.count
        offsets = range(batch.base, batch.end) if without_holes else view.offsets()
        part = TimedPart(batch, [], [])
        wanted = iter(ranges)
        low, high = next(wanted, (0, 0))
        for offset, (delay_ms, ttl_ms) in zip(offsets, found, strict=True):
            while high <= offset and (following := next(wanted, None)) is not None:
                low, high = following
            if not low <= offset < high:
                continue
            if ttl_ms is not None and now_ms - ahead_ms >= appended_ms + ttl_ms:
                _append(part.expired, offset)
            elif delays and now_ms < (due_ms := appended_ms + delay_ms):
                if part.waits and part.waits[-1] == ((part.waits[-1][0][0], offset), due_ms, delay_ms):
                    part.waits[-1] = ((part.waits[-1][0][0], offset + 1), due_ms, delay_ms)
                else:
                    part.waits.append(((offset, offset + 1), due_ms, delay_ms))
        if part.expired or part.waits:
            yield part


def due_now(
    core: Subscription,
    plan: Plan,
    batches: Sequence[CachedBatch],
    columns: KeptColumns,
    now_ms: int,
    monotonic_ms: int,
    *,
    ahead_ms: int = 0,
) -> tuple[list[CachedBatch] | None, int]:
    """Return the messages that may be sent now.

    None if some of them may not: the core is updated, and the caller plans again.

    Args:
        now_ms: by the clock that gives append times. `monotonic_ms` is by the core's clock.
        ahead_ms: as for `timed_parts`.

    Returns:
        The batches, and how many messages have expired.
    """
    ranges = plan.ranges.ranges() if type(plan.ranges) is ChunkMasks else plan.ranges
    for part in timed_parts(batches, ranges, now_ms, delays=plan.fresh, ahead_ms=ahead_ms):
        if part.expired:
            core.outlived(part.expired)
            return None, total(part.expired)
        if part.batch is not batches[0]:
            return [batch for batch in batches if batch.base < part.batch.base], 0
        found = gather([part.batch], plan._replace(max_bytes=None), columns)
        core.sending.hold(
            plan,
            found.ranges,
            found.next_offset,
            # At most the message's delay, even if a clock has stepped since it was stored
            [(span, min(due_ms - now_ms, delay_ms) + monotonic_ms) for span, due_ms, delay_ms in part.waits],
            wall_ms=[due_ms for _, due_ms, _ in part.waits],
            slots=found.slots() if core.type is SubscriptionType.KEY_SHARED else None,
            keys=found.keys() if core.needs_keys else None,
        )
        return None, 0
    return list(batches), 0


def _append(ranges: list[Range], offset: int) -> None:
    if ranges and ranges[-1][1] == offset:
        ranges[-1] = (ranges[-1][0], offset + 1)
    else:
        ranges.append((offset, offset + 1))
