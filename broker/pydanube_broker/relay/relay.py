"""The relay: takes over calls that would end with `NOT_OWNER` or `NO_OWNER`, and holds or carries them (`decision`).

Handlers do not depend on it. A call that fails because its topic is not here reaches the relay before an error is sent
(`takes`): the call is held while the topic moves, then carried to the owner, or handed back to this broker's handler
if the topic came back. So a move refuses no call of the official clients, and a client that reaches one broker reaches
all topics.

One hop: a call that another broker relayed is held or served here, or else answered with `NOT_OWNER`, upon which the
sender looks for the owner again. Our SDK follows topics without the relay. Its streams are carried only where it
cannot, that is where `server.connect_url` stands for all brokers. A held call counts against the maximum that its
connection may hold.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakSet

from pydanube_core.errors import ClusterError, InvalidName, NoOwner, NotOwner, PermissionDenied, Unavailable
from pydanube_core.facts import BrokerAddress
from pydanube_core.grpc_wire import Headers, WireError
from pydanube_core.names import TopicName
from pydanube_core.services import CONSUMER_SERVICE, HEALTH_CHECK
from pydanube_storage.metadata import MetadataStore

from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.keys import number_in_key
from pydanube_broker.relay.decision import Handling, TopicPlace, decide
from pydanube_broker.relay.gone_dials import GoneDials
from pydanube_broker.relay.link import Link, Links, request_head
from pydanube_broker.relay.membership import TOPIC, Membership, cluster_secret
from pydanube_broker.relay.relayed_call import BothWays, ManyAnswers, OneAnswer, RelayedCall
from pydanube_broker.rpc.calls import OneRequest
from pydanube_broker.rpc.routing import RELAYED
from pydanube_broker.rpc.stream_calls import GOES_ON, ServerStreamCall, StreamCall
from pydanube_broker.serving.registry import Registry
from pydanube_broker.settings.sections import Settings
from pydanube_broker.settings.security import Tls

LOOK_S: Final = 0.1  # between two checks of the held calls, beside those that a change triggers
_HEADS: Final = 4096
#: methods whose requests name an id, and no topic
BY_ID: Final = frozenset({CONSUMER_SERVICE["ReceiveMessages"].path, HEALTH_CHECK["HealthCheck"].path})
#: answers to messages: most clients pass an error of these to their application
ANSWERS: Final = frozenset({CONSUMER_SERVICE["Ack"].path, CONSUMER_SERVICE["Nack"].path})

#: authentication methods whose credential the other broker can check from the relayed call
_SHOWN: Final = frozenset({"token", "jwt", "none"})


class Relay:
    """See the module and `rpc.hot.CallRelay`. Single user: the loop."""

    def __init__(self, registry: Registry, links: Links, dials: GoneDials, *, streams: bool) -> None:
        self.membership: Membership | None = None  # None until the metadata was read: nothing is carried
        self._registry = registry
        self.links = links
        self.dials = dials
        self._streams = streams  # whether streams of the SDK are carried
        self._open: WeakSet[ManyAnswers] = WeakSet()  # streams of answers that were taken over
        self._away = False  # set when this broker leaves: clients must look for the owners
        self._held: dict[TopicName | str, list[RelayedCall]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._heads: dict[tuple[str, str, bytes, bytes, bool], Headers] = {}
        self._loop = asyncio.get_running_loop()

    # -- CallRelay -------------------------------------------------------------------------------------------

    def takes(self, call: Any, error: ClusterError) -> bool:
        if (
            self.membership is None
            or not isinstance(error, (NotOwner, NoOwner))
            or not self._may_travel(call)
        ):
            return False
        topic, url = _whose(error)
        if topic is None and not url:
            return False
        now = self._loop.time()
        relayed: RelayedCall | None = call.carried
        if relayed is None:
            kind = _kind(call)
            relayed = call.carried = kind(call, topic, url, now, self._missed)
        else:
            relayed.topic, relayed.broker_url = topic, url
        relayed.moved_on(now)
        try:
            way = self._way(relayed)
        except PermissionDenied as refused:
            call.fail(refused)
            return True
        if way is Handling.HERE:
            way = Handling.HOLD  # this broker is closing or opening the topic
        if way is Handling.REFUSE or (way is Handling.HOLD and isinstance(call, StreamCall)):
            return False
        if isinstance(relayed, ManyAnswers):
            call.hand_over(relayed)
            self._open.add(relayed)
        self._go(relayed, way)
        return True

    def _may_travel(self, call: Any) -> bool:
        if self._away and call.method.path not in ANSWERS:
            return False
        if isinstance(call, StreamCall):
            if not self._streams or not call.early or call.stream.head_sent:
                return False
        elif call.first is None:
            return False
        # The owner cannot authenticate a caller that is identified only by its connection here.
        return call.identity is None or call.identity.method in _SHOWN

    def _way(self, relayed: RelayedCall) -> Handling:
        ownership, topic = self._registry.ownership, relayed.topic
        record = None if topic is None else self._registry.catalog.index.find_topic(topic)
        here = None if topic is None else self._registry.find(topic)
        owner: BrokerAddress | None
        if topic is None:
            owner = next(
                (each for each in ownership.members() if each.broker_url == relayed.broker_url), None
            )
        else:
            owner = None if record is None else ownership.owner(record.topic_id)
        if owner is not None:
            relayed.broker_url = owner.broker_url
        return decide(
            TopicPlace(
                known=record is not None or (topic is None and owner is not None),
                served=here is not None and here.closed is None,
                owner=owner,
                me=ownership.me.broker_id,
                relayed=self.relayed(relayed.call),
                waited_s=self._loop.time() - relayed.since,
            )
        )

    def relayed(self, call: Any) -> bool:
        """Return whether another broker has relayed the call.

        Raises `PermissionDenied`: the call claims so, without proof that the broker is of this cluster.
        """
        for name, value in call.head.metadata:
            if name == RELAYED.decode():
                assert self.membership is not None
                self.membership.check(value if isinstance(value, bytes) else value.encode())
                return True
        return False

    # -- on the way ------------------------------------------------------------------------------------------

    def _go(self, relayed: RelayedCall, way: Handling) -> None:
        if relayed.given_up:
            return
        match way:
            case Handling.CARRY:
                relayed.stop_holding()
                self._carry(relayed)
            case Handling.HOLD:
                self._hold(relayed)
            case Handling.HERE:
                relayed.stop_holding()
                relayed.handle_here()
            case Handling.REFUSE:
                relayed.stop_holding()
                self._refuse(relayed)

    def _hold(self, relayed: RelayedCall) -> None:
        try:
            relayed.hold()
        except WireError as error:
            relayed.call.refuse(error)
            return
        self._held.setdefault(relayed.topic or relayed.broker_url, []).append(relayed)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look_at_all)

    def _carry(self, relayed: RelayedCall) -> None:
        url = relayed.broker_url

        def go(link: Link | str) -> None:
            if relayed.given_up:
                return
            if isinstance(link, str):
                relayed.not_reached(url, link)
            else:
                relayed.begin(link, self._head(relayed))

        self.links.reach(url, go)

    def _missed(self, relayed: RelayedCall, error: ClusterError | None) -> None:
        """Hold a call that the supposed owner refused, and check again soon: one of the brokers is not up to date."""
        relayed.moved_on(self._loop.time())
        topic = None if error is None else _whose(error)[0]
        relayed.topic = topic or relayed.topic
        self._hold(relayed)

    def _refuse(self, relayed: RelayedCall) -> None:
        what = relayed.topic or relayed.broker_url
        error = NoOwner(
            f"{what} is served by no broker that this one could reach in time", retry_after_ms=1000
        )
        relayed.call.carried = None
        relayed.call.fail(error)  # `takes` declines an error without a topic, so the call ends

    def _head(self, relayed: RelayedCall) -> Headers:
        """Return the head of a request to another broker. Equal heads share one object."""
        call = relayed.call
        authorization = next((value for name, value in call.head.metadata if name == "authorization"), "")
        shown = authorization if isinstance(authorization, bytes) else authorization.encode()
        by_id = relayed.topic is not None and call.method.path in BY_ID
        topic = quote(str(relayed.topic)).encode() if by_id else b""
        goes_on = isinstance(call, ServerStreamCall) and call.goes_on
        key = (relayed.broker_url, call.method.path, shown, topic, goes_on)
        found = self._heads.get(key)
        if found is None:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            found = self._heads[key] = self.make_head(*key)
        return found

    def make_head(
        self, url: str, path: str, authorization: bytes = b"", topic: bytes = b"", goes_on: bool = False
    ) -> Headers:
        """Return the head of a request from this broker to another. `goes_on`: see `ServerStreamReply`."""
        assert self.membership is not None
        ownership = self._registry.ownership
        receiver = next((each.broker_id for each in ownership.members() if each.broker_url == url), "")
        return (
            *request_head(url, path),
            (b"x-danube-internal-broker", f"broker/{ownership.me.broker_id}".encode()),
            (RELAYED, self.membership.proof(receiver)),
            *(((TOPIC.encode(), topic),) if topic else ()),
            *(((GOES_ON.encode(), b"1"),) if goes_on else ()),
            *(((b"authorization", authorization),) if authorization else ()),
        )

    # -- looks -----------------------------------------------------------------------------------------------

    def look(self, topic: TopicName) -> None:
        """Check the calls held for a topic at the end of this turn, because its state has changed."""
        if topic in self._held:
            self._loop.call_soon(self._look_at, topic)

    def _look_at(self, key: TopicName | str) -> None:
        for relayed in self._held.pop(key, ()):
            if not relayed.given_up:
                self._go(relayed, self._way(relayed))

    def _look_at_all(self) -> None:
        self._timer = None
        for key in list(self._held):
            self._look_at(key)

    def _assigned(self, key: str) -> None:
        if self._held:
            record = self._registry.catalog.index.topic_by_id(TopicId(number_in_key(key)))
            if record is not None:
                self.look(record.topic)

    async def join(self, store: MetadataStore) -> None:
        """Start relaying calls to and from other brokers. Raises `StoreUnavailable`."""
        self.membership = Membership(await cluster_secret(store), self._registry.ownership.me.broker_id)
        self._registry.ownership.on_served = self.look
        self._registry.ownership.on_assigned = self._assigned

    def send_away(self) -> None:
        """Relay only acknowledgements from now on, because this broker leaves and clients must look for the owners."""
        self._away = True

    def end_streams(self) -> None:
        """End the relayed streams as retryable."""
        error = Unavailable("this broker leaves. Look the topic up again", retry_after_ms=200)
        for relayed in list(self._open):
            relayed.call.fail(error)

    def close(self) -> None:
        """Close the connections. The server ends the held calls."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        self.links.close()


