"""Tables: what fits stays as it is, figures are never cut, and what has no room is named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_cli.failures import wants_json
from pydanube_cli.main import run
from pydanube_cli.table import TextColumn, laid_out


def column(name: str, *cells: str, numeric: bool = False, empty: bool = False) -> TextColumn:
    return TextColumn(name=name, cells=cells, numeric=numeric, empty=empty)


def test_what_fits_is_one_line_a_row() -> None:
    head, body, dropped = laid_out([column("topic", "/default/a"), column("n", "7", numeric=True)], 80)
    assert (head, body, dropped) == (["topic       n"], ["/default/a  7"], [])


def test_a_pipe_has_room_for_everything() -> None:
    head, body, dropped = laid_out([column("a", "x" * 300), column("b", "y" * 300)], None)
    assert len(body) == 1
    assert not dropped
    assert len(head) == 1


def test_headers_wrap_before_anything_else_gives() -> None:
    head, body, dropped = laid_out(
        [column("topic", "/default/orders"), column("dispatch_strategy", "reliable")], 28
    )
    assert head == ["                 dispatch_", "topic            strategy"]
    assert body == ["/default/orders  reliable"]
    assert not dropped


def test_texts_fold_and_the_value_beside_them_stays() -> None:
    about = "how long the broker waits before it does what this long text is about, and more of it"
    _, body, dropped = laid_out(
        [column("setting", "a.b"), column("value", "30s"), column("about", about)], 60
    )
    assert not dropped
    assert body[0].startswith("a.b      30s    how long")
    assert " ".join(" ".join(body).split()).replace("a.b 30s ", "") == about


def test_columns_without_a_value_go_first_then_the_last() -> None:
    wide = [column(f"c{index}", "9" * 12, numeric=True) for index in range(6)]
    head, body, dropped = laid_out([wide[0], column("none", "-" * 20, empty=True), *wide[1:]], 60)
    assert dropped == ["c4", "c5"]
    assert "none" not in head[0]
    assert body[0].split() == ["9" * 12] * 4


@given(
    st.lists(
        st.tuples(st.text("ab_", min_size=1, max_size=12), st.text("xyz /", max_size=60), st.booleans()),
        min_size=1,
        max_size=9,
    ),
    st.integers(40, 120),
)
def test_no_line_is_wider_than_the_terminal(parts: list[tuple[str, str, bool]], width: int) -> None:
    columns = [column(name, "123456" if numeric else text, numeric=numeric) for name, text, numeric in parts]
    head, body, dropped = laid_out(columns, width)
    assert all(len(line) <= width for line in [*head, *body])
    kept = [name for name, _, _ in parts][: len(parts) - len(dropped)]
    figures = sum(numeric for _, _, numeric in parts[: len(kept)])
    assert sum(line.count("123456") for line in body) == figures


def test_the_command_alone_shows_its_help(capsys: object) -> None:
    assert not wants_json([])
    assert run([]) == 0
