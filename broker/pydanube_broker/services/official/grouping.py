"""Groups single messages of official clients into batches: one per topic and turn of the loop.

Grouping is per topic, because Rust and Go have only one send in flight per producer, so batches per producer would
always hold one message. Arrival order is kept. There is no await between reading a message and queuing it here, and a
lone message does not wait: its group is appended before the loop turns again. While a group of the topic waits for the
disk, the next one gathers. It could not be durable earlier, because the disk works on one group at a time, and batches
of one would each cost encoding, writing and committing.

When a small group is committed, the next one waits for the senders that have just been answered, at most half as long as
the commit took. Otherwise few producers with one send in flight each would split into two halves that take turns, and
each message would wait for two syncs. If the senders do not return in time, the next groups do not wait, twice as many
after each miss.

A message is checked completely before it is queued, so a group can only be refused for a reason that holds for all of
it (the disk, the journal). These batches carry producer id 0 in their producer part: sends of official clients are never
deduplicated, because their ids derive from names and their request ids restart with each process
(docs/design.md#6-delivery).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pydanube_core.batch import (
    BATCH_TARGET_BYTES,
    FRAME_LIMIT_BYTES,
    MAX_BATCH_BYTES,
    MAX_COPY_BYTES,
    encode_batch,
    read_producer_part,
)
from pydanube_core.batch.plain import MAX_PUBLISH_TIME_MS
from pydanube_core.errors import (
    ClusterError,
    Internal,
    InvalidArgument,
    MessageTooLarge,
    Overloaded,
    RateLimited,
)

from pydanube_broker.rpc.hot import UnaryReply
from pydanube_broker.services.official.hot_messages import SentMessage, request_id_only
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.official")

MAX_REQUEST_ID: Final = (1 << 63) - 1  # maximum of the sequence column
PUBLISH_TIME_SPAN_MS: Final = (1 << 31) - 1  # maximum span of the publish time column
GROUP_MESSAGES: Final = 4096
#: maximum bytes that a batch of one message adds to its request: fixed parts, offsets, padding, tables
BATCH_OVERHEAD_BYTES: Final = 4096
#: maximum bytes that a delivery adds to the published message: its offset, our address and longer lengths
DELIVERY_OVERHEAD_BYTES: Final = 1024
#: Least and greatest time of the wait for the senders that have just been answered. See the module.
COMPANY_S: Final = (0.001, 0.01)
MOST_EXPECTED: Final = 64  # messages. In larger groups, the costs of a group are small
MOST_MISSES: Final = 8  # counted in a row: at most 256 groups do not wait
WAITING_BYTES: Final = 256 << 20  # maximum uncommitted bytes of all official producers

assert MAX_COPY_BYTES + DELIVERY_OVERHEAD_BYTES < FRAME_LIMIT_BYTES


class Pending:
    """A message that waits for its commit."""

    __slots__ = ("message", "not_before", "reply", "size")

    def __init__(self, message: SentMessage, size: int, reply: UnaryReply, not_before: float = 0.0) -> None:
        self.message = message
        self.not_before = not_before  # the earliest loop time for its answer, because of a quota
        self.size = size  # bytes of the request
        self.reply = reply


def check_message(message: SentMessage, topic: Topic) -> None:
    """Refuse a message that cannot be stored, or whose payload is too large for the topic.

    Raises:
        MessageTooLarge: the payload exceeds the topic's limit.
        InvalidArgument: a number exceeds the maximum of its column.
    """
    if len(message.payload) > topic.max_message_bytes:
        raise MessageTooLarge(
            f"the message has {len(message.payload)} bytes, at most {topic.max_message_bytes} are taken",
            field="payload",
            value=len(message.payload),
            limit=topic.max_message_bytes,
        )
    if message.request_id > MAX_REQUEST_ID:
        raise _beyond("request_id", message.request_id, MAX_REQUEST_ID)
    if message.publish_time > MAX_PUBLISH_TIME_MS:
        raise _beyond("publish_time", message.publish_time, MAX_PUBLISH_TIME_MS)


def check_size(size: int) -> None:
    """Refuse a message that exceeds the total size for official clients (4 MiB).

    Raises `MessageTooLarge`, with the limit.
    """
    if size > MAX_BATCH_BYTES - BATCH_OVERHEAD_BYTES:
        raise MessageTooLarge(
            f"the message with its attributes and names has {size} bytes, at most "
            f"{MAX_BATCH_BYTES - BATCH_OVERHEAD_BYTES} are taken",
            field="message",
            value=size,
            limit=MAX_BATCH_BYTES - BATCH_OVERHEAD_BYTES,
        )


def _beyond(field: str, value: int, limit: int) -> InvalidArgument:
    return InvalidArgument(f"{field} {value} is beyond {limit}", field=field, value=value, limit=limit)


def encode_group(group: Sequence[Pending]) -> bytes:
    """Encode messages as one batch: at most `GROUP_MESSAGES`, publish times within `PUBLISH_TIME_SPAN_MS` of the first."""
    messages = [pending.message for pending in group]
    first = messages[0]
    if len(messages) == 1:
        return encode_batch(
            [first.payload],
            first_sequence=first.request_id,
            publish_time_ms=first.publish_time,
            keys=None if first.routing_key is None else [first.routing_key],
            attributes=[first.attributes] if first.attributes else None,
            producers=[(first.producer_id, first.producer_name)],
            schema=(first.schema_id, first.schema_version),
        )
    producers: dict[tuple[int, str], int] = {}
    index = [
        producers.setdefault((message.producer_id, message.producer_name), len(producers))
        for message in messages
    ]
    schemas: dict[tuple[int, int], int] = {}
    schema_index = [
        schemas.setdefault((message.schema_id, message.schema_version), len(schemas)) for message in messages
    ]
    keys = [message.routing_key for message in messages]
    attributes = [message.attributes for message in messages]
    times = [message.publish_time for message in messages]
    same_time = times.count(times[0]) == len(times)
    return encode_batch(
        [message.payload for message in messages],
        first_sequence=first.request_id,
        publish_time_ms=first.publish_time,
        publish_times_ms=None if same_time else times,
        keys=keys if any(key is not None for key in keys) else None,
        attributes=attributes if any(attributes) else None,
        producers=list(producers),
        producer_index=index if len(producers) > 1 else None,
        sequences=[message.request_id for message in messages],
        schema=next(iter(schemas)) if len(schemas) == 1 else (0, 0),
        schemas=list(schemas) if len(schemas) > 1 else None,
        schema_index=schema_index if len(schemas) > 1 else None,
    )


def _groups(pending: Sequence[Pending]) -> Iterator[Sequence[Pending]]:
    """Split messages into groups that fit into one batch each, in order."""
    start, size = 0, 0
    for at, one in enumerate(pending):
        span = abs(one.message.publish_time - pending[start].message.publish_time)
        if at > start and (
            size + one.size > BATCH_TARGET_BYTES
            or at - start >= GROUP_MESSAGES
            or span > PUBLISH_TIME_SPAN_MS
        ):
            yield pending[start:at]
            start, size = at, 0
        size += one.size
    yield pending[start:]


class _Gathering:
    """The messages of one topic that wait for the next batch."""

    __slots__ = (
        "answering", "appended_at", "due", "expected", "held", "impatient", "in_flight", "misses", "pending", "timer",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.waiting_bytes = 0  # bytes of `pending`
        self.in_flight = 0  # groups that are appended but not committed
        self.due = False  # will be appended when the loop turns
        self.held = False  # the topic is waiting for room, and then continues automatically
        self.answering = 0  # groups that are committed, and answered when the loop turns
        self.appended_at = 0.0  # loop time of the newest group
        self.expected = 0  # messages worth waiting for: the senders of the last group send again
        self.timer: asyncio.TimerHandle | None = None  # the end of that wait
        self.misses = 0  # waits in a row in which they did not come
        self.impatient = 0  # groups that will not wait, because of misses

    @property
    def full(self) -> bool:
        """Return whether the batch is so large that waiting for more gains nothing."""
        return self.waiting_bytes >= BATCH_TARGET_BYTES or len(self.pending) >= GROUP_MESSAGES


class Grouping:
    """Gathers the messages of each topic that arrive in one turn of the loop, or while the disk writes.

    Args:
        rejected: called with topic and error for every refused message.
    """

    def __init__(self, rejected: Callable[[str, ClusterError], None]) -> None:
        self._rejected = rejected
        self._loop = asyncio.get_running_loop()
        self._topics: dict[Topic, _Gathering] = {}
        self._due: list[tuple[Topic, _Gathering]] = []
        self._waiting_bytes = 0

    def add(self, topic: Topic, pending: Pending) -> None:
        """Queue a checked message. Its reply is sent once it is committed.

        Raises `Overloaded`: too many bytes wait for their commit.
        """
        if self._waiting_bytes + pending.size > WAITING_BYTES:
            raise Overloaded("too much waits for the disk. Try again in a moment", retry_after_ms=100)
        self._waiting_bytes += pending.size
        gathering = self._topics.get(topic)
        if gathering is None:
            gathering = self._topics[topic] = _Gathering()
        gathering.pending.append(pending)
        gathering.waiting_bytes += pending.size
        if (
            not (gathering.due or gathering.held)
            and (not gathering.in_flight or gathering.full)
            and (len(gathering.pending) >= gathering.expected or gathering.full)
        ):
            gathering.due = True
            if gathering.timer is not None:
                gathering.timer.cancel()
                gathering.timer = None
                gathering.misses = 0
            if not self._due:
                self._loop.call_soon(self._turned)
            self._due.append((topic, gathering))

    def _turned(self) -> None:
        due, self._due = self._due, []
        for topic, gathering in due:
            gathering.due = False
            self._flush(topic, gathering)
        due[-1][0].write_now()

    def _flush(self, topic: Topic, gathering: _Gathering) -> None:
        """Append the waiting messages of a topic. Remove the topic's entry when none are left."""
        gathering.expected = 0
        pending, gathering.pending, gathering.waiting_bytes = gathering.pending, [], 0
        if pending:
            for group in _groups(pending):
                self._append(topic, gathering, group)
        if not gathering.in_flight and not gathering.pending and self._topics.get(topic) is gathering:
            del self._topics[topic]

    def _append(self, topic: Topic, gathering: _Gathering, group: Sequence[Pending]) -> None:
        if gathering.held:  # earlier ones wait too
            self._put_back(gathering, group)
            return
        try:
            data = encode_group(group)
            appended, _ = topic.append(data, read_producer_part(data, verify=False))
            assert appended.base_offset is not None, "only retries of sessions have no offset"
            end = appended.base_offset + appended.count
        except RateLimited as error:
            if len(group) == 1:
                self._answer(topic, group, error)
            for one in group if len(group) > 1 else ():  # some may still be within the rate
                self._append(topic, gathering, [one])
        except Overloaded:  # nothing was stored, and the messages wait, as the SDK's do
            gathering.held = True
            self._put_back(gathering, group)
            topic.when_room(lambda: self._go_on(topic, gathering))
        except ClusterError as error:
            self._answer(topic, group, error)
        except Exception:
            log.exception("group_failed", extra={"topic": topic.name})
            self._answer(topic, group, Internal("the broker could not store the message. See its log"))
        else:
            gathering.in_flight += 1
            gathering.appended_at = self._loop.time()
            topic.when_committed(end, lambda error: self._committed(topic, gathering, group, error))

    @staticmethod
    def _put_back(gathering: _Gathering, group: Sequence[Pending]) -> None:
        gathering.pending += group
        gathering.waiting_bytes += sum(one.size for one in group)

    def _go_on(self, topic: Topic, gathering: _Gathering) -> None:
        gathering.held = False
        if not gathering.due:
            self._flush(topic, gathering)

    def _committed(
        self, topic: Topic, gathering: _Gathering, group: Sequence[Pending], error: ClusterError | None
    ) -> None:
        gathering.in_flight -= 1
        if not (gathering.in_flight or gathering.due or gathering.held):
            expected = len(group) + len(gathering.pending)
            if (
                error is None
                and 1 < expected <= MOST_EXPECTED
                and not gathering.full
                and not gathering.impatient
            ):
                gathering.expected = expected
                least, most = COMPANY_S
                wait_s = min(max(least, (self._loop.time() - gathering.appended_at) / 2), most)
                gathering.timer = self._loop.call_later(wait_s, self._waited, topic, gathering)
            else:
                gathering.impatient = max(0, gathering.impatient - 1)
                self._flush(topic, gathering)
        if gathering.in_flight or gathering.answering:
            # Appended groups are written first, so that the disk works while the loop answers. A group stays behind
            # an earlier one that the same sync committed.
            gathering.answering += 1
            self._loop.call_soon(self._turn_to_answer, topic, gathering, group, error)
        else:
            self._answer(topic, group, error)

    def _waited(self, topic: Topic, gathering: _Gathering) -> None:
        """Append the messages that have come, and do not wait before the next groups."""
        gathering.timer = None
        gathering.misses = min(gathering.misses + 1, MOST_MISSES)
        gathering.impatient = 1 << gathering.misses
        self._flush(topic, gathering)
        topic.write_now()

    def _turn_to_answer(
        self, topic: Topic, gathering: _Gathering, group: Sequence[Pending], error: ClusterError | None
    ) -> None:
        gathering.answering -= 1
        self._answer(topic, group, error)

    def _answer(self, topic: Topic, group: Sequence[Pending], error: ClusterError | None) -> None:
        for pending in group:
            self._waiting_bytes -= pending.size
            if error is None:
                # On stable storage by now: the message and everything before it in its topic (`Topic.committed`).
                answer = request_id_only(pending.message.request_id)
                if pending.not_before:
                    self._loop.call_at(pending.not_before, pending.reply.send, answer)
                else:
                    pending.reply.send(answer)
            else:
                self._rejected(topic.name, error)
                pending.reply.fail(error)
