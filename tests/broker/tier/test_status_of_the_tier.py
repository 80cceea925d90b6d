"""Why the tier is behind: each reason is shown while it holds, with its remedy, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.tier.status import reasons_of
from pydanube_core.errors import ClusterError, CorruptObject, DiskFull, Internal, StoreOwned, StoreUnavailable

from tests.core.batches import steady

TIMEOUT_S = 10.0
SILENT_AFTER_S = 2 * TIMEOUT_S + 30.0
ERRORS = (
    StoreUnavailable("away"),
    StoreOwned("another broker's"),
    DiskFull("full", path="/data"),
    Internal("bug"),
)


def a_tier(
    *,
    held: bool = True,
    reason: ClusterError | None = None,
    waited_s: float = 0.0,
    failures: tuple[ClusterError, ...] = (),
    troubles: tuple[ClusterError, ...] = (),
    no_room: DiskFull | None = None,
    no_room_for_merges: DiskFull | None = None,
) -> Any:
    away = next((error for error in failures if isinstance(error, StoreUnavailable)), None)
    return SimpleNamespace(
        missing=None,
        hold=SimpleNamespace(held=held, reason=reason, code="TIER_STORE_OWNED"),
        flusher=SimpleNamespace(
            failures={number: SimpleNamespace(error=error) for number, error in enumerate(failures)},
            store_error=lambda: away,
        ),
        tending=SimpleNamespace(
            troubles={number: SimpleNamespace(error=error) for number, error in enumerate(troubles)},
            no_room=lambda: no_room_for_merges,
        ),
        child=SimpleNamespace(longest_wait_s=lambda: waited_s),
        options=SimpleNamespace(timeout_s=TIMEOUT_S, url="s3://bucket"),
        no_room=no_room,
    )


def shown(tier: Any) -> dict[str, str]:
    found = {reason.code: reason.message for reason in reasons_of(tier)}
    assert len(found) == len(reasons_of(tier))
    return found


def test_a_tier_that_works_has_no_reason() -> None:
    assert shown(a_tier()) == {}


@pytest.mark.parametrize(
    ("held", "waited_s", "is_silent"),
    [(True, SILENT_AFTER_S, False), (True, SILENT_AFTER_S + 0.1, True), (False, SILENT_AFTER_S + 0.1, False)],
)
def test_a_store_that_does_not_answer_is_shown_after_twice_its_timeout_and_half_a_minute(
    held: bool, waited_s: float, is_silent: bool
) -> None:
    found = shown(a_tier(held=held, waited_s=waited_s))
    assert found.keys() == ({"TIER_STORE_UNAVAILABLE"} if is_silent else set())
    assert not is_silent or "s3://bucket has not answered for 50 s" in found["TIER_STORE_UNAVAILABLE"]


def test_a_store_of_another_is_named_and_its_errors_are_not() -> None:
    found = shown(
        a_tier(held=False, reason=StoreOwned("another broker's"), failures=(StoreUnavailable("away"),))
    )
    assert found == {"TIER_STORE_OWNED": "another broker's"}


def test_the_disk_is_named_for_a_flush_that_waits_one_that_is_too_large_and_a_merge() -> None:
    full = DiskFull("full", path="/data")
    for tier in (a_tier(no_room=full), a_tier(failures=(full,)), a_tier(no_room_for_merges=full)):
        assert shown(tier) == {"TIER_DISK_GUARD": full.message}


@steady
@given(
    failures=st.lists(st.sampled_from(ERRORS), max_size=5).map(tuple),
    troubles=st.lists(st.sampled_from((*ERRORS, CorruptObject("damaged", cause="x"))), max_size=3).map(tuple),
)
def test_topics_that_fail_are_counted_with_the_first_error(
    failures: tuple[ClusterError, ...], troubles: tuple[ClusterError, ...]
) -> None:
    found = shown(a_tier(failures=failures, troubles=troubles))
    own = [error for error in failures if isinstance(error, Internal)]
    assert found.get("TIER_TOPIC_FAILING") == (f"{len(own)} topics: bug" if own else None)
    upkeep = f"{len(troubles)} topics: {troubles[0].message}" if troubles else None
    assert found.get("TIER_UPKEEP_FAILING") == upkeep
    assert ("TIER_STORE_UNAVAILABLE" in found) == any(isinstance(each, StoreUnavailable) for each in failures)
    assert ("TIER_DISK_GUARD" in found) == any(isinstance(each, DiskFull) for each in failures)
