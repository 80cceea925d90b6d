"""The cold tier and the journal, for the admin core (`pydanube_core.cluster_port`)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from pydanube_core.errors import DispatchMismatch, InvalidArgument, ObjectMissing
from pydanube_core.names import TopicName
from pydanube_core.positions import Position, PositionKind
from pydanube_core.refusals import replay_into_itself

from pydanube_broker.long_work import Work
from pydanube_broker.parts import BrokerParts
from pydanube_broker.port.exports import export_path
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_broker.tier.tier import Tier
from pydanube_broker.topics.replay import Replay
from pydanube_broker.topics.topic import Topic, now_ms

_ABORT_DEADLINE_S = 5.0


async def export_range(
    tier: Tier, topic: Topic, *, start: int, end: int, path: Path, file_format: str, work: Work
) -> dict[str, Any]:
    """Write `[start, end)` to `path`. Return {messages, bytes}. If it is cancelled or fails, there is no file.

    Messages that are not in the cold tier yet are tiered first, so that the file holds everything acknowledged before
    the call. Each object is looked up in the catalog when its turn comes, so a compaction in between changes nothing.
    """
    child = tier.child
    token = secrets.token_hex(8)
    await child.call(
        "export_begin",
        {
            "token": token,
            "path": str(path),
            "format": file_format,
            "partition": topic.options.partition,
            "meta": {
                "cluster": tier.cluster,
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "start": start,
                "end": end,
            },
        },
    )
    try:
        await tier.tiered_up_to(topic, end)
        work.total = end - start
        at = start
        while at < end:
            entry = await tier.catalog.find(topic.topic_id, at)
            if entry is None:
                raise ObjectMissing(
                    f"the catalog has no object for offsets {at} to {end} of {topic.name}: see `danube objects verify`",
                    topic=topic.name,
                    offset=at,
                )
            if entry.start < end:
                tier.room.check(entry.bytes, f"the export of {topic.name}", local=path.parent)
                await child.call(
                    "export_add",
                    {
                        **tier.cold.where(topic.topic_id, entry),
                        "token": token,
                        "start": at,
                        "end": min(end, entry.end),
                    },
                )
            at = min(end, entry.end)
            work.done = at - start
        said, _ = await child.call("export_finish", {"token": token})
    except BaseException:
        with anyio.move_on_after(_ABORT_DEADLINE_S, shield=True):
            await child.call("export_abort", {"token": token})
        raise
    return said


class ObjectsPart:
    """The methods of `BrokerPort` about objects and the journal. Topics are concrete ones unless stated otherwise."""

    _broker: BrokerParts

    def _log(self, topic: str) -> Topic:
        return self._broker.registry.known(TopicName.parse(topic))

    async def topic_ranges(
        self, topic: str, *, start: str | None, until: str | None
    ) -> Mapping[str, tuple[int, int]]:
        """Return concrete topic → [start, end) between two positions, also for a partitioned topic. None: begin, end.
        Raises `InvalidArgument`: no position, or one beyond the end.
        """
        found = {}
        for part in self._broker.registry.known_parts(TopicName.parse(topic)):
            first = part.start_offset if start is None else await _offset(part, start, "from")
            end = part.commit if until is None else await _offset(part, until, "until")
            found[part.name] = (first, max(first, end))
        return found

    # -- objects ---------------------------------------------------------------------------------------------

    async def objects(self, topic: str, *, start: int, end: int | None) -> Sequence[Mapping[str, Any]]:
        return await self._broker.tier.objects(self._log(topic), start=start, end=end)

    async def verify_objects(self, topic: str, *, start: int, end: int | None) -> Mapping[str, Any]:
        tier, log = self._broker.tier, self._log(topic)
        upkeep = tier.enabled()
        with tier.long_work.begun("objects.verify", log.name, unit="objects", now_ms=now_ms()) as work:
            work.total = len(await tier.objects(log, start=start, end=end))
            return await upkeep.verify(log, start=start, end=end, work=work)

    async def flush_objects(self, topic: str) -> int:
        tier, log = self._broker.tier, self._log(topic)
        tier.enabled()
        start, end = log.state.needed_offset, log.commit
        with tier.long_work.begun("objects.flush", log.name, unit="offsets", now_ms=now_ms()) as work:
            work.total = max(0, end - start)
            await tier.tiered_up_to(log, end)
            work.done = work.total
        return work.done

    async def compact_objects(self, topic: str) -> int:
        tier, log = self._broker.tier, self._log(topic)
        upkeep = tier.enabled()
        with tier.long_work.begun("objects.compact", log.name, unit="objects", now_ms=now_ms()) as work:
            merged = await upkeep.compact(log, work=work)
        await tier.note(log)
        return merged

    async def orphans(self, topic: str) -> Sequence[Mapping[str, Any]]:
        tier, log = self._broker.tier, self._log(topic)
        tier.enabled()
        return tier.shown(await tier.collector.orphans(log, grace_ms=0))

    async def collect_objects(self, topic: str) -> Sequence[Mapping[str, Any]]:
        tier, log = self._broker.tier, self._log(topic)
        tier.enabled()
        with tier.long_work.begun("objects.collect", log.name, unit="objects", now_ms=now_ms()) as work:
            return tier.shown(await tier.collector.collect(log, grace_ms=0, work=work))

    async def export_objects(
        self, topic: str, *, start: int, end: int, to: str, file_format: str, any_folder: bool
    ) -> Mapping[str, Any]:
        """Write a range to a file on this machine: {path, messages, bytes}.

        Args:
            any_folder: whether `to` may be a path. Otherwise it is a bare name, below `exports/` in the data directory.
        """
        tier, log = self._broker.tier, self._log(topic)
        tier.enabled()
        path = export_path(self._broker.data_dir.path, to, any_folder=any_folder)
        with tier.long_work.begun("objects.export", log.name, unit="offsets", now_ms=now_ms()) as work:
            said = await export_range(
                tier, log, start=start, end=end, path=path, file_format=file_format, work=work
            )
        return {"path": str(path), **said}

    # -- replay ----------------------------------------------------------------------------------------------

    async def replay_topic(
        self, topic: str, *, ranges: Mapping[str, tuple[int, int]], to: str, without: Sequence[str] = ()
    ) -> Sequence[Mapping[str, Any]]:
        """Copy ranges of a topic's parts into another topic, created if it does not exist.

        Args:
            without: names of attributes that copies do not keep.

        Returns:
            {topic, messages, first_offset, last_offset} of each concrete topic that got some.
        """
        broker = self._broker
        source, target = TopicName.parse(topic), TopicName.parse(to)
        if target.base == source.base:
            raise replay_into_itself(str(target))
        logs = [self._log(name) for name in ranges]
        broker.health.check_publish()
        _, placed = await broker.access.parts_to_write(COLD_CALL, target, partitions=0, strategy="reliable")
        for part in placed:
            if part.dispatch_strategy != "reliable":
                raise DispatchMismatch(
                    f"{part.name} is non_reliable and would keep nothing: replay into a reliable topic",
                    field="to",
                    value=to,
                )
        copied = []
        with broker.tier.long_work.begun(
            "topics.replay", str(source), unit="messages", now_ms=now_ms()
        ) as work:
            for number, log in enumerate(logs):
                replay = Replay(
                    log,
                    placed[number % len(placed)].topic,
                    broker.engine.worker_threads,
                    broker.letters.begin_copies,
                    frozenset(without),
                )
                await replay.run(*ranges[log.name], work)
                copied.append(replay.copied)
        return [
            {
                "topic": each.topic,
                "messages": each.messages,
                "first_offset": each.first_offset,
                "last_offset": each.last_offset,
            }
            for each in copied
            if each.messages
        ]

    # -- the journal -----------------------------------------------------------------------------------------

    async def journal(self) -> Mapping[str, Any]:
        journal, hub = self._broker.journal, self._broker.hub
        now = journal.statistics()
        sealed = journal.sealed()
        held: list[dict[str, Any]] = []
        for topic_id, run in sealed[0][2].items() if sealed else ():
            topic = hub.topics.get(topic_id)
            if topic is not None and run.end > topic.state.needed_offset:
                held.append({"topic": topic.name, "from": topic.state.needed_offset, "until": run.end})
        return {
            "bytes": now.bytes,
            "segments": now.segments,
            "next_lsn": now.next_lsn,
            "durable_lsn": now.durable_lsn,
            "read_only": now.read_only,
            "sealed": [
                {"base_lsn": base, "bytes": size, "topics": len(runs)} for base, size, runs in sealed[:100]
            ],
            "held_by": held[:100],
        }


async def _offset(topic: Topic, text: str, field: str) -> int:
    """Return the offset of a position. An `until` beyond the end is the end. Raises `InvalidArgument`."""
    position = Position.parse(text, now_ms=now_ms(), field=field)
    if position.kind is PositionKind.OFFSET and (field == "until" or position.value > topic.commit):
        if field == "until":
            return min(position.value, topic.commit)
        raise InvalidArgument(
            f"{field}: offset {position.value} is beyond the end of {topic.name}: {topic.commit} is next",
            field=field,
            value=text,
            next_offset=topic.commit,
        )
    await topic.prepare(position)
    return topic.resolve(position)
