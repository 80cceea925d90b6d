"""The data source `danube`: a topic as a table, as a stream, and to write to.

A table is a topic as of the moment of its plan: the committed objects, in tasks of some tens of MB, and after them the
live tail from the broker. A stream's offsets are the next offset of each concrete topic. A micro-batch has exactly the
messages between two such maps, at each time it is read, so a restart from a checkpoint loses and repeats none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydanube.retry import Retry
from pydanube_core.errors import InvalidArgument, ObjectMissing, TopicNotFound
from pydanube_storage.objects import StoreOptions
from pydanube_storage.topics.decoding.column import DECODED_ROWS, Decoding
from pydanube_storage.topics.extent import (
    Extent,
    Slice,
    check_covered,
    reached_by,
    slices_of,
    stored_bytes,
    tails_of,
    within,
)
from pydanube_storage.topics.located import Located, locate
from pydanube_storage.topics.positions import between, first_offsets
from pydanube_storage.topics.reading import Times, read_slices, read_tail
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pydanube_spark.sources.columns import TOPIC_SCHEMA
from pydanube_spark.sources.decoded import decoding_of, schema_of
from pydanube_spark.sources.filter_bounds import FilterBounds, narrowed, wanted_by
from pydanube_spark.sources.options import TopicOptions

#: key for the topic's id in a stream's offsets, beside the topics, whose names begin with a slash
TOPIC_ID: Final = "topic_id"
log = logging.getLogger("pydanube.spark")

TAIL_MESSAGES: Final = 1 << 20  # of the live tail per task
PATIENCE: Final = Retry(max_elapsed_s=60.0, initial_s=0.2, max_delay_s=5.0)  # for calls of a stream


class _Cold(InputPartition):
    def __init__(self, slices: tuple[Slice, ...], store: StoreOptions | None, times: Times) -> None:
        super().__init__(slices)
        self.store = store
        self.times = times


class _Live(InputPartition):
    def __init__(self, extent: Extent, times: Times) -> None:
        super().__init__(extent)
        self.times = times


class TopicSource(DataSource):
    """The Spark source and sink `danube`. See the module."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = TopicOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        return "danube"

    def _check_topic(self) -> None:
        if not self._parsed.topic and self._parsed.pattern is None:
            raise InvalidArgument('name a topic: .option("topic", "orders")', field="topic", value=None)

    def schema(self) -> StructType:
        self._check_topic()
        return schema_of(self._parsed) if self._parsed.decode else TOPIC_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_topic()
        return _Reader(self._parsed, decoding_of(self._parsed, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check_topic()
        return _StreamReader(self._parsed, decoding_of(self._parsed, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pydanube_spark.sources.writer import TopicWriter

        return TopicWriter(self._parsed, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pydanube_spark.sources.writer import TopicStreamWriter

        return TopicStreamWriter(self._parsed, schema)


class _Reading:
    """The base of batch and stream readers: tasks from extents, and the work of a task."""

    def __init__(self, options: TopicOptions, decoding: Decoding | None) -> None:
        self.options = options
        self.decoding = decoding

    def tasks(self, located: Located, extents: Sequence[Extent], times: Times) -> list[InputPartition]:
        cold = slices_of(extents, split_bytes=self.options.split_bytes)
        made: list[InputPartition] = [_Cold(each, located.store, times) for each in cold]
        if located.live:
            made += [_Live(each, times) for each in tails_of(extents, messages=TAIL_MESSAGES)]
        return made or [_Cold((), None, times)]

    def rows(self, partition: InputPartition) -> Iterator[Any]:
        for part, found in self._parts(partition):
            if self.decoding is None:
                yield from self.checked(part, found)
                continue
            for batch in self.checked(part, found):
                for at in range(0, batch.num_rows, DECODED_ROWS):
                    yield self.decoding.added_to(batch.slice(at, DECODED_ROWS))

    def checked(self, part: Slice | Extent, found: Iterator[Any]) -> Iterator[Any]:
        """Return what was found of a part, or handle the error that ended it."""
        return found

    def on_gone(self, error: InvalidArgument) -> None:
        """Handle messages that were deleted before a task read them."""
        raise error

    def _parts(self, partition: InputPartition) -> Iterator[tuple[Slice | Extent, Iterator[Any]]]:
        if isinstance(partition, _Live):
            tail = read_tail(self.options.calls, partition.value, partition.times, on_gone=self.on_gone)
            yield partition.value, tail
            return
        assert isinstance(partition, _Cold)
        if partition.store is not None:
            for part in partition.value:
                yield part, read_slices(partition.store, (part,), partition.times)


class _Reader(_Reading, DataSourceReader):
    def __init__(self, options: TopicOptions, decoding: Decoding | None) -> None:
        super().__init__(options, decoding)
        self._wanted = FilterBounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = wanted_by(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        located = locate(self.options.query)
        extents, times = between(self.options.query, located)
        wanted = narrowed(self._wanted, times)
        return self.tasks(located, wanted.of(extents), wanted.times)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.rows(partition)


class _StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets: concrete topic → next offset, and the topic's id, to detect a later topic of the same name."""

    def __init__(self, options: TopicOptions, decoding: Decoding | None) -> None:
        super().__init__(options, decoding)
        self._target: dict[str, int] | None = None  # the end of the query with the trigger availableNow
        self._told: set[str] = set()  # concrete topics whose loss was logged
        self._few_since: float | None = None  # since when fewer messages than the minimum of a batch wait

    def initialOffset(self) -> dict[str, Any]:
        located = locate(self.options.query)  # without retries, because a new query may have a wrong address
        return self._said(first_offsets(self.options.query, located), located)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the next offset of each concrete topic, or the offset within the limit. Offsets never decrease."""
        located = self._located()
        checkpoint = self._begun(start or {}, located)
        self._check_gone({**dict.fromkeys(self._target or {}, 0), **_offsets(start or {})}, {}, located)
        # Deleted messages do not count for the minimum and the limits, also in a topic that has just joined.
        begun = {each.topic: max(checkpoint.get(each.topic, 0), each.start) for each in located.extents}
        latest = {each.topic: max(each.end, begun[each.topic]) for each in located.extents}
        if self._target is not None:  # later messages and partitions are for the next query
            latest = {
                each.topic: max(begun[each.topic], min(each.end, self._target.get(each.topic, 0)))
                for each in located.extents
            }
        elif start is not None and self._too_few(begun, latest):
            return dict(start)
        most = getattr(limit, "max_rows", None) or getattr(limit, "maxRows", None)
        if most is not None and start is not None:
            latest = _limited(begun, latest, most)
        if self.options.max_bytes_per_batch is not None and start is not None:
            latest = _limited_bytes(located.extents, begun, latest, self.options.max_bytes_per_batch)
        return self._said(latest, located)

    def _said(self, offsets: Mapping[str, int], located: Located) -> dict[str, Any]:
        """Return offsets in the form of a checkpoint, with the id of the topic, or of each of several topics."""
        ids: Any = dict(located.topic_ids)
        if ids and not self.options.several:
            (ids,) = ids.values()
        return {**offsets, TOPIC_ID: ids} if ids else {**offsets}

    def _begun(self, checkpoint: Mapping[str, Any], located: Located) -> dict[str, int]:
        """Return the offsets of a checkpoint, without those of recreated topics if data loss is permitted.

        Raises:
            InvalidArgument: a topic was recreated and loss is not permitted. The first messages of the new topic would
                count as already read.
        """
        offsets = _offsets(checkpoint)
        again = _made_again(checkpoint, located)
        for topic in again:
            unread = ", ".join(
                f"{each.topic} from offset {offsets[each.topic]} on"
                for each in located.extents
                if each.shown == topic and each.topic in offsets
            )
            if self.options.fail_on_data_loss:
                raise InvalidArgument(
                    f"{topic} is not the topic of the checkpoint: that one was deleted, and another of its name was made. Messages of the "
                    f"former in {unread or topic} were not read. Begin with a new checkpointLocation",
                    field="checkpointLocation",
                    value=checkpoint.get(TOPIC_ID),
                    topic=topic,
                    topic_id=located.topic_ids.get(topic),
                )
            if topic not in self._told:
                log.warning(
                    "%s was made again. The stream begins with its first message. Messages of the former in %s were not read",
                    *(topic, unread or topic),
                )
            self._told.add(topic)
        for each in located.extents:
            if each.shown in again:
                offsets.pop(each.topic, None)
        return offsets

    def _located(self) -> Located:
        query = self.options.query
        if query.broker is not None:
            query = replace(query, broker=replace(self.options.calls, retry=PATIENCE))
        return locate(query)

    def _check_gone(self, begun: Mapping[str, int], ends: Mapping[str, int], located: Located) -> None:
        """Check that each concrete topic of the checkpoint is still read. Log the others if loss is permitted.

        Args:
            begun: for each topic, the offset of its first unread message.
            ends: for each topic, the offset after the last message of a batch. Other topics are unread without an end.

        Raises `TopicNotFound` if messages were not read and never will be.
        """
        there = {each.topic for each in located.extents}
        for topic, low in begun.items():
            high = ends.get(topic)
            if topic in there or high == low:
                continue
            lost = (
                f"its messages from offset {low} on" if high is None else f"its messages {low} to {high - 1}"
            )
            if not self.options.fail_on_data_loss:
                if topic not in self._told:
                    log.warning("%s is not there any more; %s were not read", topic, lost)
                self._told.add(topic)
                continue
            raise TopicNotFound(
                f"{topic} was deleted, or the list or pattern of topics was changed: {lost} were not read. Restore it with "
                "`danube changes undo`, or give the former list or pattern, and start the query again, or set "
                "fail_on_data_loss to false to go on without them",
                field="fail_on_data_loss",
                value=True,
                topic=topic,
                start_offset=low,
                end_offset=high,
            )

    def _too_few(self, begun: Mapping[str, int], latest: Mapping[str, int]) -> bool:
        """Return whether a batch waits, because too few messages are available."""
        least = self.options.min_messages_per_batch
        waiting = sum(end - begun[topic] for topic, end in latest.items())
        if least is None or not 0 < waiting < least:
            self._few_since = None
            return False
        now_s = time.monotonic()
        self._few_since = now_s if self._few_since is None else self._few_since
        if now_s - self._few_since < self.options.max_trigger_delay_s:
            return True
        self._few_since = None
        return False

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end at the topic's current end, in batches within the limits."""
        self._target = {each.topic: each.end for each in self._located().extents}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the topic, for the query's progress."""
        located = self._located()
        return self._said({each.topic: each.end for each in located.extents}, located)

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        most = self.options.max_messages_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        located = self._located()
        begun, ends = self._begun(start, located), self._begun(end, located)
        self._check_gone({topic: begun.get(topic, 0) for topic in ends}, ends, located)
        extents = []
        for each in located.extents:
            low, high = begun.get(each.topic, each.start), ends.get(each.topic)
            if high is None or low >= high:
                continue
            if low < each.start and not self.options.fail_on_data_loss:
                log.warning("%s: messages %d to %d are gone and were not read", each.topic, low, each.start)
            elif low < each.start:
                raise InvalidArgument(
                    f"{each.topic}: the checkpoint is at offset {low}, and retention has deleted everything below "
                    f"{each.start}. Begin with a new checkpoint. `danube topics describe` shows the range that is left",
                    field="start",
                    value=low,
                    start_offset=each.start,
                )
            extents.append(within(each, low, high))
            if self.options.fail_on_data_loss:
                check_covered(extents[-1], live=located.live)
        return self.tasks(located, extents, Times())

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.rows(partition)

    def checked(self, part: Slice | Extent, found: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches. A topic that is deleted meanwhile is named, and passed over if loss is permitted."""
        try:
            yield from found
        except (
            TopicNotFound,
            ObjectMissing,
            InvalidArgument,
        ) as error:  # the last: beyond the end of a later topic
            if not self._is_deleted(part):
                raise
            lost = f"{part.topic} was deleted while its messages {part.start} to {part.end - 1} were read: not all were read"
            if self.options.fail_on_data_loss:
                raise TopicNotFound(
                    f"{lost}. Restore it with `danube changes undo` and start the query again, or set fail_on_data_loss to "
                    "false to go on without them",
                    field="fail_on_data_loss",
                    value=True,
                    topic=part.topic,
                    start_offset=part.start,
                    end_offset=part.end,
                ) from error
            log.warning("%s", lost)

    def on_gone(self, error: InvalidArgument) -> None:
        if self.options.fail_on_data_loss:
            raise error
        log.warning("%s", error)

    def _is_deleted(self, part: Slice | Extent) -> bool:
        """Return whether the topic of a part is not there any more, or a later one of its name is."""
        try:
            now = locate(replace(self.options.query, topics=(part.shown,), pattern=None))
        except TopicNotFound:
            return True
        return all(each.topic != part.topic or each.end < part.end for each in now.extents)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the checkpoint has the offsets, and the broker keeps no state for a stream."""

    def stop(self) -> None:
        """Do nothing: no resource is held between micro-batches."""


def _offsets(said: Mapping[str, Any]) -> dict[str, int]:
    return {topic: offset for topic, offset in said.items() if topic != TOPIC_ID}


def _made_again(checkpoint: Mapping[str, Any], located: Located) -> set[str]:
    """Return the names of deleted topics that other topics have now."""
    known = checkpoint.get(TOPIC_ID)
    if not isinstance(known, Mapping):
        known = {} if known is None else dict.fromkeys(located.topic_ids, str(known))
    again = {topic for topic, number in located.topic_ids.items() if known.get(topic, number) != number}
    if located.live:
        read = _offsets(checkpoint)
        again |= {each.shown for each in located.extents if each.end < read.get(each.topic, 0)}
    return again


def _limited(start: Mapping[str, int], latest: Mapping[str, int], most: int) -> dict[str, int]:
    """Limit to `most` messages, in proportion to each topic's. Every topic with messages advances."""
    waiting = {topic: end - start[topic] for topic, end in latest.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(latest)
    return {
        topic: start[topic] + (max(1, count * most // total) if count else 0)
        for topic, count in waiting.items()
    }


def _limited_bytes(
    extents: Sequence[Extent], start: Mapping[str, int], latest: Mapping[str, int], most: int
) -> dict[str, int]:
    """Limit to about `most` stored bytes, in proportion to each topic's. Every topic with messages advances."""
    spans = [(each, start[each.topic], latest[each.topic]) for each in extents]
    total = sum(stored_bytes(*span) for span in spans)
    if total <= most:
        return dict(latest)
    return {**latest, **{each.topic: reached_by(each, low, high, most / total) for each, low, high in spans}}
