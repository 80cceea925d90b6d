"""Hold the records of a journal against the table of kinds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.records import FILE_HEADER_BYTES, RULES, Place, RecordKind
from pydanube_broker.journal.recovery import list_segments
from pydanube_broker.journal.scan import scan


def check_order(folder: Path, *, older: bool = False) -> Counter[RecordKind]:
    """Assert that every record stands where its kind may; how many of each kind there are.

    Args:
        folder: a journal that has lost no segment since its beginning.
        older: an earlier version wrote it: kinds that this one does not write may stand in open topics.
    """
    found: Counter[RecordKind] = Counter()
    opened: set[int] = set()
    for segment in list_segments(folder, Disk()):
        start = segment.base + FILE_HEADER_BYTES
        for records in scan(segment.path.read_bytes(), segment.base, start, bodies=True):
            if isinstance(records, int):
                break
            for i in range(len(records)):
                header = records.header(i)
                found[header.kind] += 1
                place, topic_id = RULES[header.kind].place, header.topic_id
                if place is Place.NEVER and older:
                    place = Place.OPEN_TOPIC
                first = header.lsn == start
                assert first == (place is Place.SEGMENT_START), header
                match place:
                    case Place.SEGMENT_START | Place.JOURNAL:
                        assert topic_id == 0, header
                    case Place.OPEN_TOPIC:
                        assert topic_id in opened, header
                    case Place.TOPIC if header.kind in (RecordKind.TOPIC_CLOSE, RecordKind.RELEASE):
                        assert topic_id in opened, header
                        opened.discard(topic_id)
                    case Place.TOPIC:
                        opened.add(topic_id)
                    case Place.NEVER:
                        raise AssertionError(header)
    return found
