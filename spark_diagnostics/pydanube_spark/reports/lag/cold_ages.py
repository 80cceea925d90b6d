"""Append times of messages from the cold tier: one row group of the object with the offset.

Only used if telemetry has no age: the message left the journal, or was unread before the broker started.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydanube_core.errors import CorruptObject, ObjectMissing, StoreUnavailable
from pydanube_core.names import TopicName
from pydanube_storage.objects import StoreOptions, topic_folder
from pydanube_storage.parquet.read import ObjectReader
from pydanube_storage.topics.extent import ColdObject
from pydanube_storage.topics.located import objects_in, open_for_reading


class ColdAges:
    """The objects of one log, listed on first use."""

    def __init__(self, store: StoreOptions, cluster: str, topic: str, topic_id: int) -> None:
        name = TopicName.parse(topic)
        self._options = store
        self._folder = topic_folder(cluster, name.namespace, name.name, topic_id)
        self._store: Any = None
        self._objects: tuple[ColdObject, ...] | None = None
        self.append_time = lru_cache(maxsize=256)(self._append_time)

    def _append_time(self, offset: int) -> int | None:
        """Return milliseconds since 1970, None if no object has the offset or the object is unreadable."""
        try:
            if self._objects is None:
                self._store = open_for_reading(self._options)
                self._objects = objects_in(self._store, self._folder)
            for each in self._objects:
                if each.start <= offset < each.end:
                    return ObjectReader(self._store, each.key).time_at_offset(offset)
        except (CorruptObject, ObjectMissing, StoreUnavailable):
            return None
        return None
