from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.tenants.account import Account
from pydanube_core.errors import InvalidArgument, QuotaExceeded
from pydanube_core.quotas import LONGEST_DEBT_MS, Quota, parse_quota


def account(warnings: dict[str, int] | None = None, **limits: int) -> Account:
    made = Account("namespace", "shop")
    made.set_quota(Quota(kind="namespace", name="shop", limits=limits, warnings=warnings or {}), 0)
    return made


@given(
    rate=st.integers(1, 10_000),
    takes=st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 2_000)), max_size=50),
)
def test_waiting_as_told_never_exceeds_the_rate(rate: int, takes: list[tuple[int, int]]) -> None:
    made, now_ms, taken = account(messages_in_per_s=rate), 0, 0
    for count, pause_ms in takes:
        taken += count
        wait_ms = made.take("messages_in_per_s", count, now_ms)
        now_ms += max(wait_ms, pause_ms)
        assert taken - rate <= rate * now_ms / 1000 + 1e-6 * taken  # a burst of one second, and no more


@given(
    rate=st.integers(1, 1_000),
    sizes=st.lists(st.integers(1, 300), min_size=2, max_size=20),
)
def test_those_who_share_an_account_wait_by_turns(rate: int, sizes: list[int]) -> None:
    made = account(bytes_in_per_s=rate)
    waits = [made.take("bytes_in_per_s", size, 0) for size in sizes]
    assert waits == sorted(waits)  # who comes later goes on later
    assert waits[-1] == max(0, -(-(sum(sizes) - rate) * 1000 // rate))


def test_what_comes_when_too_much_waits_already_is_refused_and_counts_for_nothing() -> None:
    made = account(messages_in_per_s=10)
    made.take("messages_in_per_s", 10 + 10 * LONGEST_DEBT_MS // 1000 + 1, 0)
    with pytest.raises(QuotaExceeded) as refused:
        made.check_debt("messages_in_per_s", 0)
    assert refused.value.details | {"retry_after_ms": refused.value.retry_after_ms} == {
        "field": "messages_in_per_s", "limit": 10, "quota": "namespace shop", "retry_after_ms": 100,
    }  # fmt: skip
    made.check_debt("messages_in_per_s", 100)
    assert made.refused["messages_in_per_s"].times == 1


def test_a_number_is_refused_beyond_its_limit_and_told_beyond_its_warning() -> None:
    made = account(warnings={"topics": 2}, topics=3)
    made.check_room("topics", 1, 0)
    assert not made.warned
    made.check_room("topics", 2, 7)
    assert (made.warned["topics"].times, made.warned["topics"].last_ms) == (1, 7)
    with pytest.raises(QuotaExceeded, match="namespace shop has 3 of 3 topics"):
        made.check_room("topics", 3, 8)
    with pytest.raises(QuotaExceeded):
        made.check_room("topics", 1, 8, more=3)


def test_a_warning_of_a_rate_is_told_while_more_comes_and_slows_nobody() -> None:
    made = account(warnings={"messages_in_per_s": 10})
    assert [made.take("messages_in_per_s", 5, second * 1000) for second in range(10)] == [0] * 10
    assert not made.warned
    assert [made.take("messages_in_per_s", 25, 10_000 + second * 1000) for second in range(4)] == [0] * 4
    assert made.warned["messages_in_per_s"].times == 4


def test_another_quota_counts_at_once_and_debts_stay() -> None:
    made = account(messages_in_per_s=10)
    assert made.take("messages_in_per_s", 30, 0) == 2000
    made.set_quota(Quota(kind="namespace", name="shop", limits={"messages_in_per_s": 100}), 0)
    assert made.take("messages_in_per_s", 0, 0) == 200
    assert not made.idle(0)
    made.set_quota(Quota(kind="namespace", name="shop"), 0)
    assert made.take("messages_in_per_s", 1_000_000, 0) == 0
    assert made.idle(0)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("namespace", "connections=3", "a namespace has no quota 'connections'. Use topics"),
        ("principal", "topics=3", "a principal has no quota 'topics'. Use connections"),
        ("principal", "connections", "write name=number, as connections=100"),
        ("namespace", "topics=many", "'many' is not a size"),
    ],
)
def test_what_is_no_quota_is_refused_by_name(kind: str, text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parse_quota(kind, text)  # type: ignore[arg-type]


def test_a_setting_is_read_with_units_and_a_quota_comes_back_from_its_bytes() -> None:
    limits = parse_quota("namespace", "topics=100, bytes_in_per_s = 10MiB")
    assert limits == {"topics": 100, "bytes_in_per_s": 10 << 20}
    quota = Quota(kind="namespace", name="shop", limits=limits, warnings={"topics": 80})
    assert Quota.from_bytes(quota.to_bytes()) == quota


def principal(warnings: dict[str, int] | None = None, **limits: int) -> Account:
    made = Account("principal", "user:robot")
    made.set_quota(Quota(kind="principal", name="user:robot", limits=limits, warnings=warnings or {}), 0)
    return made


def test_changes_of_an_hour_are_refused_beyond_the_quota_and_refill_evenly() -> None:
    made, hour_ms = principal(changes_per_h=4), 3_600_000
    for _ in range(4):
        made.take_change(0, 1)
    with pytest.raises(QuotaExceeded, match="4 changes_per_h: try again in 15 min") as refused:
        made.take_change(0, 2)
    assert refused.value.details["quota"] == "principal user:robot"
    assert not made.idle(2)
    made.take_change(0, hour_ms // 4 + 4000)  # a quarter of an hour gives one back
    with pytest.raises(QuotaExceeded):
        made.take_change(0, hour_ms // 4 + 8000)
    assert made.refused["changes_per_h"].times == 2
    assert made.idle(3 * hour_ms)


def test_a_change_that_destroys_too_much_is_refused_and_counts_nothing() -> None:
    made = principal(changes_per_h=2, destroyed_messages_per_h=100)
    for _ in range(3):
        with pytest.raises(
            QuotaExceeded, match=r"counts 101 of its quota of 100.*destroy less in one change"
        ):
            made.take_change(101, 1)
    made.take_change(60, 1)
    with pytest.raises(QuotaExceeded, match="destroyed_messages_per_h"):
        made.take_change(60, 1)
    made.take_change(40, 1)
    with pytest.raises(QuotaExceeded, match="changes_per_h"):
        made.take_change(0, 1)


def test_a_change_whose_loss_is_unknown_passes_no_quota_of_destroyed_messages() -> None:
    made = principal(changes_per_h=2, destroyed_messages_per_h=100)
    for _ in range(3):
        with pytest.raises(QuotaExceeded, match="it cannot be counted how many messages it destroys"):
            made.take_change(None, 1)
    assert made.refused["destroyed_messages_per_h"].times == 3
    made.take_change(100, 1)  # a refused change counts nothing
    for unlimited in (
        principal(changes_per_h=1),
        principal(changes_per_h=1, destroyed_messages_per_h=0),
        principal({"destroyed_messages_per_h": 1}, changes_per_h=1),
    ):
        unlimited.take_change(None, 1)
        with pytest.raises(QuotaExceeded, match="changes_per_h"):
            unlimited.take_change(None, 1)
        assert not unlimited.warned


def test_a_warning_of_an_hour_is_told_and_refuses_nothing() -> None:
    made = principal({"changes_per_h": 2})
    for _ in range(3):
        made.take_change(5, 1)
    assert made.warned["changes_per_h"].times == 1
    assert not made.refused
