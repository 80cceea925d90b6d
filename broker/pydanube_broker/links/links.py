"""All links of this broker. It follows the declared ones, and starts one again when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import anyio
from pydanube_core.diagnosis.views import LinkView
from pydanube_core.errors import ClusterError, Retryable
from pydanube_core.links import LINKS, LinkFacts, LinkRecord, MirrorOf
from pydanube_core.names import TopicName
from pydanube_core.refusals import not_a_mirror
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import MetadataStore

from pydanube_broker.admin_state import admin_table
from pydanube_broker.cluster.epochs import epoch_counter
from pydanube_broker.links.grants import GrantTables
from pydanube_broker.links.mirror import COPYING, FAILED_OVER, LEFT_OUT
from pydanube_broker.links.run import LinkRun, Source
from pydanube_broker.records import Quarantine, Records
from pydanube_broker.serving.registry import Registry
from pydanube_broker.subscription.batch_columns import BatchColumns
from pydanube_broker.topics.reading import read_once
from pydanube_broker.topics.topic import Topic, now_ms

log = logging.getLogger("pydanube.links")

_AGAIN_S: Final = 1.0


class ClusterLinks:
    """See the module. Single user: the loop.

    Args:
        source: returns the source of a link.
        cluster: returns this cluster's name.
    """

    def __init__(
        self,
        registry: Registry,
        store: MetadataStore,
        source: Callable[[LinkRecord], Source],
        cluster: Callable[[], str],
        quarantine: Quarantine,
    ) -> None:
        self._cluster = cluster
        self._registry = registry
        self._store = store
        self._objects = ObjectCatalog(store, wall_ms=now_ms)
        self._source = source
        self._table = admin_table(LINKS, LinkRecord.from_bytes)
        self._changed = asyncio.Event()
        self._records = Records(
            store, [self._table], changed=lambda keys: self._changed.set(), quarantine=quarantine
        )
        self.grants = GrantTables(store, quarantine)
        self._runs: dict[str, tuple[LinkRun, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Run all links, until cancelled."""
        while True:
            try:
                await self._records.load()
                await self.grants.records.load()
                break
            except Retryable:
                await asyncio.sleep(_AGAIN_S)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._records.follow)
                group.start_soon(self.grants.records.follow)
                while True:
                    await self._keep_runs()
                    await self._changed.wait()
                    self._changed.clear()
        finally:
            await self._end(list(self._runs))
            await self._records.aclose()
            await self.grants.records.aclose()

    async def _keep_runs(self) -> None:
        links = {each.name: each for each in self._table}
        await self._end([name for name, (run, _) in self._runs.items() if links.get(name) != run.link])
        for name, link in links.items():
            if name not in self._runs:
                try:
                    run = LinkRun(link, self._source(link), self._registry, self._cluster, self.grants)
                except ClusterError as error:  # a record of a newer build
                    log.warning("link_not_begun", extra={"link": name, "error": error.message})
                    continue
                self._runs[name] = run, asyncio.get_running_loop().create_task(run.run())

    async def _end(self, names: Sequence[str]) -> None:
        tasks = [self._runs.pop(name)[1] for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def facts(self) -> Sequence[LinkFacts]:
        return [run.facts() for run, _ in self._runs.values()]

    def facts_with_logs(self) -> Sequence[LinkFacts]:
        """As `facts`, with the logs of other brokers. O(topics of the cluster)."""
        logs: dict[tuple[str, str], list[str]] = {}
        for record in self._registry.catalog.index.topics() if self._runs else ():
            if (mark := MirrorOf.of(record.settings.options)) is not None:
                logs.setdefault((mark.link, mark.cluster), []).append(record.name)
        return [
            replace(
                each,
                # Mirrors of another source, by a former link of that name, are not copied
                logs=[
                    log
                    for (link, cluster), some in logs.items()
                    if link == each.link and each.cluster in (None, cluster)
                    for log in some
                ],
            )
            for each in self.facts()
        ]

    async def fence(self, link: str, topics: Sequence[str]) -> Mapping[str, int | str]:
        """See `LinkRun.fence`. A link that is not carried out here fences nothing."""
        run = self.find(link)
        if run is None:
            return dict.fromkeys(topics, f"the link {link} is not carried out here")
        return await run.fence(topics)

    async def seal(self, name: TopicName) -> Mapping[str, int]:
        """End the copies into a mirror's logs here, for its fail-over, and return the offset behind each.

        They go on after `SEAL_S`, if the mirror was not opened by then. All that was copied is durable on return.

        Raises:
            InvalidArgument: the topic is no mirror. TopicNotFound.
        """
        found: dict[str, int] = {}
        for topic in self._registry.known_parts(name):
            if topic.link is None:
                raise not_a_mirror(str(name))
            if (run := self.find(topic.link)) is not None:
                await run.seal(topic)
            await self._raise_epoch(topic)
            found[topic.name] = topic.commit
        return found

    async def _raise_epoch(self, topic: Topic) -> None:
        """Write in an epoch above that of the newest copied batch from here on, so that no epoch of the log is another cluster's.

        Batches that are read from objects have lost their epochs, which the catalog has.
        """
        coordinator, end = self._registry.ownership.coordinator, topic.commit
        threads = self._registry.worker_threads
        found = await read_once(topic, end - 1, end, 1, threads) if end > topic.start_offset else ()
        stored = await self._objects.head(topic.topic_id)
        copied = [BatchColumns(each).head.epoch for each in found or ()]
        copied += [] if stored is None else [epoch for epoch, _ in stored.head.epochs]
        source = max(copied, default=0)
        if (epoch := await coordinator.raise_epoch(topic.options, source)) is not None:
            topic.assigned_epoch = epoch

    async def open_mirror(self, name: TopicName, copied_until: Mapping[str, int]) -> None:
        """Make a sealed mirror a topic of this cluster, to which producers write. Idempotent.

        Args:
            copied_until: by log, the offset from which on this cluster writes it. Kept in the topic's lineage, with the
                epoch in which it begins.
        """
        registry = self._registry
        epochs = {log: await self._epoch(log) for log in copied_until}
        records = await registry.catalog.fail_over(name, copied_until, epochs)
        for record in records:
            if (topic := registry.find(record.topic)) is not None:
                registry.policies.apply(topic)

    async def _epoch(self, log: str) -> int:
        """Return the last epoch of a log in this cluster, which another broker may own."""
        return (await epoch_counter(self._store, TopicName.parse(log))).epoch

    def seen(self) -> tuple[tuple[LinkView, ...], Mapping[str, tuple[int, int]]]:
        """Return the links with topics that are not copied, without paused ones, and log → the offsets that the source had
        deleted before they were copied. O(mirrors)."""
        facts = self.facts()
        troubles = (_trouble(each) for each in facts)
        gaps = {
            mirror.topic: mirror.gap for each in facts for mirror in each.mirrors if mirror.gap is not None
        }
        return tuple(each for each in troubles if each is not None), gaps

    def lags(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the messages that each link lacks here, as far as the source reported."""
        for each in self.facts():
            yield (each.link,), sum(mirror.lag_messages or 0 for mirror in each.mirrors)

    def counts(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield how many logs of each link, and topics without a mirror, are in each state here."""
        for each in self.facts():
            states = Counter(mirror.state for mirror in each.mirrors)
            states.update(left.state for left in each.left_out)
            if each.state != COPYING and not each.mirrors:
                states[each.state] += 1  # no mirror shows it
            for state, count in states.items():
                yield (each.link, state), count

    def find(self, name: str) -> LinkRun | None:
        """Return a link as this broker carries it out."""
        found = self._runs.get(name)
        return None if found is None else found[0]


def _trouble(facts: LinkFacts) -> LinkView | None:
    if facts.state == "paused":
        return None
    waiting = [(each.state, each.topic, each.why) for each in facts.mirrors if each.state != COPYING]
    waiting += [
        (each.state, each.topic, each.why)
        for each in facts.left_out
        if each.state not in (LEFT_OUT, FAILED_OVER)
    ]
    if not waiting and facts.state == COPYING:
        return None
    if not waiting:
        waiting = [(facts.state, facts.link, facts.why)]
    return LinkView(
        link=facts.link,
        states=Counter(state for state, _, _ in waiting),
        topics=tuple(topic for _, topic, _ in waiting),
        why=facts.why or next((why for _, _, why in waiting if why), waiting[0][0]),
    )
