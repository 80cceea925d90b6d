"""Send a subscription's messages, one frame per turn: get a plan from the core, read the log, fill frames.

All decisions are in `Subscription`. A sender listens to its topic, and takes the turns of its pump (`Turns`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pydanube_core.batch.timing import has_attributes
from pydanube_core.errors import ClusterError, Internal

from pydanube_broker.delivery.ahead import FrameAhead, frame_ahead
from pydanube_broker.delivery.dispatch_rate import DispatchRate
from pydanube_broker.delivery.engine import DeliveryEngine, Ticked
from pydanube_broker.delivery.frame_builder import Frame, fill
from pydanube_broker.delivery.link import ConsumerLink
from pydanube_broker.delivery.reader_pump import FRAME_BYTES
from pydanube_broker.journal import CachedBatch
from pydanube_broker.subscription.batch_columns import producer_bytes
from pydanube_broker.subscription.chunk_masks import ChunkMasks
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.planning import Plan
from pydanube_broker.subscription.ranges import Range
from pydanube_broker.subscription.routes.routed_part import KeptColumns, gather, pick
from pydanube_broker.subscription.subscription import Subscription
from pydanube_broker.subscription.timed import due_now
from pydanube_broker.topics.topic import CLOCK, Topic, now_ms

log = logging.getLogger("pydanube.delivery")

# Bytes of a part that is spread over consumers, large enough to make each consumer's frame worth sending.
ROUTED_BYTES: Final = 4 * FRAME_BYTES
FEW_RANGES: Final = 4  # of a plan. Each is cut on its own. With more ranges, one selection costs less


class SendingPump(Ticked, Protocol):
    """The pump, as its sender uses it."""

    name: str
    type: SubscriptionType
    key: tuple[str, str]  # its key in lists
    delivered: int  # messages

    def changed(self) -> None:
        """Note that the cursor moved."""

    def schedule_tick(self) -> None:
        """Schedule the tick for the core's next deadline, which may have changed."""

    def wake(self) -> None: ...

    def give_up(self, error: ClusterError) -> None:
        """End the consumers: the log cannot be read."""


