"""Lag over windows, findings and alerts, for the admin core (`pydanube_core.cluster_port`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
from pydanube_core.cluster_port import LagFacts, TopicHistory, TrafficHistory
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Diagnosis, Finding
from pydanube_core.diagnosis.lag_status import LagStatus
from pydanube_core.diagnosis.rules import check_view, diagnose
from pydanube_core.diagnosis.silences import MOST_SILENCES, SILENCES, Silence
from pydanube_core.diagnosis.views import SubscriptionView
from pydanube_core.errors import InvalidArgument, MetadataUnavailable
from pydanube_core.facts import EventFacts
from pydanube_core.list_keys import LagKey, LagKeysOfStatus, ListChanges
from pydanube_core.names import TopicName
from pydanube_core.refusals import SHOWN_NAMES, no_subscription
from pydanube_core.telemetry.tables import EVENTS
from pydanube_core.units import counted

from pydanube_broker.delivery.any_pump import AnyPump
from pydanube_broker.observation.charted import BROKER
from pydanube_broker.observation.history import history_of
from pydanube_broker.observation.tracks import CursorTrack, LogTrack
from pydanube_broker.observation.viewing import base_of, settled_status
from pydanube_broker.observation.watch import Observation
from pydanube_broker.port.subscriptions import SubscriptionsPart
from pydanube_broker.slices import Slices
from pydanube_broker.topics.topic import Topic, now_ms

#: that a call waits for the metadata store, before it takes the silences as last read
_SILENCES_S: Final = 1.0


class DiagnosisPart(SubscriptionsPart):
    """The part of `BrokerPort` about diagnosis."""

    observation: Observation  # set by the broker when it has started
    _silences: Sequence[Silence] | None = None  # as last read

    # -- lag -------------------------------------------------------------------------------------------------

    async def list_changes(self, since: Mapping[str, int] | None) -> Sequence[ListChanges]:
        changes, life = self._broker.registry.list_changes, self._broker.life
        mark = changes.mark()
        asked = None if since is None else since.get(life)
        keys = None if asked is None else changes.since(asked)
        if keys is None:
            return [ListChanges(life=life, mark=mark, topics=None)]
        slices, topics = Slices(), dict[str, None]()
        subscriptions = dict[LagKey, None]()
        for key in keys:
            await slices()
            log, name = key if isinstance(key, tuple) else (key, None)
            topic = self._broker.registry.find(TopicName.parse(log))
            places = _may_have_been(log) if topic is None else [(base_of(topic), topic.options.partition)]
            names = (name,) if name is not None else () if topic is None else tuple(topic.subscriptions)
            for base, partition in places:
                if name is None:
                    topics[base] = None
                for each in names:
                    subscriptions[LagKey(base, log, partition, each)] = None
        return [ListChanges(life=life, mark=mark, topics=tuple(topics), subscriptions=tuple(subscriptions))]

    async def lag_index(self, topic: str | None, subscription: str | None) -> Sequence[LagKey]:
        index, name = self._broker.registry.catalog.index, None if topic is None else TopicName.parse(topic)
        if name is not None and index.find_topic(name) is None and index.partitioned(name) is None:
            raise self._broker.registry.not_found(name)
        found = index.lag_keys(name)
        return found if subscription is None else [key for key in found if key.subscription == subscription]

    async def lag_of_status(
        self, status: LagStatus, topic: str | None, subscription: str | None
    ) -> LagKeysOfStatus:
        slices, found, judged = Slices(), [], 0
        for index, one in enumerate(self._logs(topic)):
            if index % 64 == 0:
                await slices()
            for name, pump in one.subscriptions.items():
                if subscription in (None, name):
                    judged += 1
                    if self.observation.status_of(one, pump)[0] is status:
                        found.append(LagKey(base_of(one), one.name, one.options.partition, name))
        return LagKeysOfStatus(found, judged)

    async def lag_facts(self, keys: Sequence[LagKey]) -> Sequence[LagFacts]:
        slices, found = Slices(), []
        for key in keys:
            await slices()
            topic = self._broker.registry.find(TopicName.parse(key.log))
            pump = None if topic is None else topic.subscriptions.get(key.subscription)
            if topic is None or pump is None:
                continue
            facts = self._subscription(topic, pump, await self._cold_part(topic, pump))
            track, cursor = self._tracks(topic, key.subscription, pump.subscription_id)
            judgement = self.observation.viewer.judgement(
                topic, pump, track, cursor, facts.state, oldest_unread_append_ms=facts.oldest_unread_append_ms
            )
            status, since_ms = settled_status(self.observation.sampler, cursor, judgement)
            found.append(LagFacts(facts=facts, judgement=judgement, status=status, since_ms=since_ms))
        return found

    async def topic_history(
        self, topic: str, subscription: str | None, *, most: int, since_s: float | None = None
    ) -> TopicHistory:
        sampler = self.observation.sampler
        return await history_of(
            self._known_logs(topic), sampler, subscription=subscription, most=most, since_s=since_s
        )

    async def traffic_history(self) -> TrafficHistory:
        sampler, slices, unread = self.observation.sampler, Slices(), 0
        charted = sampler.charted
        for track in [*sampler.tracks.values()]:
            await slices()
            unread += sum(each.last.lag_messages for each in track.cursors.values() if each.last is not None)
        columns = [[*charted.broker.column(place)] for place in range(charted.broker.width)]
        now = (*charted.latest, unread)
        if charted.latest and columns[0] and columns[0][-1] < now[0]:
            columns = [[*column, value] for column, value in zip(columns, now, strict=True)]
        return TrafficHistory(
            broker_id=str(self._broker.data_dir.broker_id),
            **dict(zip(("times_ms", *BROKER), columns, strict=True)),
        )

    async def traffic_histories(self) -> Sequence[TrafficHistory]:
        return [await self.traffic_history()]

    # -- findings --------------------------------------------------------------------------------------------

    async def diagnose_cluster(self) -> Diagnosis:
        observation = self.observation
        present = await observation.present()
        unobservable = self._not_seen()
        if present.late:
            unobservable = (*unobservable, f"{present.late} subscriptions wait to be looked at again")
        if present.unknown:
            unobservable = (*unobservable, _unknown(present.unknown))
        return diagnose(
            [*self._broker_findings(), *present.findings],
            subject={"brokers": 1, "topics": self._broker.registry.count},
            as_of_ms=now_ms(),
            seen=observation.sampler.number > 0 and not present.late and not present.unknown,
            unobservable=unobservable,
            brief=True,
        )

    async def diagnose_topic(self, topic: str) -> Diagnosis:
        slices, findings, unknown = Slices(), self._broker_findings(), 0
        for one in self._known_logs(topic):
            await slices()
            findings += self._topic_findings(one)
            for pump in list(one.subscriptions.values()):
                await slices()
                view = self._view(one, pump)
                findings += check_view(view, self.observation.options)
                unknown += view.status is LagStatus.UNKNOWN and view.unread > 0
        return diagnose(
            findings,
            subject={"topic": str(TopicName.parse(topic))},
            as_of_ms=now_ms(),
            seen=not unknown,
            unobservable=(*self._not_seen(), *([_unknown(unknown)] if unknown else ())),
        )

    async def diagnose_subscription(self, topic: str, subscription: str) -> Diagnosis:
        slices, findings, seen = Slices(), self._broker_findings(), True
        unobservable: list[str] = []
        pumps = [
            (one, pump)
            for one in self._known_logs(topic)
            if (pump := one.subscriptions.get(subscription)) is not None
        ]
        if not pumps:
            existing = (name for one in self._known_logs(topic) for name in one.subscriptions)
            raise no_subscription(TopicName.parse(topic), subscription, existing)
        for one, pump in pumps:
            await slices()
            findings += self._topic_findings(one)
            view = self._view(one, pump)
            findings += check_view(view, self.observation.options)
            if view.status is LagStatus.UNKNOWN and view.unread:
                seen = False
                unobservable.append(
                    f"{one.name}: status and rates, with {counted(view.lag.samples, 'sample')} so far "
                    f"({view.lag.evidence.get('because')})"
                )
        return diagnose(
            findings,
            subject={"topic": str(TopicName.parse(topic)), "subscription": subscription},
            as_of_ms=now_ms(),
            seen=seen,
            unobservable=tuple(unobservable),
        )

    async def diagnose_producer(self, topic: str, producer: str | None) -> Diagnosis:
        findings: list[Finding] = self._broker_findings()
        subject: dict[str, Any] = {"topic": str(TopicName.parse(topic))}
        sessions = []
        for one in self._known_logs(topic):
            sessions += one.state.producers.sessions()
            findings += self._topic_findings(one)
        if producer is not None:
            named = [session for session in sessions if session.name == producer]
            if not named:
                raise InvalidArgument(
                    f"{subject['topic']} has no producer {producer!r}. Names are kept for the last 1000 sessions",
                    field="producer",
                    value=producer,
                    existing=sorted({session.name for session in sessions})[:SHOWN_NAMES],
                )
            subject |= {
                "producer": producer,
                "connections": sum(session.connections for session in named),
                "messages_published": sum(session.next_sequence for session in named),
            }
        return diagnose(
            findings,
            subject=subject,
            as_of_ms=now_ms(),
            unobservable=(
                "refusals of a single producer: they are counted for the topic as a whole",
                "messages that the producer has not sent yet",
            ),
        )

    async def alerts(self) -> tuple[Sequence[Alert], Sequence[Alert]]:
        return self.observation.alerts.open(), self.observation.alerts.closed()

    async def events(
        self, since_ms: int, until_ms: int, most: int
    ) -> tuple[Sequence[EventFacts], bool] | None:
        if self._broker.telemetry is None:
            return None
        rows, more = await self._broker.telemetry.events(since_ms, until_ms, most)
        found = []
        for row in rows:
            known = dict(zip(EVENTS.names, row, strict=True))
            at_ms, opened_ms = known.pop("taken_at"), known.pop("opened_at")
            del known["incarnation"], known["number"]
            subject = json.loads(known.pop("subject"))
            found.append(EventFacts(at_ms=at_ms, opened_at_ms=opened_ms, subject=subject, **known))
        return found, more

    async def silences(self) -> Sequence[Silence]:
        await self.keep_silences()
        if self._silences is None:
            raise MetadataUnavailable(
                f"the metadata store did not return the silences of alerts within {_SILENCES_S:g} s, and this broker "
                "has not read them since its start. Check `[metadata] url` and that the store runs",
                retry_after_ms=1000,
            )
        return self._silences

    async def keep_silences(self) -> None:
        """Read the silences. While the metadata store does not answer, those read last stand."""
        with suppress(MetadataUnavailable), anyio.move_on_after(_SILENCES_S):
            found = []
            for item in await self._broker.admin_state.list(
                SILENCES, after=None, limit=MOST_SILENCES, descending=False
            ):
                with suppress(ValueError, TypeError, LookupError, AttributeError):
                    found.append(Silence.from_bytes(item.value))
            self._silences = found

    # -- parts -----------------------------------------------------------------------------------------------

    def _logs(self, topic: str | None) -> Sequence[Topic]:
        return self._broker.registry.topics if topic is None else self._known_logs(topic)

    def _known_logs(self, topic: str) -> Sequence[Topic]:
        return self._broker.registry.known_parts(TopicName.parse(topic))

    def _tracks(self, topic: Topic, name: str, subscription_id: int) -> tuple[LogTrack, CursorTrack]:
        """Return the tracks of a subscription. Empty ones if it is new."""
        track = self.observation.sampler.tracks.get(topic.topic_id)
        if track is None:
            track = LogTrack(topic.name, topic.commit, topic.start_offset, now_ms())
        cursor = track.cursors.get(name)
        if cursor is None or cursor.subscription_id != subscription_id:
            cursor = CursorTrack(subscription_id, now_ms())
        return track, cursor

    def _broker_findings(self) -> list[Finding]:
        observation = self.observation
        return list(check_view(observation.viewer.broker(), observation.options))

    def _topic_findings(self, topic: Topic) -> Sequence[Finding]:
        observation = self.observation
        track = observation.sampler.tracks.get(topic.topic_id)
        if track is None:
            track = LogTrack(topic.name, topic.commit, topic.start_offset, now_ms())
        return check_view(observation.viewer.topic(topic, track), observation.options)

    def _view(self, topic: Topic, pump: AnyPump) -> SubscriptionView:
        track, cursor = self._tracks(topic, pump.name, pump.subscription_id)
        return self.observation.viewer.subscription(topic, pump, track, cursor, keys=True)

    def _not_seen(self) -> tuple[str, ...]:
        options, sampler = self.observation.options, self.observation.sampler
        watched_s = (now_ms() - sampler.started_ms) / 1000
        if watched_s >= options.window_s / 2:
            return ()
        return (
            f"rates and statuses: the broker has watched for {watched_s:.0f} s of a window of {options.window_s:.0f} s",
        )


def _unknown(subscriptions: int) -> str:
    return (
        counted(subscriptions, "subscription has", "subscriptions have")
        + " unread messages and too few samples"
    )


def _may_have_been(log_name: str) -> list[tuple[str, int | None]]:
    """Return the (topic, partition) pairs that a deleted log's name may mean: itself, and a partition of its base."""
    name = TopicName.parse(log_name)
    alone: list[tuple[str, int | None]] = [(log_name, None)]
    return alone if name.partition is None else [*alone, (str(name.base), name.partition)]