def _whose(error: ClusterError) -> tuple[TopicName | None, str]:
    """Return the topic of an error and its owner's address, if the error has them."""
    name, url = error.details.get("topic"), error.details.get("broker_url")
    topic = None
    if isinstance(name, str):
        try:
            topic = TopicName.parse(name)
        except InvalidName:
            topic = None
    return topic, url if isinstance(url, str) else ""


def _kind(call: OneRequest | StreamCall) -> type[RelayedCall]:
    if isinstance(call, StreamCall):
        return BothWays
    return ManyAnswers if isinstance(call, ServerStreamCall) else OneAnswer


def open_relay(
    registry: Registry, settings: Settings, spawn: Callable[[Coroutine[Any, Any, None]], None]
) -> Relay | None:
    """Make the relay of a broker among several from its settings. Returns None for a lone broker."""
    if not registry.ownership.several:
        return None
    links = Links(spawn, lambda: client_context(settings.tls))
    dials = GoneDials(lambda: registry.ownership.coordinator, links, spawn)
    return Relay(registry, links, dials, streams=settings.server.connect_url is not None)


async def join(relay: Relay | None, store: MetadataStore, stack: AsyncExitStack) -> None:
    """Relay calls until the stack is closed. Does nothing for a lone broker. Raises `StoreUnavailable`."""
    if relay is not None:
        stack.callback(relay.close)
        await relay.join(store)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context for calls to other brokers: it trusts `client_ca` and the system's authorities."""
    context = ssl.create_default_context(cafile=None if tls.client_ca is None else Path(tls.client_ca))
    context.set_alpn_protocols(["h2"])
    if tls.cert is not None and tls.key is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context
