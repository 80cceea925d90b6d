"""Translate between our model and etcd's messages. Pure.

Every key gets the store's prefix, which no other module sees. etcd orders keys by bytes, we by code point, which is the
same order for UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

from pydanube_core.generated import etcd_pb2 as pb

from pydanube_storage.metadata.errors import GuardFailed
from pydanube_storage.metadata.model import (
    Absent,
    Delete,
    DeleteRange,
    Event,
    EventKind,
    Guard,
    KeyRange,
    KeyValue,
    LeaseId,
    ModRevision,
    Put,
    Revision,
    Write,
)

_NEVER: Final = (1 << 63) - 1  # no key was created at this revision


class Messages:
    """Translates for the keys behind one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    # To etcd

    def get(self, key: str) -> pb.RangeRequest:
        return pb.RangeRequest(key=self._key(key))

    def range(
        self, range_: KeyRange, *, limit: int, after: str | None, descending: bool
    ) -> pb.RangeRequest | None:
        """Return the request for a page, None if the range is empty."""
        start, end = self._key(range_.start), self._key(range_.end)
        if after is not None and descending:
            end = min(end, self._key(after))
        elif after is not None:
            start = max(start, self._key(after) + b"\0")  # the next possible key
        if start >= end:
            return None
        order = pb.RangeRequest.DESCEND if descending else pb.RangeRequest.NONE  # NONE: by key, rising
        return pb.RangeRequest(key=start, range_end=end, limit=limit, sort_order=order)

    def transaction(self, guards: Sequence[Guard], writes: Sequence[Write], *, fence: str) -> pb.TxnRequest:
        """Return a transaction that fails once its fence exists.

        A failed transaction reads the fence and the guarded keys, which shows what failed.
        """
        request = pb.TxnRequest()
        request.compare.add(target=pb.Compare.CREATE, key=self._fence(fence), create_revision=0)
        request.failure.add(request_range=pb.RangeRequest(key=self._fence(fence), keys_only=True))
        for guard in guards:
            key = self._key(guard.key)
            match guard:
                case Absent():
                    request.compare.add(target=pb.Compare.CREATE, key=key, create_revision=0)
                case ModRevision(_, revision):
                    request.compare.add(target=pb.Compare.MOD, key=key, mod_revision=revision)
                case _:
                    assert_never(guard)
            request.failure.add(request_range=pb.RangeRequest(key=key, keys_only=True))
        for write in writes:
            match write:
                case Put(key_text, value, lease_id):
                    put = pb.PutRequest(key=self._key(key_text), value=value, lease=lease_id or 0)
                    request.success.add(request_put=put)
                case Delete(key_text):
                    request.success.add(request_delete_range=pb.DeleteRangeRequest(key=self._key(key_text)))
                case DeleteRange(range_):
                    start, end = self._key(range_.start), self._key(range_.end)
                    if start < end:
                        request.success.add(
                            request_delete_range=pb.DeleteRangeRequest(key=start, range_end=end)
                        )
                case _:
                    assert_never(write)
        return request

    def fences(self, names: Iterable[str], lease_id: int) -> pb.TxnRequest:
        """Return the request that creates these fences for the time of the lease."""
        request = pb.TxnRequest()
        for name in names:
            request.success.add(request_put=pb.PutRequest(key=self._fence(name), lease=lease_id))
        return request

    def write_that_never_happens(self) -> pb.TxnRequest:
        """Return a transaction whose guard never holds. etcd refuses it while it accepts no writes."""
        request = pb.TxnRequest()
        key = self._fence("never")
        request.compare.add(target=pb.Compare.CREATE, key=key, create_revision=_NEVER)
        request.success.add(request_put=pb.PutRequest(key=key))
        return request

    def watch(self, range_: KeyRange, *, from_revision: Revision) -> pb.WatchRequest:
        """Return a watch that begins one revision early, so that its reader notices every lost event.

        etcd lets a watch begin at the compacted revision itself, whose deletions are gone.
        """
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=self._key(range_.start),
                range_end=self._key(range_.end),
                start_revision=max(from_revision - 1, 1),  # 0 would mean: from now on
                progress_notify=True,
                prev_kv=True,
                fragment=True,
            )
        )

    def _key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _fence(self, name: str) -> bytes:
        """Return a fence's key. It is under the prefix that the user may write, and differs from our keys by the `#`."""
        return self._prefix + b"#fence/" + name.encode()

    # From etcd

    def key_value(self, item: Any) -> KeyValue:
        return KeyValue(
            key=self._text(item.key),
            value=item.value,
            create_revision=Revision(item.create_revision),
            mod_revision=Revision(item.mod_revision),
            lease_id=LeaseId(item.lease) if item.lease else None,
        )

    def event(self, event: Any) -> Event | None:
        """Return the event, None for a deletion whose previous value was compacted."""
        if event.type == pb.Event.DELETE:
            if not event.HasField("prev_kv"):
                return None
            return Event(
                kind=EventKind.DELETE,
                revision=Revision(event.kv.mod_revision),
                key=self._text(event.kv.key),
                value=b"",
                create_revision=Revision(event.prev_kv.create_revision),
            )
        return Event.put(self.key_value(event.kv))

    def is_fenced(self, answer: pb.TxnResponse) -> bool:
        """Return whether a transaction failed because of its fence. It has not happened and never will."""
        return bool(answer.responses[0].response_range.kvs)

    def failed_guard(self, guards: Sequence[Guard], answer: pb.TxnResponse) -> GuardFailed:
        """Return the error for the first failed guard, from the revisions in the answer."""
        for guard, response in zip(guards, answer.responses[1:], strict=True):
            items = response.response_range.kvs
            actual = Revision(items[0].mod_revision) if items else None
            holds = actual is None if isinstance(guard, Absent) else actual == guard.revision
            if not holds:
                return GuardFailed(guard, actual)
        raise AssertionError("etcd refused a transaction all of whose guards hold")

    def _text(self, key: bytes) -> str:
        assert key.startswith(self._prefix), "etcd answers with the keys that were wanted"
        return key[len(self._prefix) :].decode()