class Sender:
    """Sends the messages that one subscription's core plans."""

    def __init__(
        self, pump: SendingPump, topic: Topic, engine: DeliveryEngine, links: Mapping[int, ConsumerLink]
    ) -> None:
        self.core: Subscription | None = None  # set by the pump when the first consumer attaches
        self.queued = False
        self._pump = pump
        self._topic = topic
        self._engine = engine
        self._links = links
        self._rate = DispatchRate(topic, engine.deadlines)
        self._columns = KeptColumns()
        self._ahead: FrameAhead | None = None
        self._reading = False

    def close(self) -> None:
        """Stop sending, and release the pump: both refer to each other, and would stay until a full collection."""
        self.core = self._ahead = None
        del self._pump

    def forget_ahead(self) -> None:
        """Drop the frame that was built for an uncommitted message, because its plan may no longer hold."""
        self._ahead = None

    def grew(self) -> None:
        if self.core is not None and self._links:
            turns, commit = self._engine.turns, self._topic.commit
            # A lone message is sent immediately.
            wake = turns.at_once if commit == self.core.sending.end + 1 else turns.wake
            self.core.grew(commit)
            wake(self)

    def step(self) -> bool:
        core = self.core
        if core is None or self._reading or not self._links:
            return False
        allowed = self._rate.allowed(self._pump)
        if allowed == 0:
            return False
        plan = core.sending.next_plan(max_messages=allowed)
        if plan is None:
            if self._columns and core.all_sent:
                self._columns.clear()  # an idle subscription keeps no batch in memory
            self._recall(core)
            if self._ahead is None:
                self._ahead = frame_ahead(core, self._topic, self._links, allowed)
            return False
        start = self._topic.start_offset
        if plan.start < start:
            # Retention or a truncation deleted messages that a consumer had given back. They must not be delivered
            # from a cache.
            core.skipped(core.floor, start)
            self._pump.changed()
            return True
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.plan == plan and now_ms() < ahead.until_ms:
            return self._sent(core, plan, ahead.frame, ahead.ranges, ahead.next_offset)
        try:
            batches = self._read(plan)
            if batches is None:
                self._read_cold(plan)
                return False
            if any(has_attributes(producer_bytes(batch)) for batch in batches):
                found, outlived = due_now(
                    core,
                    plan,
                    batches,
                    self._columns,
                    now_ms(),
                    self._engine.deadlines.now_ms(),
                    ahead_ms=CLOCK.apart_ms(at_start=False)[0],
                )
                if found is None:
                    self._engine.dropped[self._topic.name, "ttl"] += outlived
                    self._pump.changed()
                    return True
                batches = found
            if plan.consumer_id is None:
                return self._route(core, plan, batches)
            if type(plan.ranges) is ChunkMasks or len(plan.ranges) > FEW_RANGES:
                return self._pick(core, plan, batches)
            return self._dispatch(core, plan, batches)
        except ClusterError as error:
            self._pump.give_up(error)
            return False
        except Exception:
            log.exception("delivery_failed", extra={"subscription": self._pump.name})
            self._pump.give_up(
                Internal(f"delivery of {self._topic.name} to {self._pump.name} failed. See the broker's log")
            )
            return False

    def _recall(self, core: Subscription) -> None:
        """Recall messages from one consumer for another that is idle. Called when nothing is left to send."""
        recall = core.next_recall(self._engine.deadlines.now_ms())
        if core.recall_deferred:
            self._pump.schedule_tick()
        if recall is not None:
            self._links[recall.consumer_id].recall(recall.session, recall.ranges)

    def _send(self, core: Subscription, link: ConsumerLink, frame: Frame) -> None:
        self._pump.delivered += frame.messages
        self._topic.changes.note(self._pump.key)
        self._topic.sent(frame.messages, frame.stored_bytes)
        self._rate.sent(frame.messages)
        link.deliver(frame)
        if not link.writable:
            # Until `flowing`. The others of a shared subscription go on.
            core.members.pause(link.consumer_id)

    def _read(self, plan: Plan) -> list[CachedBatch] | None:
        """Return the batches of a plan, see `Topic.read`. Without holes they end where its messages do."""
        size, near = self._read_bytes(plan), plan.start + plan.max_messages
        # A backlog is larger than the plan: read only as many offsets as it may send
        if plan.fresh and near < plan.end_limit:
            batches = self._topic.read(plan.start, near, size)
            if batches is None or batches:
                return batches
        return self._topic.read(plan.start, plan.end_limit, size)

    @staticmethod
    def _read_bytes(plan: Plan) -> int:
        # selected messages are only a part of each batch, so a full frame needs more batches
        spread = plan.consumer_id is None or type(plan.ranges) is ChunkMasks
        most = ROUTED_BYTES if spread else FRAME_BYTES
        return most if plan.max_bytes is None else max(1, min(plan.max_bytes, most))

    def _read_cold(self, plan: Plan) -> None:
        """Read pages into memory in a thread, then run the same step again."""
        self._reading = True

        def done(result: object) -> None:
            self._reading = False
            if self.core is None:
                return  # closed since
            if isinstance(result, ClusterError):
                self._pump.give_up(result)
            elif isinstance(result, BaseException):
                self._pump.give_up(Internal(f"the log of {self._topic.name} could not be read: {result}"))
            else:
                self._pump.wake()

        self._topic.fill(
            plan.start, plan.end_limit, self._read_bytes(plan), self._engine.worker_threads, done
        )

    def _dispatch(self, core: Subscription, plan: Plan, batches: Sequence[CachedBatch]) -> bool:
        assert plan.consumer_id is not None
        assert plan.session is not None
        frame: Frame = self._links[plan.consumer_id].frame(plan.session)
        return self._sent(core, plan, frame, *fill(frame, plan, batches))

    def _sent(
        self, core: Subscription, plan: Plan, frame: Frame, ranges: Sequence[Range], next_offset: int
    ) -> bool:
        """Send a frame for a plan with a consumer. Return whether there is more to do."""
        assert plan.consumer_id is not None
        if not core.sending.sent(
            plan, ranges, frame.stored_bytes, next_offset, self._engine.deadlines.now_ms()
        ):
            return True
        if frame.messages:
            self._send(core, self._links[plan.consumer_id], frame)
        else:
            self._pump.changed()  # holes were passed over: the cursor moved
        self._pump.schedule_tick()
        # A step that would find nothing must not delay the sending of this frame.
        return not core.all_sent or len(self._links) > 1 or bool(self._columns)

    def _pick(self, core: Subscription, plan: Plan, batches: Sequence[CachedBatch]) -> bool:
        """Answer a plan of many small ranges, for which a key-shared consumer had to wait."""
        assert plan.consumer_id is not None
        assert plan.session is not None
        if type(plan.ranges) is ChunkMasks:
            part = pick(batches, plan, self._columns, frame_bytes=FRAME_BYTES)
        else:
            part = gather(batches, plan, self._columns)
        frame: Frame = self._links[plan.consumer_id].frame(plan.session)
        for columns, indices in part.pieces:
            frame.add_selected(columns, indices, plan.delivery_count)
        self._sent(core, plan, frame, part.ranges, part.next_offset)
        return True

    def _route(self, core: Subscription, plan: Plan, batches: Sequence[CachedBatch]) -> bool:
        """Answer a plan without a consumer: the core assigns the messages."""
        by_key = self._pump.type is SubscriptionType.KEY_SHARED
        part = gather(batches, plan, self._columns, whole=by_key)
        slots = part.slots() if by_key else None
        selections = core.sending.routed(
            plan,
            part.ranges,
            part.next_offset,
            self._engine.deadlines.now_ms(),
            slots=slots,
            keys=part.keys() if core.needs_keys else None,
            sizes=part.sizes(),
        )
        if selections is None:
            return True  # state changed since the plan: plan again
        if slots is not None and (members := core.members_of(slots)) is not None:
            part.arrange(members)
        for selection in selections:
            link = self._links.get(selection.consumer_id)
            if link is None:
                continue  # it left in this very turn, and the core takes its messages back
            frame: Frame = link.frame(selection.session)
            for columns, indices in part.split(selection.indices):
                frame.add_selected(columns, indices, selection.delivery_count)
            self._send(core, link, frame)
        self._pump.changed()  # messages without an accepting consumer, and holes, were passed over
        return True
