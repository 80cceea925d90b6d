"""The work of the tier's process: write objects from journal positions, read batches from objects, query the store.

Blocking functions over one `ObjectStore`, called by `process` from a few threads. An object counts only if the
catalog lists it, and only the broker writes the catalog. Arguments and results are JSON values. Bytes go beside them.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydanube_core.batch import BROKER_PART_BYTES, read_broker_part
from pydanube_core.errors import (
    ChecksumMismatch,
    ClusterError,
    CorruptJournal,
    CorruptObject,
    InvalidArgument,
    ObjectMissing,
    StoreUnavailable,
)
from pydanube_core.kill_steps import reached
from pydanube_core.recent import RecentDict
from pydanube_storage.objects import (
    ObjectName,
    ObjectStore,
    OwnerMark,
    make_mark,
    newest_mark,
    store_identity,
)
from pydanube_storage.parquet import Meta, ObjectReader, ObjectWriter, WrittenObject, batches_of
from pydanube_storage.parquet.decode import DecodedBatch
from pydanube_storage.parquet.export import ExportWork
from pydanube_storage.parquet.read import Expected, digest_of

from pydanube_broker.chain.store import names_below, read_object
from pydanube_broker.subscription.batch_columns import rest_of
from pydanube_broker.telemetry.work import TelemetryWork
from pydanube_broker.tier.fragments import FragmentWork
from pydanube_broker.tier.messages import pack_batches
from pydanube_broker.tier.steps import TierStep
from pydanube_broker.tier.topic_reports_work import TopicReportsWork

Answer: TypeAlias = tuple[dict[str, Any], bytes]
READ_BYTES: Final = 4 << 20  # of a journal segment in one read
GAP_BYTES: Final = 32 << 10  # reading on costs less than another read
_SIZE: Final = 0xFFFFFFFF
_OPEN_OBJECTS: Final = 32
_DELETE_FAILURES: Final = 3
DECODED_BYTES: Final = 32 << 20  # of row groups, 8 to 16 MB each in a full object
IDLE_S: Final = 60.0  # a reader takes the pieces of a group within seconds


class RowGroups:
    """Decoded row groups that readers may go on with, by object and index. Bounded in bytes, but the newest stays.

    A reader takes a group in pieces, so each is needed several times. The least recently used one is dropped first.
    Times are seconds of one monotonic clock.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        # (batches, bytes, time of the last use), least recently used first
        self._groups: OrderedDict[tuple[str, int], tuple[Sequence[DecodedBatch], int, float]] = OrderedDict()
        self.used_bytes = 0

    def find(self, key: str, index: int, now_s: float) -> Sequence[DecodedBatch] | None:
        found = self._groups.pop((key, index), None)
        if found is None:
            return None
        self._groups[key, index] = (*found[:2], now_s)
        return found[0]

    def add(self, key: str, index: int, batches: Sequence[DecodedBatch], now_s: float) -> None:
        self._drop((key, index))
        size = sum(len(each.data) for each in batches)
        self._groups[key, index] = batches, size, now_s
        self.used_bytes += size
        while self.used_bytes > self._limit and len(self._groups) > 1:
            self._drop(next(iter(self._groups)))

    def release(self, now_s: float) -> None:
        """Drop the groups that were not used for `IDLE_S`."""
        while self._groups and next(iter(self._groups.values()))[2] < now_s - IDLE_S:
            self._drop(next(iter(self._groups)))

    def forget(self, key: str) -> None:
        """Drop the groups of a deleted object."""
        for place in [each for each in self._groups if each[0] == key]:
            self._drop(place)

    def _drop(self, place: tuple[str, int]) -> None:
        self.used_bytes -= self._groups.pop(place, ((), 0, 0.0))[1]


