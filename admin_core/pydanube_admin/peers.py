"""The other brokers, where there are some: a call about one topic goes to its owner, a list is asked of all who have part of it.

Every broker may be asked for everything. A call that names a topic of another broker is carried out there, as it came, and
recorded in that broker's audit. Lists are made here: what they need of each owner is asked side by side under one deadline
(`ASKED`, through `danube.ops/Call` like a call, with `forwarded` set, so that it goes no further), and who did not answer is
named under `not_seen`. Where the locks are on, brokers do not speak for callers yet: whoever asks for another's topic is
told whose it is.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from typing import Any, Final, get_type_hints

import anyio
from pydantic import TypeAdapter
from pydanube.wire.ops_channel import OpsChannel
from pydanube_core.cluster_port import ClusterPort, LagFacts, LagKey
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.errors import (
    ClusterError,
    InvalidArgument,
    InvalidName,
    NoOwner,
    NotOwner,
    PermissionDenied,
    Unavailable,
)
from pydanube_core.facts import BrokerAddress, BrokerFacts, TopicFacts
from pydanube_core.names import TopicName
from pydanube_core.ops_call import call_request

ASK: Final = "peers."  # before the name of a method that is asked of another broker
ASKED: Final = ("topic_facts", "lag_index", "lag_facts", "status")
DEADLINE_S: Final = 5.0
FORWARD_S: Final = 600.0
_AGAIN_S: Final = 0.05  # an owner that was just chosen opens the topic within moments
# Made from the metadata and what each owner says; else a call goes to where its topic is.
_ANYWHERE: Final = frozenset(
    {"topics.create", "topics.list", "topics.describe", "topics.move", "topics.unload", "subscriptions.lag"}
)

_not_seen: ContextVar[dict[str, str] | None] = ContextVar("not_seen", default=None)


class Peers:
    """Speaks to the others by the addresses that they registered. Single user: the loop."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self._channels: dict[str, OpsChannel] = {}

    async def aclose(self) -> None:
        """Close the connections."""
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.aclose()

    async def forwarded(self, call: Any) -> bytes | None:
        """The result of a call (a `CallRequest`) that another broker carries out; None where it is this one's.

        Raises:
            NotOwner: the topic's partitions are at several brokers, or the locks are on. What the owner answers.
        """
        if call.forwarded or call.operation in _ANYWHERE:
            return None
        own = self._port.life.partition("/")[0]
        if call.operation.startswith("brokers.") and (broker := await self._named(call.arguments)):
            return (
                None
                if broker.broker_id == own
                else await self._at(broker, call, f"broker {broker.broker_id}")
            )
        topic = _topic_in(call.arguments)
        owners = {} if topic is None else _by_id(await self._port.owners(topic))
        if not owners.keys() - {own}:
            return None
        if len(owners) > 1:
            raise NotOwner(
                f"the partitions of {topic} are at brokers {', '.join(sorted(owners))}: name one partition, as {topic}-part-0",
                topic=topic,
            )
        (owner,) = owners.values()
        return await self._at(owner, call, f"topic {topic}")

    async def _at(self, broker: BrokerAddress, call: Any, what: str) -> bytes:
        """Have a call carried out at another broker."""
        if self._port.locks is not None:
            raise NotOwner(
                f"{what} is at {broker.admin_url}, and with the locks on brokers do not speak for callers yet: ask it, "
                f"with --admin {broker.admin_url}",
                broker_id=broker.broker_id,
                admin_url=broker.admin_url,
            )
        call.forwarded = True
        try:
            return await self._channel(broker).call(call, timeout_s=FORWARD_S)
        except Unavailable as error:
            if error.details.get("url") != broker.admin_url:  # its own words
                raise
            raise Unavailable(
                f"{what} is at broker {broker.broker_id}, which does not answer at {broker.admin_url}",
                broker_id=broker.broker_id,
                retry_after_ms=1000,
            ) from error

    async def _named(self, arguments: bytes) -> BrokerAddress | None:
        """The broker that a call names, where it is registered."""
        broker_id = _given(arguments).get("broker_id")
        return next((each for each in await self._port.members() if each.broker_id == broker_id), None)

    async def ask(self, owner: BrokerAddress, method: str, arguments: Mapping[str, Any]) -> Any:
        """Return the answer of a method of another broker's port. Raises any `ClusterError`."""
        request = call_request(ASK + method, arguments, principal="", face="", forwarded=True)
        answer = await self._channel(owner).call(request, timeout_s=DEADLINE_S)
        return _answer_of(method).validate_json(answer)

    async def answer(self, method: str, arguments: bytes) -> bytes:
        """Another broker asks this one. Raises `PermissionDenied` with the locks on, `InvalidArgument`."""
        if self._port.locks is not None:
            raise PermissionDenied("with the locks on brokers do not ask each other yet")
        if method not in ASKED:
            raise InvalidArgument(f"{method[:100]!r} is not asked of other brokers", field="operation")
        given = json.loads(arguments or b"{}")
        if method == "lag_facts":
            given["keys"] = [LagKey(*key) for key in given["keys"]]
        if given.get("status") is not None:
            given["status"] = LagStatus(given["status"])
        return _answer_of(method).dump_json(await getattr(self._port, method)(**given))

    def _channel(self, broker: BrokerAddress) -> OpsChannel:
        if not broker.admin_url:
            raise Unavailable(
                f"broker {broker.broker_id} has not been seen since this one started",
                broker_id=broker.broker_id,
                retry_after_ms=1000,
            )
        channel = self._channels.get(broker.admin_url)
        if channel is None:
            channel = self._channels[broker.admin_url] = OpsChannel(broker.admin_url)
        return channel


