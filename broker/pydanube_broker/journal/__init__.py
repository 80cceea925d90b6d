"""One write-ahead log for all topics of a broker (docs/design.md#4-the-journal)."""

from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.helper import HelperPreparer
from pydanube_broker.journal.journal import Journal
from pydanube_broker.journal.records import RecordHeader, RecordKind
from pydanube_broker.journal.stored import JournalOptions
from pydanube_broker.journal.tail_cache import CachedBatch

__all__ = [
    "CachedBatch",
    "Disk",
    "HelperPreparer",
    "Journal",
    "JournalOptions",
    "RecordHeader",
    "RecordKind",
]
