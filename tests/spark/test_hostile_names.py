"""Names that others chose, on the page, in the picture and in a terminal: text, and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from pydanube_cli import report
from pydanube_core.diagnosis import DiagnosisOptions
from pydanube_core.units import format_time
from pydanube_spark.reports.lag.history import ARRAYS, Grid, History
from pydanube_spark.reports.lag.page import lag_page
from pydanube_spark.reports.lag.rows import rows_of_history
from pydanube_spark.reports.lag.summary import lag_summary, offenders, shown_row
from pydanube_spark.reports.pages.page import html
from pydanube_spark.reports.pages.picture import png
from pydanube_spark.reports.run import Span

START = 472_222 * 3_600_000
END = START + 3_600_000
HOSTILE = (
    "</td></script><script>alert(1)</script>",
    '" onload="alert(1)',
    "<img src=x onerror=alert(1)>&amp;",
    "\x1b[2J\x1b]0;owned\x07\r\nnext line",
    "\u202eesrever\u2066",
    "x" * 300,
)


class Tags(HTMLParser):
    """What elements and attributes a page has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, name) for name, _ in attrs} | {(tag, "")}


def rows(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Subscriptions that are behind, so that charts, legends and tables all name them."""
    arrays = {name: np.full(720, 10, np.int64) for name in ARRAYS}
    arrays |= {
        "taken_at": START + 5000 * np.arange(720),
        "unread_offsets": np.arange(720),
        "members": np.zeros(720, int),
    }
    arrays["next_offset"] = 1000 + np.arange(720)
    made = rows_of_history(
        History(arrays, Grid.of(5000)), Span(since_ms=START, until_ms=END), Grid.of(5000), DiagnosisOptions()
    )
    shared = [asdict(row) for row in made]
    return [
        {
            "topic": f"/default/{name}",
            "log": f"/default/{name}",
            "partition": None,
            "subscription": name,
            "type": "shared",
            **row,
        }
        for name in names
        for row in shared
    ]


def page_of(found: list[dict[str, Any]], damaged: list[str]) -> Any:
    summary = lag_summary(found, damaged)
    report = {
        "cluster": HOSTILE[0],
        "since": format_time(START),
        "until": format_time(END),
        "known_from": format_time(START),
        "as_of": format_time(END),
        "data_age_s": 1.0,
        "summary": summary,
    }
    before = {"since": format_time(START), "until": format_time(START), "reason": HOSTILE[0]}
    return lag_page(found, {**report, "previous": before})


def test_a_page_of_hostile_names_has_the_elements_of_any_other() -> None:
    plain = Tags(html(page_of(rows(tuple("abcdef")), ["file x"])))
    hostile = html(page_of(rows(HOSTILE), [HOSTILE[2]]))
    assert Tags(hostile).found == plain.found
    assert {tag for tag, _ in plain.found}.isdisjoint({"img", "iframe", "link"})
    assert hostile.count("<script") == 1, "our own, which sorts and filters"
    assert "\x1b" not in hostile
    assert png(page_of(rows(HOSTILE), [HOSTILE[2]]))[:4] == b"\x89PNG"


def test_the_subscriptions_can_be_sorted_and_the_comparison_cannot() -> None:
    assert [table.live for table in page_of(rows(("a", "b")), []).tables] == [True, False]


def test_the_table_says_why_a_subscription_is_stuck() -> None:
    found = rows(("a",))
    found[-1]["stuck_reason"] = "no_member"
    (row,) = page_of(found, []).tables[0].rows
    assert "no member" in {cell.text for cell in row.cells}


@pytest.mark.parametrize(
    ("age_s", "unit", "value"),
    [(59.0, "seconds", 59.0), (60.0, "minutes", 1.0), (3599.0, "minutes", 3599 / 60), (3600.0, "hours", 1.0)],
)
def test_ages_are_drawn_in_the_largest_unit_that_the_longest_fills(
    age_s: float, unit: str, value: float
) -> None:
    found = rows(("a",))
    found[-1]["course"] = json.dumps([[0, "STUCK", 5, age_s], [1, "STUCK", 5, 1.0]])
    *_, ages = page_of(found, []).charts
    (series,) = ages.series
    assert (ages.unit, series.values[0]) == (unit, pytest.approx(value))


def test_a_terminal_is_given_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(HOSTILE)
    report.print_lag(
        {
            "rows": [shown_row(row) for row in offenders(found)],
            "since": "a",
            "known_from": "a",
            "data_age_s": 1.0,
            "until": "b",
            "summary": {"subscriptions": 6, "gone": 0, "statuses": {}, "damaged_files": [HOSTILE[3]]},
            "files": {},
        }
    )
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
