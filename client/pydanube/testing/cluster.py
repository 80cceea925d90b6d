"""The in-memory cluster of a test."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import Literal, Self

from pydanube_core.errors import ClusterError, ProducerFenced, ProducerUnknown

from pydanube.client import Client
from pydanube.retry import Retry
from pydanube.sync import Client as SyncClient
from pydanube.sync import connect, connect_admin
from pydanube.testing.brokers import BROKERS
from pydanube.testing.faults import Faults, FaultyTransport
from pydanube.tracing import Tracing
from pydanube.wire.http2_transport import Http2Transport


class InMemoryCluster:
    """A broker that keeps everything in memory. `connect()` returns a client of it.

    It runs in a process beside this one, which all clusters of a test session share. The first takes a second or two to
    start, the others a tenth. A cluster ends with `close()`, with its `with` block, or when it is garbage collected.

    Args:
        auto_create: producers make topics that do not exist.
        max_message_bytes: larger payloads are refused.

    Attributes:
        url: the broker's address, for `pydanube.connect` and programs of the test.
        admin_url: the address of its operations, for `pydanube.admin.connect_admin` and `danube --admin`.

    Raises:
        MissingExtra: the extra `broker` is not installed.
        InvalidArgument: an argument is invalid.
    """

    def __init__(self, *, auto_create: bool = True, max_message_bytes: int = 4_000_000) -> None:
        broker = BROKERS.start(
            {"topics.auto_create": auto_create, "topics.max_message_bytes": max_message_bytes}
        )
        self.url = broker.url
        self.admin_url = broker.admin_url
        self._faults = Faults()
        self._ended = weakref.finalize(self, BROKERS.stop, broker)
        self._ended.atexit = False

    def close(self) -> None:
        """Stop the broker and drop its data. May be called again."""
        self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, *, retry: Retry | None = None, tracing: bool = False) -> Client:
        """Return a client of this cluster, to be used as `async with`. The faults below apply to it."""
        spans = Tracing() if tracing else None
        return Client(
            self.url, lambda url: FaultyTransport(Http2Transport(url), self._faults), retry or Retry(), spans
        )

    def connect_sync(self, *, retry: Retry | None = None) -> SyncClient:
        """Return a client of `pydanube.sync`, to be used as `with`, from any thread."""
        return SyncClient(lambda: self.connect(retry=retry))

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        dispatch_strategy: Literal["reliable", "non_reliable"] = "reliable",
    ) -> None:
        """Create a topic. With 0 partitions it has none."""
        with connect_admin(self.admin_url) as admin:
            admin.topics.create(topic, partitions=partitions, dispatch_strategy=dispatch_strategy)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its subscriptions. Its clients get `TopicNotFound`."""
        with connect_admin(self.admin_url) as admin:
            admin.topics.plan_delete(topic).apply()

    def payloads(self, topic: str) -> list[bytes]:
        """Return everything stored in a topic, partition after partition."""
        with connect(self.url) as client, client.reader(topic, stop="head") as reader:
            found = sorted((message.partition or 0, message.offset, message.payload) for message in reader)
        return [payload for _, _, payload in found]

    def unacknowledged(self, topic: str, subscription: str) -> int:
        """Return the distance of the subscription's floor from the head, over all partitions."""
        with connect_admin(self.admin_url) as admin:
            items = admin.subscriptions.lag(topic=topic, subscription=subscription, limit=1000).items
        return sum((item.next_offset or 0) - (item.next_unacked or 0) for item in items)

    def drop_connections(self) -> None:
        """Cut every stream, as a broken network would. Clients reconnect."""
        self._faults.drop_connections()

    def stop(self) -> None:
        """Be unreachable until `restart`. Data stays, as with a broker that was killed."""
        self._faults.down = True
        self._faults.drop_connections()

    def restart(self) -> None:
        """Be reachable again, with everything that was stored."""
        self._faults.down = False

    def forget_producers(self) -> None:
        """Forget every producer session, as a broker does that has too many."""
        self._faults.revoke_producers(
            ProducerUnknown("the broker has forgotten the producer", outcome="unknown")
        )

    def fence_producers(self) -> None:
        """Behave as if every producer had been opened elsewhere with exclusive access."""
        self._faults.revoke_producers(ProducerFenced("the producer was opened again", outcome="unknown"))

    def refuse_publishes(self, *errors: ClusterError) -> None:
        """Answer the next batches with these errors, one each. None of them is stored."""
        self._faults.refusals.extend(errors)

    def cut_before_answers(self, count: int = 1) -> None:
        """Store the next `count` batches and cut the connection instead of answering."""
        self._faults.cuts = count

    def answers_held(self) -> AbstractContextManager[None]:
        """Context in which publishes are stored and their receipts held back until it ends."""
        return self._faults.answers_held()