class TierWork:
    """Every public method is a call of the broker: `name(arguments, blob) → (result, blob)`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._readers: RecentDict[str, tuple[threading.Lock, ObjectReader]] = RecentDict(_OPEN_OBJECTS)
        self.row_groups = RowGroups(DECODED_BYTES)
        self._timer: threading.Timer | None = None
        self._exports = ExportWork(store)
        for left in store.spool.iterdir():  # by a child that died
            if left.is_file():  # a folder is another broker's spool
                left.unlink(missing_ok=True)

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {
            "flush": self._spooling(self.flush),
            "read": self.read,
            "time": self.time,
            "when": self.when,
            "merge": self._spooling(self.merge),
            "delete": self.delete,
            "list": self.list,
            "check": self.check,
            "facts": self.facts,
            "owner_newest": self.owner_newest,
            "owner_make": self.owner_make,
            "store_identity": self.store_identity,
            "object_create": self.object_create,
            "object_names": self.object_names,
            "object_delete": self.object_delete,
            "export_begin": self._exports.begin,
            "export_add": self._exports.add,
            "export_finish": self._exports.finish,
            "export_abort": self._exports.abort,
            **TopicReportsWork(self._store).calls(),
            **FragmentWork(self._store).calls(),
            **TelemetryWork(self._store).calls(),
        }

    def object_create(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Create an object, or find it with this content: an earlier attempt has made it. Never changes one."""
        key, data = arguments["key"], bytes(blob)
        made = self._store.create(key, data) or read_object(self._store, key, None) == data
        return {"made": made}, b""

    def object_names(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        return {"names": names_below(self._store, arguments["folder"])}, b""

    def object_delete(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        self._store.delete(arguments["key"])
        return {}, b""

    def _spooling(
        self, call: Callable[[dict[str, Any], bytes], Answer]
    ) -> Callable[[dict[str, Any], bytes], Answer]:
        """Wrap a call that first writes an object to the spool: errors of that disk are raised as the store's."""

        def spooling(arguments: dict[str, Any], blob: bytes) -> Answer:
            try:
                return call(arguments, blob)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                cause = error.strerror or str(error)
                remedy = "free space there" if full else "check the disk behind it"
                raise StoreUnavailable(
                    f"the object {arguments['key']} could not be written to {self._store.spool} on its way to "
                    f"{self._store.url} ({cause}): {remedy}. It is tried again",
                    store=self._store.url,
                    key=arguments["key"],
                    cause=cause,
                    remedy=remedy,
                ) from error

        return spooling

    # -- out -------------------------------------------------------------------------------------------------

    def flush(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Write batches of the journal as one object, upload it, and read it back.

        Args:
            arguments: `key`, `meta` (`Meta`), `segments`: [path, number of places] each.
            blob: the places, uint64 position << 32 | bytes, ascending by offset.
        """
        meta = Meta(**arguments["meta"])
        places = array("Q", blob)
        at, last = 0, meta.start
        spooled = self._store.spool / (arguments["key"].rpartition("/")[2] + ".tmp")
        with ObjectWriter(spooled, meta) as writer:
            for path, count in arguments["segments"]:
                for position, stored in bodies(Path(path), places[at : at + count]):
                    data: bytes | memoryview = stored
                    if last == meta.start and read_broker_part(stored[:BROKER_PART_BYTES]).base_offset < last:
                        data = rest_of(stored, last)  # the topic was truncated within its first batch
                        if not data:
                            continue
                    try:
                        base, end = writer.add(data)
                    except (ChecksumMismatch, InvalidArgument) as error:
                        raise _damaged(path, position, error.message) from error
                    if base < last or end > meta.end:
                        raise _damaged(path, position, f"offsets {base} to {end} do not belong there")
                    last = end
                at += count
            written = writer.finish()
        reached(TierStep.ENCODED)
        self._store.put(arguments["key"], spooled)
        reached(TierStep.UPLOADED)
        self._verify(arguments["key"], written)
        reached(TierStep.VERIFIED)
        return _facts(written), b""

    def _verify(self, key: str, written: WrittenObject) -> None:
        """Read the object back from the store and check length, footer, hash. The journal is trimmed only after this."""
        expected = Expected(
            bytes=written.bytes, footer_bytes=written.footer_bytes, footer_crc=written.footer_crc
        )
        reader = ObjectReader(self._store, key, expected)
        digest = digest_of(self._store, key, written.bytes)
        if reader.meta != written.meta or digest != written.digest:
            raise CorruptObject(
                f"object {key} in {self._store.url} differs from the upload. It is uploaded again under another name",
                store=self._store.url,
                key=key,
                cause="upload",
            )

    def merge(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Write neighbours as one object: `key`, `meta`, `sources`: [{key, bytes, footer_bytes, footer_crc}]."""
        meta = Meta(**arguments["meta"])
        spooled = self._store.spool / (arguments["key"].rpartition("/")[2] + ".tmp")
        last = arguments["sources"][-1]
        newest = ObjectReader(self._store, last["key"], _expected(last)).meta
        meta = replace(meta, subscriptions=newest.subscriptions, schemas=newest.schemas)
        with ObjectWriter(spooled, meta) as writer:
            for source in arguments["sources"]:
                reader = ObjectReader(self._store, source["key"], _expected(source))
                for index in range(reader.row_groups):
                    writer.add_table(reader.read_row_group(index), reader.meta.epochs)
            written = writer.finish()
        self._store.put(arguments["key"], spooled)
        reached(TierStep.MERGED)
        self._verify(arguments["key"], written)
        return _facts(written), b""

    def delete(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Delete the objects `keys`. Return the deleted ones, and the first error.

        One failure does not stop the others. After `_DELETE_FAILURES` failures the rest is not tried, because the store
        is likely away.
        """
        deleted: list[str] = []
        error: ClusterError | None = None
        failed = 0
        for key in arguments["keys"]:
            try:
                self._store.delete(key)
            except StoreUnavailable as each:
                error, failed = error or each, failed + 1
                if failed == _DELETE_FAILURES:
                    break
                continue
            deleted.append(key)
            with self._lock:
                self._readers.pop(key, None)
                self.row_groups.forget(key)
            reached(TierStep.DELETED)
        return {"deleted": deleted, "error": None if error is None else error.to_dict()}, b""

    # -- back ------------------------------------------------------------------------------------------------

    def read(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Read batches of one row group from `offset` on, about `max_bytes`, and the offsets that they cover."""
        key, offset, limit = arguments["key"], arguments["offset"], arguments["max_bytes"]
        lock, reader = self._reader(key, _expected(arguments))
        with lock:
            index = reader.row_group_at(offset)
            if index == reader.row_groups:
                return {"start": offset, "end": reader.meta.end}, pack_batches([])
            batches = self._row_group(reader, index, arguments["epoch"])
            group_end = reader.row_group_end(index)
        first = bisect_right(batches, offset, key=lambda batch: batch.end)
        taken, size = first, 0
        while taken < len(batches) and (taken == first or size + len(batches[taken].data) <= limit):
            size += len(batches[taken].data)
            taken += 1
        end = batches[taken].base if taken < len(batches) else group_end
        chosen = batches[first:taken]
        return {"start": offset, "end": end}, pack_batches(
            [(each.base, each.end, each.count, each.append_time_ms, each.data) for each in chosen]
        )

    def _reader(self, key: str, expected: Expected) -> tuple[threading.Lock, ObjectReader]:
        with self._lock:
            if (found := self._readers.use(key)) is not None:
                return found
        opened = (threading.Lock(), ObjectReader(self._store, key, expected))
        with self._lock:
            self._readers[key] = opened
        return opened

    def _row_group(self, reader: ObjectReader, index: int, epoch: int) -> Sequence[DecodedBatch]:
        with self._lock:
            if (found := self.row_groups.find(reader.key, index, time.monotonic())) is not None:
                return found
        found = batches_of(reader.read_row_group(index), epoch=epoch)
        with self._lock:
            self.row_groups.add(reader.key, index, found, time.monotonic())
            self._release_later()
        return found

    def _release_later(self) -> None:
        """Release idle row groups from time to time while there are any. The caller holds the lock."""
        if self._timer is None and self.row_groups.used_bytes:
            self._timer = threading.Timer(IDLE_S / 4, self._release)
            self._timer.daemon = True
            self._timer.start()

    def _release(self) -> None:
        with self._lock:
            self._timer = None
            self.row_groups.release(time.monotonic())
            self._release_later()

    def time(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the first offset of the object appended at or after `time_ms`."""
        lock, reader = self._reader(arguments["key"], _expected(arguments))
        with lock:
            return {"offset": reader.offset_at_time(arguments["time_ms"])}, b""

    def when(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return append times from the first message at or after `offset` on: {points: [[offset, ms]]}, maybe none."""
        lock, reader = self._reader(arguments["key"], _expected(arguments))
        with lock:
            return {"points": reader.times_from(arguments["offset"], arguments["points"])}, b""

    # -- maintenance -----------------------------------------------------------------------------------------

    def list(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """List the tier's objects below `folder`: [{key, bytes, modified_ms}]."""
        found = [
            {"key": fact.key, "bytes": fact.bytes, "modified_ms": fact.modified_ms}
            for fact in self._store.list(arguments["folder"])
            if ObjectName.parse(fact.key) is not None
        ]
        return {"objects": found}, b""

    def check(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Compare an object with the catalog: {state: ok | missing | damaged, why}. Whole with a `digest`, else its footer."""
        key = arguments["key"]
        try:
            reader = ObjectReader(self._store, key, _expected(arguments))
            digest = arguments.get("digest")
            if digest is not None and digest_of(self._store, key, arguments["bytes"], like=digest) != digest:
                return {"state": "damaged", "why": f"the hash of {key} differs"}, b""
            if reader.messages != arguments["messages"]:
                return {"state": "damaged", "why": f"{key} has {reader.messages} messages"}, b""
        except ObjectMissing as error:
            return {"state": "missing", "why": error.message}, b""
        except CorruptObject as error:
            return {"state": "damaged", "why": error.message}, b""
        return {"state": "ok", "why": ""}, b""

    def facts(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the facts for a catalog entry of the unlisted object `key`."""
        return _facts(ObjectReader(self._store, arguments["key"]).described()), b""

    def store_identity(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the store's id, or give it one: `cluster`, `proposed` → {store_id}."""
        found = store_identity(self._store, arguments["cluster"], arguments["proposed"])
        return {"store_id": found}, b""

    def owner_newest(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Return the newest owner's mark: `cluster`, `scope` → {mark}."""
        mark = newest_mark(self._store, arguments["cluster"], arguments["scope"])
        return {"mark": None if mark is None else asdict(mark)}, b""

    def owner_make(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Become the owner: `cluster`, `scope`, `mark` → {mark of the owner, ahead_s: this clock minus the store's}."""
        cluster, scope = arguments["cluster"], arguments["scope"]
        now = make_mark(self._store, cluster, OwnerMark(**arguments["mark"]), scope)
        now_ms = time.time() * 1000
        stamped_ms = max((fact.modified_ms or 0 for fact in self._store.list(f"{cluster}/owner")), default=0)
        return {"mark": asdict(now), "ahead_s": (now_ms - stamped_ms) / 1000 if stamped_ms else None}, b""


def _facts(written: WrittenObject) -> dict[str, Any]:
    facts = asdict(written)
    facts["epochs"] = written.meta.epochs
    del facts["meta"]
    return facts


def _expected(said: Mapping[str, Any]) -> Expected:
    return Expected(bytes=said["bytes"], footer_bytes=said["footer_bytes"], footer_crc=said["footer_crc"])


def bodies(path: Path, places: Sequence[int]) -> Iterator[tuple[int, memoryview]]:
    """Yield (position, body) for each place in a journal segment, reading neighbours together."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _damaged(str(path), 0, str(error)) from error
    try:
        for first, last in near(places):
            start = places[first] >> 32
            end = (places[last - 1] >> 32) + (places[last - 1] & _SIZE)
            window = memoryview(os.pread(fd, end - start, start))
            for place in places[first:last]:
                at = (place >> 32) - start
                yield place >> 32, window[at : at + (place & _SIZE)]
    except OSError as error:
        raise _damaged(str(path), 0, str(error)) from error
    finally:
        os.close(fd)


def near(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return index ranges that are worth one read each, including other topics' batches in between."""
    first = 0
    for i in range(1, len(places)):
        end = (places[i - 1] >> 32) + (places[i - 1] & _SIZE)
        reach = (places[i] >> 32) + (places[i] & _SIZE) - (places[first] >> 32)
        if (places[i] >> 32) - end > GAP_BYTES or reach > READ_BYTES:
            yield first, i
            first = i
    if len(places):
        yield first, len(places)


def _damaged(path: str, position: int, why: str) -> ClusterError:
    name = Path(path).name
    return CorruptJournal(
        f"journal segment {name} is damaged at byte {position}: {why}. Its messages cannot be tiered",
        segment=name,
        offset=position,
    )
