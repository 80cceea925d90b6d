"""One write-ahead log for all topics of a broker (docs/design.md#4-the-journal)."""

from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.helper import HelperPreparer, HelperSyncer, InlinePreparer, InlineSyncer
from pydanube_broker.journal.journal import Journal, JournalOwner, JournalStatistics
from pydanube_broker.journal.records import Kind, RecordHeader
from pydanube_broker.journal.stored import JournalOptions
from pydanube_broker.journal.tail_cache import CachedBatch

__all__ = [
    "CachedBatch",
    "Disk",
    "HelperPreparer",
    "HelperSyncer",
    "InlinePreparer",
    "InlineSyncer",
    "Journal",
    "JournalOptions",
    "JournalOwner",
    "JournalStatistics",
    "Kind",
    "RecordHeader",
]
