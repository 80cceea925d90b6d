"""The table of free slots: the same answers small and large."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.subscription.routes.spreading import LARGE_PART, NO_MEMBER, RouteTable

SLOT = st.integers(0, 65_535)
STEP = st.one_of(
    st.tuples(st.just("set"), SLOT, st.integers(0, 249)),
    st.tuples(st.just("unset"), SLOT, st.just(0)),
    st.tuples(st.just("look_up"), st.sampled_from((0, 3, LARGE_PART, 1000)), SLOT),
    st.tuples(st.just("clear"), st.just(0), st.just(0)),
)


@given(steps=st.lists(STEP, max_size=40))
def test_a_table_answers_as_a_dictionary_would(steps: list[tuple[str, int, int]]) -> None:
    table, expected = RouteTable(), dict[int, int]()
    for kind, a, b in steps:
        match kind:
            case "set":
                table.set(a, b)
                expected[a] = b
            case "unset":
                table.unset(a)
                expected.pop(a, None)
            case "clear":
                table.clear()
                expected.clear()
            case _:
                slots = array("H", ([*expected, b] * (a + 1))[:a])
                assert table.look_up(slots) == bytearray(expected.get(s, NO_MEMBER) for s in slots)
        assert table.items() == sorted(expected.items())
        assert table.get(a if kind != "look_up" else b) == expected.get(
            a if kind != "look_up" else b, NO_MEMBER
        )
