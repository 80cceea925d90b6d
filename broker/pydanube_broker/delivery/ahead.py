"""The frame of a lone message, built while the disk writes the message, so that it can leave on commit.

Nothing is decided here. The frame is for the plan that would be made if the message were committed now. It is
sent if exactly that plan is made on commit, and dropped otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydanube_core.batch.timing import has_attributes, timings

from pydanube_broker.delivery.frame_builder import Frame, fill
from pydanube_broker.delivery.link import ConsumerLink
from pydanube_broker.subscription.batch_columns import producer_bytes, view_of
from pydanube_broker.subscription.planning import Plan
from pydanube_broker.subscription.ranges import Range
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.topics.topic import Topic


class FrameAhead(NamedTuple):
    """A frame, its plan, the arguments of `Subscription.sent`, and the time until which it may be sent."""

    plan: Plan
    frame: Frame
    ranges: Sequence[Range]
    next_offset: int
    until_ms: float


def frame_ahead(
    core: Subscription, topic: Topic, links: Mapping[int, ConsumerLink], allowed: int | None
) -> FrameAhead | None:
    """Return the frame for the uncommitted messages. None unless that is one message to send on commit."""
    batch = topic.read_ahead()
    if batch is None:
        return None
    plan = core.sending.next_plan(max_messages=allowed, end=batch.end)
    if plan is None or plan.consumer_id is None or plan.session is None or plan.start != batch.base:
        return None
    until_ms = math.inf
    if has_attributes(producer_bytes(batch)) and (timing := timings(view_of(batch))):
        ((delay_ms, ttl_ms),) = timing
        if delay_ms:
            return None
        if ttl_ms is not None:
            until_ms = batch.append_time_ms + ttl_ms
    frame: Frame = links[plan.consumer_id].frame(plan.session)
    return FrameAhead(plan, frame, *fill(frame, plan, (batch,)), until_ms)
