"""What reaches the terminal is harmless and fits; what stands after `/` means what the help says."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_tui.filters import FilterError, RowsInSight, ordered, parse
from pydanube_tui.page import Cell, Column, PageContent, Row
from pydanube_tui.payloads import value_of, written
from pydanube_tui.text import chart, clean, count, fit, size, span, sparkline, width
from pydanube_tui.view import Situation
from pydanube_tui.views import VIEWS
from rich.cells import cell_len

COLUMNS = (
    Column(name="topic", title="topic"),
    Column(name="status", title="status"),
    Column(name="lag", title="lag", unit="count"),
    Column(name="age", title="oldest", unit="seconds"),
)


def row(topic: str, status: str, lag: int | None, age: float | None) -> Row:
    cells = (
        Cell(topic, value=topic),
        Cell(status, value=status),
        Cell(count(lag), value=lag),
        Cell(span(age), value=age),
    )
    return Row(key=topic, cells=cells)


ROWS = (
    row("/default/orders", "■ stuck", 1_500, 400.0),
    row("/default/order-log", "✓ caught up", 0, 0.0),
    row("/shop/clicks-9", "▲ catching up", 900, 90.0),
    row("/shop/unknown", "○ unknown", None, None),
)


@given(text=st.text(max_size=60), cells=st.integers(0, 40), right=st.booleans(), ascii_only=st.booleans())
def test_any_text_comes_out_harmless_and_exactly_as_wide_as_asked(
    text: str, cells: int, right: bool, ascii_only: bool
) -> None:
    shown = fit(text, cells, right=right, ascii_only=ascii_only)
    assert cell_len(shown) == cells
    assert not [each for each in shown if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")]
    if ascii_only:
        assert shown.isascii()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "␛[31mred␇"),
        ("a\u202eb", "a\\u202eb"),
        ("one\ntwo\t", "one␊two␉"),
        ("订单 עברית", "订单 עברית"),
        ("[bold]x[/]", "[bold]x[/]"),
    ],
)
def test_control_and_direction_characters_become_visible_and_letters_stay(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_wide_letters_are_cut_by_the_cells_they_take() -> None:
    assert fit("订单订单", 5) == "订单…"
    assert width("订单") == 4


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (7.25, "7.2"), (999, "999"), (1_500, "1.5k"), (999_960, "1.0M")],
)
def test_counts_take_five_cells_at_most(value: float | None, shown: str) -> None:
    assert count(value) == shown


def test_sizes_and_spans() -> None:
    assert [size(each) for each in (0, 1023, 1024, 10 << 20)] == ["0", "1023", "1.0Ki", "10.0Mi"]
    assert [span(each) for each in (0.02, 59, 61, 3_661, 90_000)] == [
        "20ms",
        "59s",
        "1m01s",
        "1h01m",
        "1d01h",
    ]


def test_a_sparkline_shows_what_is_not_known_as_a_gap() -> None:
    assert sparkline([0, None, 7, 3.5]) == "▁ █▅"
    assert sparkline([None]) == ""


def test_a_sparkline_begins_at_0_so_that_a_small_change_looks_small() -> None:
    assert sparkline([1000, 1001]) == "██"
    assert sparkline([5, 5]) == "██"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([500, 1000]) == "▅█"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("orders", [0]),
        ("ORDER", [0, 1]),
        ("!order", [2, 3]),
        ("/clicks-[0-9]$/", [2]),
        ("!/^.default/", [2, 3]),
        ("~dfords", [0]),
        ("lag:>1k", [0]),
        ("lag:>=0.9k", [0, 2]),
        ("lag:=0", [1]),
        ("age:>5m", [0]),
        ("oldest", []),
        ("status:stuck", [0]),
        ("status:up lag:<1", [1]),
        ("st:unknown !lag:>0", [3]),
    ],
)
def test_filters_leave_the_rows_they_name(text: str, left: list[int]) -> None:
    chosen = parse(text, COLUMNS)
    assert [ROWS.index(each) for each in chosen.of(ROWS)] == left


@given(text=st.lists(st.sampled_from([*"ord/~!:>19k$ ", "status:", "lag:", "~or", "/^.d"]), max_size=12))
def test_a_filter_that_is_typed_on_leaves_what_it_leaves_when_typed_at_once(text: list[str]) -> None:
    page, typed = PageContent(columns=COLUMNS, rows=ROWS), RowsInSight()
    for end in range(1, len(text) + 1):
        try:
            chosen = parse("".join(text[:end]), COLUMNS)
        except FilterError:
            continue
        assert list(typed.of(page, ("topic", False), chosen)) == chosen.of(
            ordered(ROWS, COLUMNS, "topic", False)
        )


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("$.total:>10", [0]),
        ("$.lines[1].sku:b", [0]),
        ("$.lines[7].sku:b", []),
        ("$.customer:=ann", [1]),
        ("!$.customer:an", [2]),
        ("$.open:=true", [0]),
        ("$.total.x:>1", []),
    ],
)
def test_a_json_path_looks_into_the_value_of_a_message(text: str, left: list[int]) -> None:
    payloads = (
        '{"total": 12.5, "customer": "Anna", "lines": [{"sku": "a"}, {"sku": "b"}], "open": true}',
        '{"total": 2, "customer": "Ann"}',
        "no json",
    )
    rows = [Row(key=each, cells=(), item={"untrusted": {"text": each}}) for each in payloads]
    chosen = parse(text, COLUMNS)
    assert [rows.index(each) for each in chosen.of(rows)] == left
    of_a_row = Row(key="x", cells=(), item={"total": 11, "lines": []})
    assert parse("$.total:>10", COLUMNS).of([of_a_row])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("$.a:>x", "no number"),
        ("lag:>often", "lag: 'often' is no number"),
        ("age:>5x", "Write age:>5m"),
        ("foo:>1", "There are topic"),
        ("/[/", "no pattern"),
    ],
)
def test_a_filter_that_cannot_be_read_says_why(text: str, says: str) -> None:
    with pytest.raises(FilterError, match=says.replace("[", r"\[")):
        parse(text, COLUMNS)


def test_what_is_not_known_is_sorted_last_either_way() -> None:
    assert [each.key for each in ordered(ROWS, COLUMNS, "lag", False)][-1] == "/shop/unknown"
    falling = [each.key for each in ordered(ROWS, COLUMNS, "lag", True)]
    assert falling == ["/default/orders", "/shop/clicks-9", "/default/order-log", "/shop/unknown"]


def test_offsets_are_sorted_as_numbers() -> None:
    view = VIEWS["objects"]
    items = [{"path": str(offset), "start_offset": offset, "end_offset": offset + 1} for offset in (100, 9)]
    situation = Situation(view=view, arguments={}, answers={"list": {"items": items}}, now_ms=0)
    rows = view.page(situation).rows
    assert [row.key for row in ordered(rows, view.columns, "from", False)] == ["9", "100"]
    assert [row.key for row in ordered(rows, view.columns, "to", True)] == ["100", "9"]


AS_WRITTEN = '{"price": 1.10, "id": 12345678901234567890, "far": 1e999, "farther": -1E9999999999999999999, "forty": 1234567890123456789012345678901234567890, "a": 1, "a": [2, {}]}'


def test_a_payload_is_shown_as_its_producer_wrote_it() -> None:
    value = value_of({"untrusted": {"text": AS_WRITTEN, "value": {"price": 1.1}}})
    assert written(value) == AS_WRITTEN
    indented = written(value, indent=2)
    assert '\n  "price": 1.10,\n' in indented
    assert json.loads(indented) == json.loads(AS_WRITTEN)
    assert written([], indent=2) == "[]"
    assert written(value_of({"untrusted": {"text": "\r\n " + AS_WRITTEN}})) == AS_WRITTEN


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("$.price:=1.10", True),
        ("$.price:=1.1", True),
        ("$.price:=1.2", False),
        ("$.id:=12345678901234567890", True),
        ("$.id:=12345678901234567891", False),
        ("$.id:>12345678901234567889", True),
        ("$.id:>12345678901234567890", False),
        ("$.forty:>1234567890123456789012345678901234567889", True),
        ("$.forty:>1234567890123456789012345678901234567890", False),
        ("$.forty:<1234567890123456789012345678901234567891", True),
        ("$.far:>1k", True),
        ("$.farther:<0", True),
    ],
)
def test_numbers_are_compared_by_all_their_digits(text: str, matches: bool) -> None:
    message = Row(key="0", cells=(), item={"untrusted": {"text": AS_WRITTEN}})
    assert bool(parse(text, COLUMNS).of([message])) is matches


def test_a_chart_begins_at_zero_so_that_a_steady_rate_is_level_and_a_small_one_is_no_zero() -> None:
    assert chart([100, 99, 101, 100], 4) == ("████", 101)
    assert chart([0, 1, None, 100], 4) == ("▁▂ █", 100)
    assert chart([0, 0], 2) == ("▁▁", 0)
    assert chart([], 3) == ("   ", None)
    assert chart([None, None], 2) == ("  ", None)


def test_one_early_spike_does_not_flatten_a_chart_and_its_height_is_named() -> None:
    usual = [10.0, 20.0, 30.0, 40.0, 20.0, 10.0, 20.0, 30.0, 40.0, 20.0]
    drawn, peak = chart([84_000.0, *usual], 11)
    assert (drawn, peak) == ("▲" + chart(usual, 10)[0], 84_000.0)
    assert len(set(drawn)) == 5, "the rest is told apart"


def test_a_peak_near_to_the_others_and_bursts_between_zeros_set_the_scale() -> None:
    assert "▲" not in chart([10.0] * 10 + [20.0], 11)[0]
    assert chart([0.0] * 20 + [84_000.0, 42_000.0], 22)[0] == "▁" * 20 + "█▅"


def test_a_backlog_that_grew_a_moment_ago_keeps_its_shape() -> None:
    surge = [1.0] * 60 + [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert chart(surge, 66)[0].endswith("▲" * 6)
    assert chart(surge, 66, cut=False) == ("▃" * 60 + "▅▆▆▇▇█", 10.0)


@pytest.mark.parametrize("strange", [float("inf"), float("-inf"), float("nan")])
def test_a_value_that_is_no_number_is_a_gap_in_a_chart(strange: float) -> None:
    assert chart([1.0, strange, 2.0], 3) == ("▅ █", 2.0)
    assert chart([strange], 1) == (" ", None)


def test_values_below_zero_are_no_spikes_of_a_chart() -> None:
    assert chart([-10.0, -4.0], 2) == ("▁▁", -4.0)
    assert chart([-10.0, 4.0], 2) == ("▁█", 4.0)
