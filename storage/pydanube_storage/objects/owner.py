"""The owner of a store: marks `<cluster>/owner/<incarnation, 20 digits>.json`, one for each start of a writing broker.

The highest incarnation is the owner. A mark is created only if none has its number, so that exactly one of two concurrent
candidates succeeds. Brokers that share a store have separate marks in `<cluster>/owner/<broker id>/`. Old marks are
removed except for the last few, which are kept for diagnosis.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Final, Self

from pydanube_core.errors import CorruptObject, ObjectMissing

from pydanube_storage.objects.protocol import ObjectStore

_VERSION: Final = 1
_KEPT: Final = 8
_MAX_BYTES: Final = 64 << 10
_NAME: Final = re.compile(r"/[0-9]{20}\.json\Z")  # other objects of the folder are ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerMark:
    """One start of a broker. `life` is random. `place` distinguishes its data directory from a copy of it."""

    incarnation: int
    life: str
    place: str
    broker_id: str
    host: str
    data_dir: str
    pid: int
    since: str  # UTC, for people

    @property
    def named(self) -> str:
        """Return the owner in words."""
        return f"broker {self.broker_id} (data directory {self.data_dir} on {self.host}, process {self.pid}, since {self.since})"

    def to_json(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, *, store: str, key: str) -> Self:
        try:
            body = json.loads(data)
            found = {name: body[name] for name in cls.__dataclass_fields__}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unreadable(store, key, repr(error)[:100]) from error
        for name, value in found.items():
            if name in ("incarnation", "pid"):
                fits = type(value) is int and 0 <= value < 1 << 63
            else:
                fits = isinstance(value, str)
            if not fits:
                raise _unreadable(store, key, f"{name} is {str(value)[:40]!r}")
        return cls(**found)


def newest_mark(store: ObjectStore, cluster: str, scope: str = "") -> OwnerMark | None:
    """Return the newest owner of a cluster's objects, None if there was none.

    `scope`: the id of one of several brokers that share them, empty for a lone broker.
    """
    keys = _marks(store, cluster, scope)
    if not keys:
        return None
    key = keys[-1]
    size = store.size(key)
    if size > _MAX_BYTES:
        raise _unreadable(store.url, key, f"it has {size} bytes")
    return OwnerMark.from_json(store.read(key, 0, size), store=store.url, key=key)


def make_mark(store: ObjectStore, cluster: str, mark: OwnerMark, scope: str = "") -> OwnerMark:
    """Become the owner, unless another has this incarnation or a higher one. Return the current owner."""
    key = f"{_folder(cluster, scope)}/{mark.incarnation:020d}.json"
    store.put_new(key, mark.to_json())
    # Read back: without conditional writes the store has the last writer's mark, and both candidates read that one.
    now = newest_mark(store, cluster, scope)
    assert now is not None
    if now == mark:
        for old in _marks(store, cluster, scope)[:-_KEPT]:
            store.delete(old)
    return now


def store_identity(store: ObjectStore, cluster: str, proposed: str) -> str:
    """Return the id of a cluster's store. If it has none, set it to `proposed`, unless that is empty.

    Brokers that read the same id write to the same store.
    """
    key = f"{cluster}/owner/store.json"
    try:
        if proposed:
            store.put_new(key, json.dumps({"version": _VERSION, "store_id": proposed}).encode())
        size = store.size(key)
        if size <= _MAX_BYTES:
            return str(json.loads(store.read(key, 0, size))["store_id"])
    except ObjectMissing:
        return ""
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(store.url, key, repr(error)[:100]) from error
    raise _unreadable(store.url, key, f"it has {size} bytes")


def _marks(store: ObjectStore, cluster: str, scope: str) -> list[str]:
    """Return the keys of one scope's marks, ascending. Other scopes are in folders below a lone broker's."""
    folder = _folder(cluster, scope)
    return sorted(
        fact.key
        for fact in store.list(folder)
        if fact.key.rpartition("/")[0] == folder and _NAME.search(fact.key)
    )


def _unreadable(store: str, key: str, why: str) -> CorruptObject:
    return CorruptObject(
        f"the owner mark {key} in {store} cannot be read ({why}): put it back as it was, or remove it, and the one before "
        "it counts",
        store=store,
        key=key,
        cause="mark",
    )


def _folder(cluster: str, scope: str) -> str:
    return f"{cluster}/owner/{scope}".rstrip("/")
