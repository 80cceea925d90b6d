"""One link at one broker: the list of the source, its mirrors, and the copies of those that this broker owns.

Every broker fetches the source's list once a second, and gets a short answer while the list has not changed.
The leader makes the mirrors, their partitions, schemas and subscriptions. The owner of each log copies it (`pull`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import anyio
from pydanube_core.errors import AlreadyExists, ClusterError, Conflict, InvalidArgument, SchemaMismatch
from pydanube_core.links import FENCE_S, MIRROR, LinkFacts, LinkRecord, MirrorOf, StandingFacts
from pydanube_core.names import TopicName
from pydanube_core.topic_pattern import TopicPattern

from pydanube_broker.cluster.records import TopicRecord
from pydanube_broker.cluster.registry_records import WHOLE
from pydanube_broker.copying.target import Answers, Copies, Wire
from pydanube_broker.links.grants import GrantTables, SourceGrants
from pydanube_broker.links.mirror import (
    COPYING,
    LEFT_OUT,
    SOURCE_DELETED,
    SOURCE_REMADE,
    SourceSubject,
    SourceTopic,
    mirror_name,
    mirrored_options,
    remade,
    standing_of,
)
from pydanube_broker.links.pull import PAUSED, UNREACHABLE, Allowance, NotThere, Pull
from pydanube_broker.serving.registry import Registry
from pydanube_broker.slices import Slices
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_broker.subscription.subscription_policy import stored_policy
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.links")

GRANTS: Final = "roles and bindings"  # in place of a topic, among those that are not copied
SEAL_S: Final = 30.0  # longest time from a mirror's seal to its opening
LOOK_S: Final = 1.0  # between two looks at the source
_AWAY_S: Final = 3.0  # the same while it does not answer
_AGAIN_LOOKS: Final = 60  # looks after which a topic that failed is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """The list of a source for a link, and its version `state`. Without topics, nothing has changed since `known`.

    `grants`: None if the link does not mirror them, or the source's build does not send them.
    """

    state: str
    cluster: str
    topics: Sequence[SourceTopic]
    subjects: Sequence[SourceSubject]
    grants: SourceGrants | None


class Source(Protocol):
    """The source, as its brokers are reached."""

    def open_wire(self, url: str, answers: Answers) -> Wire: ...

    async def mirrored(self, known: str) -> Mirrored: ...

    async def fence(self, url: str, cluster: str, logs: Mapping[str, int]) -> Mapping[str, int | str]: ...


class LinkRun:
    """See the module. Single user: the loop.

    Args:
        here: returns this cluster's name.
        grants: of this cluster.
    """

    def __init__(
        self,
        link: LinkRecord,
        source: Source,
        registry: Registry,
        here: Callable[[], str],
        grants: GrantTables,
    ) -> None:
        self.link = link
        self._here = here
        self._source = source
        self._registry = registry
        self._leads = registry.ownership.coordinator.leads  # then this broker makes the mirrors
        self._grants = grants
        self._source_grants: SourceGrants | None = None
        self._copies = Copies(source.open_wire)
        self._allowance = Allowance(link.max_bytes_per_s)
        self._known = ""
        self._cluster: str | None = None
        self._topics: dict[str, SourceTopic] = {}
        self._subjects: dict[str, SourceSubject] = {}
        self._logs: dict[str, tuple[int, str]] = {}
        self._standings: list[StandingFacts] = []
        self._failures: dict[str, ClusterError] = {}  # topics of the source that could not be mirrored
        self._done: tuple[object, ...] = ()  # versions of list and index at the last full look
        self._looks = 0
        self._error: ClusterError | None = None
        self.pulls: dict[int, tuple[Pull, asyncio.Task[None] | None]] = {}  # no task while the link is paused
        self._sealed: dict[int, float] = {}  # logs of a fail-over, and its monotonic time

    @property
    def _copies_now(self) -> bool:
        return not (self.link.paused or self.link.failed_over)

    async def run(self) -> None:
        """Mirror until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S if self._error is None else _AWAY_S)
        finally:
            self._copies.close()
            tasks = [task for _, task in self.pulls.values() if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        """Read the source's list, make the mirrors if this broker leads, and copy the logs that it owns."""
        try:
            if self._copies_now:
                self._learn(await self._source.mirrored(self._known))
        except ClusterError as error:
            if self._error is None or self._error.code != error.code:
                log.warning(
                    "link_source_away",
                    extra={"link": self.link.name, "code": error.code, "error": error.message},
                )
            self._error = error
        else:
            self._error = None
        if self._copies_now:
            await self._make_mirrors()
        self._keep_pulls()

    def _learn(self, found: Mirrored) -> None:
        """Take the source's list. Raises `InvalidArgument`: the source is this cluster, or has its name."""
        if found.cluster == self._here():
            raise InvalidArgument(
                f"the source and this cluster have the same name, {found.cluster}: they are one cluster, or look like one. Delete "
                f"the link {self.link.name}, and name brokers of another cluster",
                field="source",
                value=self.link.source,
            )
        self._cluster = found.cluster
        if found.state == self._known:
            return
        self._known = found.state
        # The source could name any topic. The link's maker has rights on the mirrors of these patterns.
        patterns = [TopicPattern.parse(each) for each in self.link.topics]
        topics = [each for each in found.topics if any(one.matches(each.name) for one in patterns)]
        self._topics = {str(each.name): each for each in topics}
        self._source_grants = found.grants
        self._subjects = {each.spec.subject: each for each in found.subjects}
        self._logs = {name: (topic_id, url) for each in topics for name, topic_id, url in each.logs}

    # -- mirrors ---------------------------------------------------------------------------------------------

    async def _make_mirrors(self) -> None:
        """Complete the mirrors, if this broker leads. A topic that fails is tried again after a minute."""
        if self._cluster is None:
            return
        index = self._registry.catalog.index
        self._looks += 1
        if self._looks % _AGAIN_LOOKS == 0:
            self._failures.clear()
            self._done = ()
        if self._done == (self._known, index.changes):
            return
        self._standings, slices, waits = [], Slices(), False
        for source, topic in self._topics.items():
            await slices()
            standing = standing_of(self.link, self._cluster, topic, self._present(topic))
            if standing.state == COPYING and self._leads() and source not in self._failures:
                try:
                    await self._make(topic)
                except ClusterError as error:
                    log.warning(
                        "mirror_not_made", extra={"topic": source, "code": error.code, "error": error.message}
                    )
                    self._failures[source] = error
            if standing.state == COPYING and not await self._keep_subscriptions(topic):
                waits = True
            if (failed := self._failures.get(source)) is not None:
                standing = replace(standing, state=failed.code.lower(), why=failed.message)
            self._standings.append(standing)
        if self.link.roles:
            self._standings.append(await self._mirror_grants())
        self._done = () if waits else (self._known, index.changes)

    async def _mirror_grants(self) -> StandingFacts:
        standing = StandingFacts(topic=GRANTS, mirror=None, state=COPYING)
        grants = self._source_grants
        if grants is None or grants.refused:
            why = "the source runs a build that does not send them" if grants is None else grants.refused
            return replace(standing, state=LEFT_OUT, why=why)
        if self._leads():
            try:
                await self._grants.mirror(self.link, grants)
            except ClusterError as error:
                return replace(standing, state=error.code.lower(), why=error.message)
        return standing

    def _present(self, topic: SourceTopic) -> Mapping[str, Any] | None:
        """Return the options of the topic that has the mirror's name. None if there is none."""
        try:
            name = mirror_name(self.link, topic.name)
        except ClusterError:
            return None
        record = self._registry.catalog.index.whole(name)
        return None if record is None else record.spec.settings.options

    async def _make(self, topic: SourceTopic) -> None:
        """Make a mirror, or its missing partitions, settings and subscriptions. Idempotent."""
        assert self._cluster is not None
        if self._registry.catalog.index.format.metadata_format < WHOLE:
            raise Conflict(
                "mirrors need all brokers to run this build, because an older one lets producers write them: replace the "
                "brokers that metadata_format_waits in the log names"
            )
        name, registry = mirror_name(self.link, topic.name), self._registry
        catalog = registry.catalog
        schema = topic.schema
        if schema is not None and (subject := self._subjects.get(str(schema.get("subject")))) is not None:
            schema = {**schema, "subject": await self._mirror_subject(subject)}
        mark = MirrorOf(link=self.link.name, cluster=self._cluster, topic=str(topic.name), ids=topic.ids)
        present = self._present(topic)
        if present is None:
            if catalog.index.find_namespace(name.namespace) is None:
                await self._make_namespace(name.namespace)
            await registry.create(
                name,
                partitions=len(topic.logs) if topic.partitioned else 0,
                dispatch_strategy="reliable",
                options={"policies": topic.policies, "schema": schema, "options": {MIRROR: mark.to_option()}},
                must_be_new=True,
            )
            log.info("mirror_made", extra={"topic": str(name), "link": self.link.name})
        elif MirrorOf.of(present) != mark:  # partitions were added
            await registry.ownership.acquire(await catalog.make_partitions(name, len(topic.logs)))
            await catalog.show_partitions(name, len(topic.logs))
            await catalog.set_option(name, MIRROR, mark.to_option())
        records = self._records(name)
        settings = (catalog.index.partitioned(name) or records[0]).spec.settings
        if settings.policies != topic.policies:
            await catalog.update_topic(name, policies=topic.policies)
        if settings.schema != schema:
            await registry.schemas.restore(name, schema)
        await catalog.keep_for_link(name, self._kept(name, topic))
        for record in self._records(name):
            if (served := registry.find(record.topic)) is not None:
                registry.policies.apply(served)
            await self._subscribe(record, served, topic)

    def _kept(self, name: TopicName, topic: SourceTopic) -> dict[str, Mapping[str, Any]]:
        """Return the options that the source keeps for subscriptions to come, without those that the mirror has already.

        Partitions that lack a subscription still take its options, so it has to be at all of them.
        """
        index = self._registry.catalog.index
        of_parts = [
            {each.name for each in index.subscriptions(record.topic_id)} for record in self._records(name)
        ]
        present = set.intersection(*of_parts) if of_parts else set()
        return {
            each: mirrored_options(self.link, topic.name, options)
            for each, options in topic.kept.items()
            if each not in present
        }

    async def _mirror_subject(self, subject: SourceSubject) -> str:
        """Take a subject of the source, and return its name here. With the link's prefix if another one has its name.

        Raises `SchemaMismatch`: the link has no prefix, or that name or the id is another subject's too.
        """
        registry = self._registry.schemas.registry
        try:
            await registry.mirror(subject.spec, subject.schema_id, subject.versions)
        except SchemaMismatch:
            if not self.link.rename:
                raise
        else:
            return subject.spec.subject
        name = self.link.rename + subject.spec.subject
        versions = [(replace(spec, subject=name), one, other) for spec, one, other in subject.versions]
        await registry.mirror(replace(subject.spec, subject=name), subject.schema_id, versions)
        return name

    async def _make_namespace(self, namespace: str) -> None:
        with suppress(AlreadyExists):
            await self._registry.catalog.namespaces.create(namespace)

    def _records(self, name: TopicName) -> Sequence[TopicRecord]:
        index = self._registry.catalog.index
        record = index.find_topic(name)
        return index.partitions(name) if record is None else [record]

    async def _subscribe(self, record: TopicRecord, served: Topic | None, topic: SourceTopic) -> None:
        """Make the source's subscriptions of one log."""
        subscriptions, ownership = self._registry.catalog.subscriptions, self._registry.ownership
        present = {each.name: each for each in self._registry.catalog.index.subscriptions(record.topic_id)}
        for name, (kind, options) in topic.subscriptions.items():
            wanted = {**mirrored_options(self.link, topic.name, options), MIRROR: self.link.name}
            found = present.get(name)
            if found is None:
                found, _ = await subscriptions.ensure(
                    record.topic_id, name, type=kind, start_offset=0, options=wanted
                )
            elif MIRROR in found.spec.options and (found.spec.options, found.type) != (wanted, kind):
                found = await subscriptions.update(record.topic_id, name, options=wanted, type=kind)
            if served is not None and served.closed is None:
                ownership.adopt_subscription(served, found)

    async def _keep_subscriptions(self, topic: SourceTopic) -> bool:
        """Serve mirrored subscriptions by their records, and delete those that the source has no longer.

        Only of the logs that this broker owns. Returns whether that is done. It waits while a log's copy waits: a
        source that was restored to an older state has lost subscriptions, and its mirror keeps them.
        """
        catalog, done = self._registry.catalog, True
        for record in self._records(mirror_name(self.link, topic.name)):
            pull, _ = self.pulls.get(record.topic_id, (None, None))
            if pull is None:
                continue
            for found in catalog.index.subscriptions(record.topic_id):
                if MIRROR not in found.spec.options:
                    continue
                if found.name in topic.subscriptions:
                    if (pump := pull.topic.subscriptions.get(found.name)) is not None:
                        with suppress(ClusterError):  # a policy that is not valid with the settings here
                            policy = self._registry.policies.of_failures(stored_policy(found.spec.options))
                            pump.take_terms(SubscriptionType(found.type), policy)
                    continue
                if not pull.follows:
                    done = False
                    continue
                await catalog.subscriptions.delete(record.topic_id, found.name)
                if (pump := pull.topic.subscriptions.get(found.name)) is not None:
                    self._registry.ownership.subscription_deleted(pull.topic, pump)
        return done

    # -- copies ----------------------------------------------------------------------------------------------

    def _keep_pulls(self) -> None:
        """Copy each log of a mirror that this broker owns, and end the copies of others."""
        now_s = time.monotonic()
        self._sealed = {key: at for key, at in self._sealed.items() if now_s - at < SEAL_S}
        wanted: dict[int, Topic] = {}
        for topic in self._registry.topics if not self.link.failed_over else ():
            if topic.link != self.link.name or topic.closed is not None:
                continue
            if topic.topic_id in self._sealed:
                continue
            cluster = self._cluster_of(topic)
            if cluster is not None and self._cluster in (None, cluster):
                wanted[topic.topic_id] = topic
        heard_ms = now_ms() if self._error is None else None
        for topic_id, (pull, task) in list(self.pulls.items()):
            ended = task is not None and task.done()
            if pull.topic is not wanted.get(topic_id) or ended:
                if task is not None:
                    task.cancel()
                del self.pulls[topic_id]
                continue
            if pull.cursors:
                pull.place_cursors()
            if heard_ms is not None:
                pull.source_is_there(heard_ms)
        for topic_id, topic in wanted.items():
            if (
                topic_id not in self.pulls
                and (mark := MirrorOf.of(topic.options.settings.options)) is not None
            ):
                pull = self._pull(topic, mark)
                task = asyncio.get_running_loop().create_task(pull.run()) if self._copies_now else None
                self.pulls[topic_id] = pull, task

    def _cluster_of(self, topic: Topic) -> str | None:
        """Return the cluster that a mirror was made of. Not parsed again for a log that is copied: a look takes all of them."""
        pull, _ = self.pulls.get(topic.topic_id, (None, None))
        if pull is not None and pull.topic is topic:
            return pull.cluster
        mark = MirrorOf.of(topic.options.settings.options)
        return None if mark is None else mark.cluster

    def _pull(self, topic: Topic, mark: MirrorOf) -> Pull:
        partition = topic.options.partition
        source, topic_id = mark.log_of(partition), mark.ids[partition or 0]
        name = TopicName.parse(mark.topic)

        def place() -> tuple[int, str] | NotThere:
            if not any(TopicPattern.parse(each).matches(name) for each in self.link.topics):
                return NotThere(
                    LEFT_OUT,
                    f"it belongs to a former link {self.link.name}, and no pattern matches it",
                )
            if not self._known:
                return NotThere(UNREACHABLE, None if self._error is None else self._error.message)
            found = self._logs.get(source)
            if found is None:
                return NotThere(
                    SOURCE_DELETED,
                    f"{source} was deleted at the source, or the token has no data:mirror on it",
                )
            if found[0] != topic_id:
                return NotThere(SOURCE_REMADE, remade(source, topic.name))
            return found if found[1] else NotThere(UNREACHABLE, f"{source} has no owner at the source now")

        return Pull(
            self.link,
            topic,
            source,
            mark.cluster,
            self._copies,
            place,
            self._allowance,
            now_ms,
            self._registry.worker_threads,
        )

    async def seal(self, topic: Topic) -> None:
        """End the copy of a log, and begin none for `SEAL_S`. All copied messages and cursors are durable on return."""
        self._sealed[topic.topic_id] = time.monotonic()
        pull, task = self.pulls.get(topic.topic_id, (None, None))
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await topic.settled()
        if pull is not None:
            pull.place_cursors()
            await topic.settled()

    async def fence(self, topics: Sequence[str]) -> Mapping[str, int | str]:
        """Let the owners of these topics of the source refuse their clients, because this cluster takes them over.

        Returns each log's end, behind which the source appends nothing more, or the reason without one. Takes at most
        `FENCE_S`.
        """
        if self.link.paused:  # it has not looked at the source
            with suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(FENCE_S):
                    self._learn(await self._source.mirrored(""))
        logs: dict[str, dict[str, int]] = {}
        found: dict[str, int | str] = {}
        for topic in topics:
            if (known := self._topics.get(topic)) is None:
                found[topic] = "the source has not named its owner"
                continue
            mark = MirrorOf.of(self._present(known) or {})
            if mark is None or mark.ids != known.ids[: len(mark.ids)]:
                found[topic] = "it was deleted and made again at the source, where it is another topic now"
                continue
            for log, topic_id, url in known.logs:
                found[log] = f"its owner at the source did not answer within {FENCE_S:g} s"
                logs.setdefault(url, {})[log] = topic_id

        async def ask(url: str) -> None:
            try:
                found.update(await self._source.fence(url, self._here(), logs[url]))
            except ClusterError as error:
                found.update(dict.fromkeys(logs[url], error.message))

        with anyio.move_on_after(FENCE_S):
            async with anyio.create_task_group() as group:
                for url in logs:
                    group.start_soon(ask, url)
        return found

    def facts(self) -> LinkFacts:
        """Return the link's state, and that of the mirrors that this broker owns."""
        state = COPYING if self._error is None else UNREACHABLE
        return LinkFacts(
            link=self.link.name,
            state=PAUSED if self.link.paused else state,
            why=None if self._error is None or self.link.paused else self._error.message,
            cluster=self._cluster,
            mirrors=[pull.facts() for pull, _ in self.pulls.values()],
            # The mirror of a topic that was made again has that state itself
            left_out=[each for each in self._standings if each.state not in (COPYING, SOURCE_REMADE)],
        )
