"""The port of a broker among several: it joins the answers of all brokers involved.

A method about one topic goes to its owner. For a partitioned topic it goes to the owners of all partitions in
parallel, and `_JOINS` combines their answers. A method without an entry there takes one partition, or a topic
whose partitions are all at one broker. A change takes effect at each owner that answers. If some do not, the
error lists them (`not_done_at`), and repeating the call completes the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar, cast

import anyio
from pydanube_core.balance import LoadReport
from pydanube_core.cluster_port import ClusterPort, LagFacts, TopicPort, TrafficHistory
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Diagnosis
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.diagnosis.rules import alerts_of_all, of_all_brokers, of_owners
from pydanube_core.errors import (
    ClusterError,
    DeadlineExceeded,
    NoOwner,
    NotOwner,
    SubscriptionNotFound,
    TopicNotFound,
    Unavailable,
)
from pydanube_core.facts import (
    BrokerAddress,
    BrokerFacts,
    CursorDifference,
    RetentionFacts,
    SessionFacts,
    StopFacts,
    TopicFacts,
    TrafficFacts,
    sums_of_parts,
)
from pydanube_core.links import LinkFacts
from pydanube_core.list_keys import LagKey, LagKeysOfStatus, ListChanges
from pydanube_core.names import TopicName
from pydanube_core.ops_call import call_request

from pydanube_admin.engine.places import by_id
from pydanube_admin.engine.task_records import broker_of
from pydanube_admin.gone_owners import GoneOwner, gone_owner, with_silent
from pydanube_admin.peers import (
    DEADLINE_S,
    FORWARD_S,
    Peers,
    is_silent,
    named,
    note_silent,
    note_topics,
    note_unseen,
    unreadable,
    unseen,
    unseen_whys,
)

T = TypeVar("T")

_AGAIN_S: Final = 0.05  # longest pause between two queries of an owner
_SOON_S: Final = 0.004  # first pause: a new owner opens the topic within milliseconds
ON_ITS_WAY_S: Final = 1.0  # how long a list waits for a topic between two owners: longer than most moves take
UNREAD_AGAIN_S: Final = 5.0  # between two attempts to read a gone broker's last report: one may take a second


def growing_pauses() -> Iterator[float]:
    """Yield the seconds between attempts to get something from an owner that does not have it yet."""
    pause_s = _SOON_S
    while True:
        yield pause_s
        pause_s = min(_AGAIN_S, 2 * pause_s)


def _not_all(topic: str) -> NoOwner:
    return NoOwner(
        f"not all of {topic} is served now: some of it is on its way to a broker. Try again in a moment. If it stays so, "
        "`danube diagnose cluster` shows the reason, such as a damaged copy of a lost broker's journal",
        topic=topic,
        retry_after_ms=1000,
    )


def _nothing(_: Sequence[None]) -> None:
    return None


def _merged(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for answer in answers for name, value in answer.items()}


def _all_of(answers: Iterable[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(answers))


def _differences(answers: Sequence[CursorDifference]) -> CursorDifference:
    return CursorDifference(
        passed_over=sum(each.passed_over for each in answers),
        missing=sum(each.missing for each in answers),
        restored=sum(each.restored for each in answers),
    )


def _traffic(answers: Sequence[TrafficFacts]) -> TrafficFacts:
    return TrafficFacts(
        **{name: sum(getattr(each, name) for each in answers) for name in TrafficFacts.__dataclass_fields__}
    )


#: how the answers of the owners of a topic's partitions are combined
_JOINS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "truncate_topic": _nothing,
    "set_durability": all,
    "create_subscription": _nothing,
    "seek_subscription": _nothing,
    "purge_subscription": _nothing,
    "delete_subscription": _nothing,
    "hold_unused": _all_of,
    "release_unused": _nothing,
    "place_cursors": _nothing,
    "set_failure_policy": _nothing,
    "resolve_position": _merged,
    "topic_ranges": _merged,
    "seal_mirror": _merged,
    "cursors": _merged,
    "compare_cursors": _differences,
    "forecast_failure_policy": sum,
    "subscriptions": _all_of,
    "traffic": _traffic,
    "diagnose_topic": of_owners,
    "diagnose_subscription": of_owners,
}
#: about the whole topic: one owner answers, or changes the metadata, which the others follow
_OF_THE_WHOLE: Final = frozenset({"topic_policies", "set_topic_policies", "failure_policy"})
_DIAGNOSES: Final = frozenset({"diagnose_topic", "diagnose_subscription", "diagnose_producer"})
_IN_THE_METADATA: Final = frozenset({"delete_topic", "drop_partitions"})  # by any broker. The owners follow
_AT_OWNERS: Final = (
    frozenset(name for name in vars(TopicPort) if not name.startswith("_")) | _JOINS.keys() | _OF_THE_WHOLE
) - _IN_THE_METADATA
ASKED: Final = _AT_OWNERS | {
    "topic_facts",
    "list_changes",
    "lag_of_status",
    "lag_facts",
    "status",
    "at_stop",
    "traffic_history",
    "producers",
    "consumers",
    "links",
    "disconnect",
    "loads",
    "diagnose_cluster",
    "alerts",
    "forecast_retention",
}


class ClusterWidePort:
    """The port over all brokers. Methods that are not here are the broker's own."""

    def __init__(self, port: ClusterPort, peers: Peers) -> None:
        self._port = port
        self._peers = peers
        self._own = broker_of(port.life)
        self._known_gone: dict[str, GoneOwner] = {}
        self._read_s: dict[str, float] = {}  # when each of them was read

    def __getattr__(self, name: str) -> Any:
        return partial(self._at_owners, name) if name in _AT_OWNERS else getattr(self._port, name)

    @property
    def this(self) -> ClusterPort:
        """The port of the answering broker alone."""
        return self._port

    # -- about one topic -------------------------------------------------------------------------------------

    async def _at_owners(self, method: str, topic: str, *arguments: Any, **more: Any) -> Any:
        placed = await self._port.owners(topic)
        owners = list(by_id(placed).values())
        if owners and None in placed:
            raise _not_all(topic)
        given = named(method, (topic, *arguments), more)
        away = {each.broker_id: each for each in await self.gone_owners_of(owners)}
        if owners and method in _DIAGNOSES:
            topic = str(TopicName.parse(topic))
            subject = {name: given[name] for name in ("subscription", "producer") if given.get(name)}
            subject = {"topic": topic, **subject}
            there = [owner for owner in owners if owner.broker_id not in away]
            found = await self._each(there, method, given, away)
            found += [each.diagnosis(topic, subject) for each in away.values()]
            return found[0] if len(found) == 1 else of_owners(found)
        if away:
            raise next(iter(away.values())).error(topic)
        if len(owners) < 2:
            return await self._ask(owners[0] if owners else None, method, given)
        if method in _OF_THE_WHOLE:
            return await self._first(owners, method, given)
        if method not in _JOINS:
            ids = ", ".join(sorted(each.broker_id for each in owners))
            raise NotOwner(
                f"the partitions of {topic} are at brokers {ids}: name one partition, as {topic}-part-0",
                topic=topic,
            )
        return _JOINS[method](await self._each(owners, method, given))

    async def gone_owners_of(self, owners: Iterable[BrokerAddress] | None) -> list[GoneOwner]:
        """Return those owners that are not registered, with their last reports. None: of all owners."""
        missed = await self._port.missed()
        now_s = anyio.current_time()
        wanted = missed.keys() if owners is None else missed.keys() & {each.broker_id for each in owners}
        # A report does not change while its broker is gone
        known = {
            each: gone
            for each, gone in self._known_gone.items()
            if gone.gone_since_ms == self._port.gone_since_ms(each)
            and not (gone.unread and now_s >= self._read_s[each] + UNREAD_AGAIN_S)
        }
        found: dict[str, GoneOwner] = {}

        async def look(broker_id: str) -> None:
            gone = known.get(broker_id)
            if gone is not None:
                tried = await self._port.dialed(broker_id)
                found[broker_id] = replace(gone, topics=missed[broker_id], tried=tried)
            elif (gone := await gone_owner(self._port, broker_id)) is not None:
                found[broker_id] = gone
                self._read_s[broker_id] = anyio.current_time()

        async with anyio.create_task_group() as group:
            for broker_id in wanted - {self._own}:
                group.start_soon(look, broker_id)
        # Other calls have come to this line meanwhile
        self._known_gone = {
            each: gone for each, gone in {**self._known_gone, **found}.items() if each in missed
        }
        return [found[each] for each in sorted(found)]

    async def _note_left_out(
        self, addresses: Mapping[str, BrokerAddress], answered: Container[str], topics: Mapping[str, set[str]]
    ) -> None:
        """Note the topics of the owners that did not answer."""
        silent = [each for broker_id, each in addresses.items() if broker_id not in answered]
        for gone in await self.gone_owners_of(silent) if silent else ():
            note_unseen(gone.broker_id, gone.why, gone=gone)
        for each in silent:
            note_topics(each.broker_id, topics[each.broker_id])

    async def _ask(self, broker: BrokerAddress | None, method: str, given: Mapping[str, Any]) -> Any:
        if broker is None or broker.broker_id == self._own:
            return await getattr(self._port, method)(**given)
        deadline_s = DEADLINE_S if method in _QUICK else FORWARD_S
        return await self._peers.ask(broker, method, given, timeout_s=deadline_s)

    async def _first(self, owners: Sequence[BrokerAddress], method: str, given: Mapping[str, Any]) -> Any:
        """Return the answer of the first broker that has the subscription. Some partitions may lack it."""
        for owner in owners[:-1]:
            try:
                return await self._ask(owner, method, given)
            except (SubscriptionNotFound, Unavailable):
                continue
        return await self._ask(owners[-1], method, given)

    async def _each(
        self,
        owners: Sequence[BrokerAddress],
        method: str,
        given: Mapping[str, Any],
        away: dict[str, GoneOwner] | None = None,
    ) -> list[Any]:
        """Return all answers without those of brokers that lack the subscription. Raise if all do.

        `away`: takes those that do not answer. Without it, their error is raised.
        """
        answers: list[Any] = []
        failed: dict[str, ClusterError] = {}
        missing: list[SubscriptionNotFound] = []

        async def one(owner: BrokerAddress) -> None:
            try:
                answers.append(await self._ask(owner, method, given))
            except SubscriptionNotFound as error:
                missing.append(error)
            except ClusterError as error:
                silent = isinstance(error, Unavailable | DeadlineExceeded) and owner.broker_id != self._own
                if silent and away is not None:
                    away[owner.broker_id] = GoneOwner(broker_id=owner.broker_id, silent=error.message)
                else:
                    failed[owner.broker_id] = error

        async with anyio.create_task_group() as group:
            for owner in owners:
                group.start_soon(one, owner)
        if failed:
            error = next(iter(failed.values()))
            error.details["not_done_at"] = sorted(failed)
            raise error
        if missing and not answers:
            raise missing[0]
        return answers

    async def topic_facts(self, topics: Sequence[str]) -> Sequence[Sequence[TopicFacts]]:
        """Return the facts of each topic from its owners, in order. Omit topics whose owner does not answer."""
        found: dict[str, list[Sequence[TopicFacts]]] = {}
        await self._until_there(topics, lambda some: self._facts_of(some, found), log=str)
        joined = []
        for topic in (each for each in topics if each in found):
            whole, *parts = _joined(found[topic])
            if whole.partitions:  # also of owners that do not answer
                whole = replace(whole, partitions=len(await self._port.owners(topic)))
            joined.append([whole, *parts])
        return joined

    async def _until_there(
        self,
        wanted: Sequence[T],
        ask: Callable[[Sequence[T]], Awaitable[Sequence[T]]],
        *,
        log: Callable[[T], str],
    ) -> None:
        """Call `ask` with the wanted items, and again with those it returns, which are between two owners.

        Items that take too long are noted as not answered by their owner. A call waits only once, because a
        list may call this often.
        """
        until, pauses = anyio.current_time() + (0.0 if unseen() else ON_ITS_WAY_S), growing_pauses()
        while wanted := await ask(wanted):
            if anyio.current_time() >= until:
                for each in wanted:
                    await self._note_on_its_way(log(each))
                return
            await anyio.sleep(next(pauses))

    async def _facts_of(
        self, topics: Sequence[str], found: dict[str, list[Sequence[TopicFacts]]]
    ) -> Sequence[str]:
        """Put the owners' facts of these topics into `found`. Return topics that an answering owner lacks."""
        owners = {topic: await self._port.owners(topic) for topic in topics}
        wanted: dict[str, list[str]] = {}
        addresses: dict[str, BrokerAddress] = {}
        for topic, places in owners.items():
            found[topic] = []
            for broker_id, owner in by_id(places).items():
                addresses[broker_id] = owner
                wanted.setdefault(broker_id, []).append(topic)
        answers = await self._all(
            list(addresses.values()), "topic_facts", lambda broker: {"topics": wanted[broker.broker_id]}
        )
        await self._note_left_out(addresses, answers, {each: {*those} for each, those in wanted.items()})
        for facts in chain.from_iterable(answers.values()):
            found[facts[0].topic].append(facts)
        away = []
        for topic, places in owners.items():
            parts = sum(len(facts[1:]) or 1 for facts in found[topic])
            if not found[topic]:
                del found[topic]
            if by_id(places).keys() <= answers.keys() and parts < sum(place is not None for place in places):
                away.append(topic)
        return away

    async def topic(self, topic: str) -> Sequence[TopicFacts]:
        """Return the whole topic, retrying if an owner has not opened it yet.

        Raises `Unavailable`: an owner is gone, or does not answer. `NoOwner`: a part of it is still moving when the time of
        a call ends.
        """
        placed = await self._port.owners(topic)
        if gone := await self.gone_owners_of(list(by_id(placed).values())):
            raise gone[0].error(topic)
        count, pauses = len(placed), growing_pauses()
        with anyio.move_on_after(DEADLINE_S):
            while count:
                found: dict[str, list[Sequence[TopicFacts]]] = {}
                await self._facts_of([topic], found)
                for broker_id, why in unseen_whys().items():
                    raise GoneOwner(broker_id=broker_id, silent=why).error(topic)
                facts = _joined(found[topic]) if topic in found else ()
                if facts and len(facts[1:] or facts) >= count:
                    return facts
                await anyio.sleep(next(pauses))
                count = len(await self._port.owners(topic))
        if count:  # one broker's part is not the whole topic
            raise _not_all(topic)
        return await self._port.topic(topic)

    # -- about all -------------------------------------------------------------------------------------------

    async def traffic(self, topic: str | None) -> TrafficFacts:
        """Return the traffic at all brokers, in the form of one broker's."""
        if topic is not None:
            return _traffic([await self._at_owners("traffic", topic)])
        found = await self._whole(
            "traffic", {"topic": None}, lambda answer: answer.logs, self._port.log_count
        )
        return _traffic(list(found.values()))

    async def list_changes(self, since: Mapping[str, int] | None) -> Sequence[ListChanges]:
        """Return the changed lists of every broker that answers."""
        return _all_of((await self._everywhere("list_changes", since=since)).values())

    async def producers(self) -> Sequence[SessionFacts]:
        """Return the producers of every broker that answers."""
        return _all_of((await self._everywhere("producers")).values())

    async def consumers(self) -> Sequence[SessionFacts]:
        """Return the consumers of every broker that answers."""
        return _all_of((await self._everywhere("consumers")).values())

    async def links(self) -> Sequence[LinkFacts]:
        """Return the links at every broker that answers."""
        return _all_of((await self._everywhere("links")).values())

    async def disconnect(self, session_id: str) -> bool:
        """Close the connection at its broker. A session id belongs to one broker."""
        return any((await self._everywhere("disconnect", session_id=session_id)).values())

    async def forecast_retention(self, policies: Mapping[str, Mapping[str, int]]) -> RetentionFacts:
        """Return the retention forecast of each topic's owners. Raise if one of them does not answer."""
        owners: dict[str, BrokerAddress] = {}
        for topic in policies:
            owners |= by_id(await self._port.owners(topic))
        found = RetentionFacts()
        for each in await self._each(list(owners.values()), "forecast_retention", {"policies": policies}):
            found += each
        return found

    async def lag_of_status(
        self, status: LagStatus, topic: str | None, subscription: str | None
    ) -> LagKeysOfStatus:
        """Return the lag keys of all brokers, in the form of one broker's."""

        async def there() -> int:
            return len(await self._port.lag_index(topic, subscription))

        given = {"status": status, "topic": topic, "subscription": subscription}
        answers = await self._whole("lag_of_status", given, lambda answer: answer.judged, there)
        keys = _all_of(answer.keys for answer in answers.values())
        return LagKeysOfStatus(keys, sum(answer.judged for answer in answers.values()))

    async def lag_facts(self, keys: Sequence[LagKey]) -> Sequence[LagFacts]:
        """Return the lag of the keys, in their order, without keys that have gone."""
        found: dict[tuple[str, str], LagFacts] = {}
        await self._until_there(keys, lambda some: self._lag_of(some, found), log=lambda key: key.log)
        return [found[key.log, key.subscription] for key in keys if (key.log, key.subscription) in found]

    async def _lag_of(
        self, keys: Sequence[LagKey], found: dict[tuple[str, str], LagFacts]
    ) -> Sequence[LagKey]:
        """Put the owners' lag of these keys into `found`. Return keys that an answering owner lacks."""
        wanted: dict[str, list[LagKey]] = {}
        addresses: dict[str, BrokerAddress] = {}
        for key in keys:
            for broker_id, owner in by_id(await self._port.owners(key.log)).items():
                addresses[broker_id] = owner
                wanted.setdefault(broker_id, []).append(key)
        answers = await self._all(
            list(addresses.values()), "lag_facts", lambda broker: {"keys": wanted[broker.broker_id]}
        )
        logs = {broker_id: {key.log for key in those} for broker_id, those in wanted.items()}
        await self._note_left_out(addresses, answers, logs)
        for each in chain.from_iterable(answers.values()):
            found[each.facts.topic, each.facts.subscription] = each
        away = []
        for key in chain.from_iterable(wanted[broker_id] for broker_id in answers):
            if (key.log, key.subscription) not in found:
                with suppress(TopicNotFound):
                    if key in await self._port.lag_index(key.log, key.subscription):
                        away.append(key)
        return away

    async def statuses(self) -> Sequence[BrokerFacts]:
        """Return the status of every registered broker that answers."""
        return list((await self._everywhere("status")).values())

    async def stops(self) -> Sequence[StopFacts]:
        """Return the topics of every broker that answers, as its stop would find them."""
        return list((await self._everywhere("at_stop")).values())

    async def traffic_histories(self) -> Sequence[TrafficHistory]:
        """Return the traffic of every broker that answers, over the last day."""
        return list((await self._everywhere("traffic_history")).values())

    async def loads(self) -> Sequence[LoadReport]:
        """Return the load of every broker that answers."""
        return _all_of((await self._everywhere("loads")).values())

    async def diagnose_cluster(self) -> Diagnosis:
        """Return the findings of all brokers as one diagnosis (`of_all_brokers`)."""
        found = await self._whole(
            "diagnose_cluster", {}, lambda answer: answer.subject["topics"], self._port.log_count
        )
        if found.keys() == {self._own} and not unseen():
            (own,) = found.values()
            return cast("Diagnosis", own)
        silent = {each: why for each, why in unseen_whys().items() if is_silent(each)}
        return with_silent(of_all_brokers(found, missing=unseen_whys()), silent)

    async def alerts(self) -> tuple[Sequence[Alert], Sequence[Alert]]:
        """Return (open alerts, closed alerts) of every broker."""
        found = await self._everywhere("alerts")
        opened, closed = zip(*found.values(), strict=True)
        return alerts_of_all(opened), alerts_of_all(closed)

    async def _whole(
        self,
        method: str,
        given: Mapping[str, Any],
        seen: Callable[[Any], int],
        there: Callable[[], Awaitable[int]],
    ) -> dict[str, Any]:
        """Query all brokers until the answers cover everything that exists. Return them by broker id.

        Args:
            seen: how many things an answer covers.
            there: how many exist.

        Until they do, something is moving between brokers: the query is repeated, and if that takes too long,
        the owner is noted.
        """
        until, pauses = anyio.current_time() + ON_ITS_WAY_S, growing_pauses()
        while True:
            topic = given.get("topic")
            if topic is None:
                answers = await self._everywhere(method, **given)
            else:
                owners = by_id(await self._port.owners(topic))
                answers = await self._all(list(owners.values()), method, lambda broker: given)
            if unseen() or sum(map(seen, answers.values())) >= await there():
                break
            if anyio.current_time() >= until:
                for move in await self._port.moves():
                    await self._note_on_its_way(move.topic)
                if not unseen():
                    note_unseen(self._own, "it lists topics that no broker serves now")
                break
            await anyio.sleep(next(pauses))
        return answers

    async def _note_on_its_way(self, topic: str) -> None:
        for broker_id in by_id(await self._port.owners(topic)):
            note_unseen(broker_id, f"{topic} is on its way to another broker")

    async def call_others(
        self,
        operation: str,
        arguments: Mapping[str, Mapping[str, Any]],
        read: Callable[[str, Mapping[str, Any]], T],
        *,
        principal: str,
        face: str,
        timeout_s: float = DEADLINE_S,
    ) -> dict[str, T]:
        """Have an operation carried out at other brokers too, each for itself. Return the results by broker id.

        Args:
            arguments: by broker id.
            read: parses a broker's answer, given its id. An error of it is taken as no answer.

        Brokers that do not answer are noted.
        """
        for gone in await self.gone_owners_of(None):
            note_unseen(gone.broker_id, gone.why, gone=gone)
        answers: dict[str, T] = {}

        async def one(broker: BrokerAddress) -> None:
            request = call_request(operation, arguments[broker.broker_id], principal=principal, face=face)
            request.within.operation = operation  # this broker records the call
            try:
                answer = await self._peers.call(broker, request, timeout_s=timeout_s)
                try:
                    answers[broker.broker_id] = read(broker.broker_id, answer)
                except (ClusterError, LookupError, TypeError, ValueError) as error:
                    raise unreadable(broker.broker_id, operation) from error
            except (Unavailable, DeadlineExceeded) as error:
                note_silent(broker.broker_id, error.message)
            except ClusterError as error:
                note_unseen(broker.broker_id, error.message)

        async with anyio.create_task_group() as group:
            for broker in await self._port.members():
                if broker.broker_id in arguments and not is_silent(broker.broker_id):
                    group.start_soon(one, broker)
        return answers

    async def _everywhere(self, method: str, **given: Any) -> dict[str, Any]:
        for gone in await self.gone_owners_of(None):
            note_unseen(gone.broker_id, gone.why, gone=gone)
        answers = await self._all(await self._port.members(), method, lambda broker: given)
        if self._own not in answers:  # its lease has expired: it answers with its own state
            answers[self._own] = await getattr(self._port, method)(**given)
        return answers

    async def _all(
        self,
        brokers: Sequence[BrokerAddress],
        method: str,
        arguments: Callable[[BrokerAddress], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Query brokers in parallel. Silent ones are noted and skipped for the rest of this call. Gone ones are only noted."""
        answers: dict[str, Any] = {}
        failed: list[ClusterError] = []
        skipped = set()
        for gone in await self.gone_owners_of(brokers):
            skipped.add(gone.broker_id)
            note_unseen(gone.broker_id, gone.why, gone=gone)

        async def one(broker: BrokerAddress) -> None:
            try:
                answers[broker.broker_id] = await self._ask(broker, method, arguments(broker))
            except SubscriptionNotFound:
                pass  # it is elsewhere
            except ClusterError as error:
                if broker.broker_id == self._own:
                    failed.append(error)
                elif isinstance(error, Unavailable | DeadlineExceeded):
                    note_silent(broker.broker_id, error.message)
                else:
                    note_unseen(broker.broker_id, error.message)

        async with anyio.create_task_group() as group:
            for broker in brokers:
                if broker.broker_id not in skipped and not is_silent(broker.broker_id):
                    group.start_soon(one, broker)
        if failed:
            raise failed[0]
        return answers


_QUICK: Final = ASKED - {
    "truncate_topic",
    "verify_objects",
    "flush_objects",
    "compact_objects",
    "collect_objects",
    "export_objects",
    "replay_topic",
    "orphans",
}


def _joined(found: Sequence[Sequence[TopicFacts]]) -> Sequence[TopicFacts]:
    """Join the owners' answers about a topic into one, with the figures of partitions summed."""
    if len(found) == 1:
        return found[0]
    wholes, parts = [each[0] for each in found], [part for each in found for part in each[1:]]
    return (
        replace(
            wholes[0],
            partitions=len(parts) or sum(each.partitions for each in wholes),
            **sums_of_parts(wholes),
        ),
        *parts,
    )
