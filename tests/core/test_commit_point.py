"""The rule that says how far a topic's records are safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.commit_point import safe_position

positions = st.integers(min_value=0, max_value=1000)


def test_alone_the_disk_decides() -> None:
    assert safe_position(safe=10, local_durable=25) == 25


def test_every_member_of_the_in_sync_set_holds_what_is_safe() -> None:
    held = {"b": 18, "c": 21, "d": 5}
    assert safe_position(safe=10, local_durable=25, replicas=held, in_sync=["b", "c"]) == 18
    assert safe_position(safe=10, local_durable=15, replicas=held, in_sync=["b", "c"]) == 15


def test_a_member_that_has_reported_nothing_holds_it_back() -> None:
    assert safe_position(safe=10, local_durable=25, replicas={"b": 20}, in_sync=["b", "c"]) == 10


@given(safe=positions, local=positions, held=st.dictionaries(st.sampled_from("bcd"), positions))
def test_what_is_safe_never_falls(safe: int, local: int, held: dict[str, int]) -> None:
    assert safe_position(safe=safe, local_durable=local, replicas=held, in_sync="bcd") >= safe