class WidePort:
    """The port of a broker among several: what each broker knows of its own is put together from all of them.

    Everything else is the broker's own port.
    """

    def __init__(self, port: ClusterPort, peers: Peers) -> None:
        self._port = port
        self._peers = peers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def topic_facts(self, topics: Sequence[str]) -> Sequence[Sequence[TopicFacts]]:
        """Of each topic, in their order, what its owners say; of one whose owner does not answer there is nothing."""
        wanted: dict[str, list[str]] = {}
        addresses: dict[str, BrokerAddress] = {}
        for topic in topics:
            for broker_id, owner in _by_id(await self._port.owners(topic)).items():
                addresses[broker_id] = owner
                wanted.setdefault(broker_id, []).append(topic)
        answers = await self._all(
            list(addresses.values()), "topic_facts", lambda broker: {"topics": wanted[broker.broker_id]}
        )
        found: dict[str, list[Sequence[TopicFacts]]] = {}
        for some in answers.values():
            for facts in some:
                found.setdefault(facts[0].topic, []).append(facts)
        return [_joined(found[topic]) for topic in topics if topic in found]

    async def topic(self, topic: str) -> Sequence[TopicFacts]:
        """As of the owner, which may have been told of it a moment ago.

        Raises:
            NotOwner: it does not answer, or not of this topic.
        """
        try:
            return await self._port.topic(topic)
        except (NotOwner, NoOwner) as error:
            with anyio.move_on_after(DEADLINE_S):
                while not (_not_seen.get() or {}):
                    if found := await self.topic_facts([topic]):
                        return found[0]
                    await anyio.sleep(_AGAIN_S)
            unseen = _not_seen.get() or {}
            if not unseen:
                raise
            whys = "; ".join(f"{broker}: {why}" for broker, why in unseen.items())
            raise NotOwner(f"{topic} is at a broker that does not answer: {whys}", topic=topic) from error

    async def lag_index(
        self, topic: str | None, subscription: str | None, *, status: LagStatus | None = None
    ) -> Sequence[LagKey]:
        """As of one broker, of all."""
        brokers = (
            await self._port.members()
            if topic is None
            else list(_by_id(await self._port.owners(topic)).values())
        )
        if not brokers:
            return await self._port.lag_index(topic, subscription, status=status)
        answers = await self._all(
            brokers,
            "lag_index",
            lambda broker: {
                "topic": topic,
                "subscription": subscription,
                "status": None if status is None else status.value,
            },
        )
        return [LagKey(*key) for some in answers.values() for key in some]

    async def lag_facts(self, keys: Sequence[LagKey]) -> Sequence[LagFacts]:
        """Those of a page, in its order; what went meanwhile is left out."""
        wanted: dict[str, list[LagKey]] = {}
        addresses: dict[str, BrokerAddress] = {}
        for key in keys:
            for broker_id, owner in _by_id(await self._port.owners(key.log)).items():
                addresses[broker_id] = owner
                wanted.setdefault(broker_id, []).append(key)
        answers = await self._all(
            list(addresses.values()), "lag_facts", lambda broker: {"keys": wanted[broker.broker_id]}
        )
        found = {
            (each.facts.topic, each.facts.subscription): each for some in answers.values() for each in some
        }
        return [found[key.log, key.subscription] for key in keys if (key.log, key.subscription) in found]

    async def statuses(self) -> Sequence[BrokerFacts]:
        """Every registered broker that answers."""
        answers = await self._all(await self._port.members(), "status", lambda broker: {})
        return list(answers.values())

    async def _all(
        self,
        brokers: Sequence[BrokerAddress],
        method: str,
        arguments: Callable[[BrokerAddress], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Ask brokers side by side; those that did not answer are noted."""
        own = self._port.life.partition("/")[0]
        answers: dict[str, Any] = {}

        async def one(broker: BrokerAddress) -> None:
            try:
                if broker.broker_id == own:
                    given = dict(arguments(broker))
                    if given.get("status") is not None:
                        given["status"] = LagStatus(given["status"])
                    answers[own] = await getattr(self._port, method)(**given)
                else:
                    answers[broker.broker_id] = await self._peers.ask(broker, method, arguments(broker))
            except ClusterError as error:
                if broker.broker_id == own:
                    raise
                noted = _not_seen.get()
                if noted is not None:
                    noted[broker.broker_id] = error.message

        if len(brokers) == 1:
            await one(brokers[0])
            return answers
        failed: list[ClusterError] = []

        async def guarded(broker: BrokerAddress) -> None:
            try:
                await one(broker)
            except ClusterError as error:
                failed.append(error)

        async with anyio.create_task_group() as group:
            for broker in brokers:
                group.start_soon(guarded, broker)
        if failed:
            raise failed[0]
        return answers


async def noting(work: Callable[[], Awaitable[Any]]) -> tuple[Any, dict[str, str]]:
    """Do something, and return with it who was asked and did not answer, by id."""
    noted: dict[str, str] = {}
    before = _not_seen.set(noted)
    try:
        return await work(), noted
    finally:
        _not_seen.reset(before)


def _joined(found: Sequence[Sequence[TopicFacts]]) -> Sequence[TopicFacts]:
    """One topic of what its owners said: a partitioned one's figures are summed."""
    if len(found) == 1:
        return found[0]
    wholes, parts = [each[0] for each in found], [part for each in found for part in each[1:]]
    return (
        replace(
            wholes[0],
            partitions=len(parts),
            messages=sum(each.messages for each in wholes),
            bytes=sum(each.bytes for each in wholes),
            journal_bytes=sum(each.journal_bytes for each in wholes),
            object_bytes=sum(each.object_bytes for each in wholes),
            producers=sum(each.producers for each in wholes),
            consumers=sum(each.consumers for each in wholes),
            subscriptions=tuple(sorted({name for each in wholes for name in each.subscriptions})),
        ),
        *parts,
    )


def _by_id(owners: Sequence[BrokerAddress | None]) -> dict[str, BrokerAddress]:
    return {owner.broker_id: owner for owner in owners if owner is not None}


def _topic_in(arguments: bytes) -> str | None:
    """The topic that a call names; None of what is none, which whoever parses it will say."""
    topic = _given(arguments).get("topic")
    try:
        return str(TopicName.parse(topic)) if isinstance(topic, str) else None
    except (InvalidName, InvalidArgument):
        return None


def _given(arguments: bytes) -> dict[str, Any]:
    """The arguments of a call; nothing of what whoever parses it will refuse."""
    try:
        given = json.loads(arguments or b"{}")
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


@cache
def _answer_of(method: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(getattr(ClusterPort, method))["return"])
