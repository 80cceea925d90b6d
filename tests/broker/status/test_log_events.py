"""The log formatter: fixed events, typed fields, one line whatever the values hold."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from pydanube_broker.status.log import EventFormatter, LogRing, configure_logging


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("pydanube")
    before = (list(root.handlers), root.level, own.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def record(message: str = "", **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("pydanube.journal", logging.INFO, "f", 1, message, (), None)
    vars(made).update(extra)
    made.created = 0.001
    return made


def test_text_form_is_time_level_event_fields() -> None:
    line = EventFormatter(as_json=False).format(record(event="journal.recovered", records=12, seconds=0.25))
    assert line == "1970-01-01T00:00:00.001Z info journal.recovered records=12 seconds=0.25"


def test_message_that_is_a_name_is_the_event() -> None:
    line = EventFormatter(as_json=False).format(record("segment_removed", records=12))
    assert line == "1970-01-01T00:00:00.001Z info segment_removed records=12"


def test_word_that_a_library_says_is_no_event() -> None:
    made = record("closed")
    made.name = "uvicorn.error"
    fields = json.loads(EventFormatter(as_json=True).format(made))
    assert (fields["event"], fields["message"]) == ("log", "closed")


def test_json_form_has_the_same_fields_typed() -> None:
    line = EventFormatter(as_json=True).format(record(event="journal.recovered", records=12, path=None))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.001Z",
        "level": "info",
        "event": "journal.recovered",
        "records": 12,
        "path": None,
    }


def test_value_with_a_line_end_cannot_forge_a_line() -> None:
    line = EventFormatter(as_json=False).format(record(event="x", reason="a\n1970 error forged", topic="b c"))
    assert "\n" not in line
    assert r'reason="a\n1970 error forged"' in line
    assert 'topic="b c"' in line


def test_record_of_a_library_keeps_its_text() -> None:
    line = EventFormatter(as_json=True).format(record("slow callback"))
    assert json.loads(line) | {"event": "log", "message": "slow callback"} == json.loads(line)


def test_exception_is_named_in_the_fields() -> None:
    try:
        raise OSError("disk gone")
    except OSError as error:
        made = record(event="journal.failed")
        made.exc_info = (OSError, error, error.__traceback__)
    body = json.loads(EventFormatter(as_json=True).format(made))
    assert body["error"] == "OSError: disk gone"
    assert "Traceback" in body["stack"]


@pytest.mark.usefixtures("restored_logging")
def test_fields_of_a_record_are_made_once_for_all_handlers() -> None:
    made = []

    class Message:
        def __str__(self) -> str:
            made.append(1)
            return "topic_served"

    one, ring = record(topic="orders"), LogRing()
    one.msg = Message()
    text = EventFormatter(as_json=False).format(one)
    ring.emit(one)
    as_json = json.loads(EventFormatter(as_json=True).format(one))
    assert len(made) == 1
    assert text == ring.last(lines=1, level=None, since_ms=None)[0].text
    assert text.endswith(" topic_served topic=orders")
    assert (as_json["event"], as_json["topic"]) == ("topic_served", "orders")
    assert list(as_json) == ["time", "level", "event", "topic"]


def test_level_applies_to_our_loggers_and_libraries_stay_quiet() -> None:
    out = io.StringIO()
    configure_logging(level="info", format="text", stream=out)
    logging.getLogger("pydanube.rpc").info("", extra={"event": "kept"})
    logging.getLogger("pydanube.rpc").debug("", extra={"event": "dropped"})
    logging.getLogger("uvicorn").info("dropped too")
    assert [line.split(" ", 1)[1] for line in out.getvalue().splitlines()] == ["info kept"]
