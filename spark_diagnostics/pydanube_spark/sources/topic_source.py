"""The data source `danube`: a topic as a table, as a stream, and to write to.

A table is a topic as of the moment of its plan: what is committed in objects, by tasks of some tens of MB, and behind
it the live tail, which the broker gives. A stream's offsets are the next offset of each concrete topic; a micro-batch
is exactly the messages between two such maps, whenever and however often it is read: that is what makes a restart from
a checkpoint neither lose nor repeat any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_storage.objects import StoreOptions
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pydanube_spark.decoding.column import DECODED_ROWS, Decoding
from pydanube_spark.sources.cluster import Located, locate
from pydanube_spark.sources.columns import TOPIC_SCHEMA
from pydanube_spark.sources.decoded import decoding_of, schema_of
from pydanube_spark.sources.extent import Extent, Slice, slices_of, tails_of, within
from pydanube_spark.sources.options import TopicOptions
from pydanube_spark.sources.positions import between, first_offsets
from pydanube_spark.sources.reading import Times, read_slices, read_tail
from pydanube_spark.sources.wanted import Wanted, narrowed, wanted_by

__all__ = ["TopicSource"]

TAIL_MESSAGES: Final = 1 << 20  # of the live tail for one task


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
    """See the module."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = TopicOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        return "danube"

    def schema(self) -> StructType:
        return schema_of(self._parsed) if self._parsed.decode else TOPIC_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._parsed, decoding_of(self._parsed, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self._parsed, decoding_of(self._parsed, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pydanube_spark.sources.writer import TopicWriter

        return TopicWriter(self._parsed, schema, overwrite=overwrite)


class _Reading:
    """What batch and stream share: from extents to tasks, and what a task does."""

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
        found = self._stored(partition)
        if self.decoding is None:
            yield from found
            return
        for batch in found:
            for at in range(0, batch.num_rows, DECODED_ROWS):
                yield self.decoding.added_to(batch.slice(at, DECODED_ROWS))

    def _stored(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, _Cold):
            if partition.store is None:
                return iter(())
            return read_slices(partition.store, partition.value, self.options.topic, partition.times)
        assert isinstance(partition, _Live)
        return read_tail(self.options.broker_url, partition.value, self.options.topic, partition.times)


class _Reader(_Reading, DataSourceReader):
    def __init__(self, options: TopicOptions, decoding: Decoding | None) -> None:
        super().__init__(options, decoding)
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = wanted_by(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        located = locate(self.options)
        extents, times = between(self.options, located)
        wanted = narrowed(self._wanted, times)
        return self.tasks(located, wanted.of(extents), wanted.times)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.rows(partition)


class _StreamReader(_Reading, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return first_offsets(self.options, locate(self.options))

    def latestOffset(self, start: Mapping[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        """The next offset of each concrete topic, or as far as the limit goes; a topic never goes back."""
        latest = {each.topic: each.end for each in locate(self.options).extents}
        begun = start or {}
        latest = {topic: max(end, begun.get(topic, 0)) for topic, end in latest.items()}
        most = getattr(limit, "max_rows", None) or getattr(limit, "maxRows", None)
        return latest if most is None or start is None else _limited(begun, latest, most)

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        most = self.options.max_messages_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        located = locate(self.options)
        extents = []
        for each in located.extents:
            low, high = start.get(each.topic, each.start), end.get(each.topic)
            if high is None or low >= high:
                continue
            if low < each.start:
                raise InvalidArgument(
                    f"{each.topic}: the checkpoint is at offset {low}, and retention has deleted everything below "
                    f"{each.start}. Begin with a new checkpoint, and see what was lost with `danube topics describe`",
                    field="start",
                    value=low,
                    start_offset=each.start,
                )
            extents.append(within(each, low, high))
        return self.tasks(located, extents, Times())

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.rows(partition)

    def commit(self, end: dict[str, int]) -> None:
        """The checkpoint has it: the broker keeps no state for a stream."""

    def stop(self) -> None:
        """Nothing is held between micro-batches."""


def _limited(start: Mapping[str, int], latest: Mapping[str, int], most: int) -> dict[str, int]:
    """At most `most` messages, shared between the topics by what each has; every one that has some gets on."""
    waiting = {topic: end - start.get(topic, 0) for topic, end in latest.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(latest)
    return {
        topic: start.get(topic, 0) + (max(1, count * most // total) if count else 0)
        for topic, count in waiting.items()
    }
