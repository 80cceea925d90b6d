"""Deletions of unused topics and subscriptions, decided where the topic appends.

`hold_topic` and `hold_subscription` check for use and close in the same turn of the loop, so that no message and no
consumer can come between the check and the deletion. A closed topic refuses its clients with a retryable error.

A deletion that several owners permitted is one transaction, which any broker may send (`TopicCatalog.delete_topic`). It
is guarded by the revision of the record that decides about the topic and by each owner's incarnation. An owner rewrites
that record before it opens the topic again, so a late deletion fails. A restarted owner has another incarnation.
`expire` opens topics that a dead coordinator left closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import ClusterError, Conflict, ConsumerBusy, TopicNotFound
from pydanube_core.facts import UnusedFacts
from pydanube_core.names import TopicName
from pydanube_core.refusals import in_use
from pydanube_core.units import counted

from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.to_the_end import to_the_end
from pydanube_broker.topics.topic import Topic

HOLD_S: Final = 10.0  # longer than a deletion takes

Key = tuple[TopicName, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hold:
    until_s: float  # monotonic
    closed: Sequence[Topic | AnyPump]
    error: Conflict

    def open(self) -> None:
        for each in self.closed:
            if each.closed is self.error:
                each.closed = None


class UnusedHolds:
    """Unused topics and subscriptions of this broker that are closed for a deletion. Single user: the loop."""

    def __init__(self, catalog: TopicCatalog, ownership: Ownership) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._held: dict[Key, _Hold] = {}

    def hold_topic(
        self, name: TopicName, parts: Sequence[Topic], *, check: Callable[[Topic], None] | None = None
    ) -> UnusedFacts:
        """Close parts of a topic that this broker owns, and return the facts that guard their deletion.

        Args:
            check: raises `Conflict` if a part is in use. By default `check_unused`.

        Raises:
            Conflict: one of them is in use, or is being deleted already. Nothing has changed.
        """
        for part in parts:
            if part.closed is not None:
                raise part.closed
            (check or check_unused)(part)
        self._close((name, None), parts, f"{name} is being deleted, since it was unused: nothing was stored")
        return UnusedFacts(
            broker_id=self._ownership.me.broker_id,
            incarnation=self._ownership.incarnation,
            revision=self._catalog.deciding_revision(name),
            logs=len(parts),
        )

    def hold_subscription(
        self, name: TopicName, found: Sequence[tuple[Topic, AnyPump]], starts: Mapping[str, int] | None
    ) -> None:
        """Close a subscription to consumers on the partitions that this broker owns.

        Args:
            starts: concrete topic → the cursor that counts as unused. None: any cursor does.

        Raises:
            ConsumerBusy: it has consumers.
            Conflict: it was used, or is being deleted. Nothing has changed.
        """
        for part, pump in found:
            if pump.closed is not None:
                raise pump.closed
            if pump.links:
                raise ConsumerBusy(
                    f"{pump.name!r} of {part.name} has {counted(len(pump.links), 'active consumer')}: stop them "
                    "first, or use `danube subscriptions delete`, which shows its plan",
                    field="subscription",
                    value=pump.name,
                )
            if starts is not None and (pump.floor, part.commit) != (starts.get(part.name), pump.floor):
                raise Conflict(
                    f"the subscription {pump.name!r} of {part.name} was used, or has unread messages, by now: undo "
                    "again, which shows the messages that it would delete",
                    field="call_id",
                    topic=part.name,
                    retryable=False,
                )
        for _, pump in found:
            pump.write_cursor()  # the last acknowledgements: a closed pump writes no more
        self._close(
            (name, found[0][1].name),
            [pump for _, pump in found],
            f"the subscription {found[0][1].name!r} of {name} is being deleted, since it was unused",
        )

    def _close(self, key: Key, closed: Sequence[Topic | AnyPump], why: str) -> None:
        error = Conflict(why, topic=str(key[0]), retry_after_ms=500)
        for each in closed:
            each.closed = error
        self._held[key] = _Hold(until_s=time.monotonic() + HOLD_S, closed=closed, error=error)

    @contextmanager
    def deleting_subscription(self, name: TopicName, subscription: str) -> Iterator[None]:
        """Context in which a held subscription is deleted. The hold does not expire in it. Raises `Conflict`: it has."""
        hold = self._held.pop((name, subscription), None)
        if hold is None:
            raise Conflict(f"the subscription {subscription!r} of {name} is open again", topic=str(name))
        try:
            yield
        finally:
            hold.open()  # where it was not deleted

    @to_the_end
    async def release(self, name: TopicName, subscription: str | None = None) -> None:
        """Open a topic or subscription, after making sure that its deletion can no longer succeed. Idempotent.

        Raises `StoreUnavailable`: it stays closed until `expire` succeeds.
        """
        if (hold := self._held.get((name, subscription))) is None:
            return
        if subscription is None:
            with suppress(TopicNotFound):  # deleted: its owners follow that
                await self._catalog.touch(name)
        if self._held.pop((name, subscription), None) is not None:
            hold.open()

    async def let_go(self, part: TopicName) -> None:
        """Release the hold on a topic that is about to leave this broker."""
        await self.release(part)
        await self.release(part.base)

    async def expire(self) -> None:
        """Release holds that have expired. Raises the first `ClusterError`, after an attempt for each."""
        failures: list[ClusterError] = []
        for (name, subscription), hold in list(self._held.items()):
            if time.monotonic() >= hold.until_s:
                try:
                    await self.release(name, subscription)
                except ClusterError as error:
                    failures.append(error)
        if failures:
            raise failures[0]


def check_unused(topic: Topic) -> None:
    """Raise `Conflict` if a topic has clients, messages (also uncommitted) or subscriptions."""
    messages = topic.state.next_offset - topic.state.start_offset
    _check(topic, messages=messages, subscriptions=len(topic.subscriptions))


def check_without_clients(topic: Topic) -> None:
    """Raise `Conflict` if a topic has clients."""
    _check(topic, messages=0, subscriptions=0)


def check_never_written(topic: Topic) -> None:
    """Raise `Conflict` if a topic ever had a message, or has producers."""
    messages, producers = topic.state.next_offset, topic.producers_connected
    if messages or producers:
        raise Conflict(
            f"{topic.name} is in use by now: {counted(messages, 'message was', 'messages were')} written to it, and "
            f"{counted(producers, 'producer is', 'producers are')} on it. All partitions stay",
            topic=topic.name,
            retryable=False,
        )


def _check(topic: Topic, *, messages: int, subscriptions: int) -> None:
    consumers = sum(len(pump.links) for pump in topic.subscriptions.values()) + topic.readers
    if messages or subscriptions or consumers or topic.producers_connected:
        raise in_use(
            topic.name,
            messages=messages,
            subscriptions=subscriptions,
            producers=topic.producers_connected,
            consumers=consumers,
        )
