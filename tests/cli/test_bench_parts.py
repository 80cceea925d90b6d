"""The parts of the benchmark that decide: checking messages, conditions, medians. And the raw references run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_cli.bench.catalogue import DEFAULT_MESSAGES, Plan
from pydanube_cli.bench.expressions import Expression
from pydanube_cli.bench.payloads import Checker, make_payloads, percentiles_ms
from pydanube_cli.bench.raw import crc32_mb_per_s, fdatasync_reference, grpc_reference
from pydanube_cli.bench.result import assemble, machine
from pydanube_cli.bench.scenarios import SCENARIOS
from pydanube_core.errors import InvalidArgument


def sent(producer: int, count: int, size: int = 24) -> list[bytes]:
    return make_payloads(producer=producer, first=0, count=count, size=size, now_ns=5)


def check(payloads: list[bytes], counts: list[int], size: int = 24) -> tuple[int, int, int, int, int]:
    checker = Checker(size=size)
    for at in range(0, len(payloads), 3):
        checker.add(payloads[at : at + 3], 10)
    found = checker.verify(counts)
    return found.sent, found.received, found.missing, found.duplicates, found.out_of_order


def test_payload_carries_number_producer_and_time() -> None:
    first, second = make_payloads(producer=3, first=70_000, count=2, size=20, now_ns=99)
    assert len(first) == 20
    assert int.from_bytes(first[:8], "little") == 3 << 40 | 70_000
    assert int.from_bytes(second[:8], "little") == 3 << 40 | 70_001
    assert int.from_bytes(first[8:16], "little") == 99
    assert first[16:] == b"...."


def test_everything_once_and_in_order_is_clean() -> None:
    mixed = [m for pair in zip(sent(0, 10), sent(1, 10), strict=True) for m in pair]
    assert check(mixed, [10, 10]) == (20, 20, 0, 0, 0)


def test_missing_doubled_and_disordered_are_told_apart() -> None:
    a = sent(0, 6)
    assert check([a[0], a[1], a[3], a[4], a[5]], [6]) == (6, 5, 1, 0, 0)
    assert check([*a, a[2]], [6]) == (6, 7, 0, 1, 0)
    assert check([a[0], a[2], a[1], a[3], a[4], a[5]], [6]) == (6, 6, 0, 0, 1)
    assert check([], [6]) == (6, 0, 6, 0, 0)


@given(seed=st.integers(0), drop=st.sets(st.integers(0, 19)), double=st.sets(st.integers(0, 19)))
def test_counts_agree_with_the_plain_definition(seed: int, drop: set[int], double: set[int]) -> None:
    payloads = sent(0, 20)
    got = [p for i, p in enumerate(payloads) if i not in drop]
    got += [payloads[i] for i in sorted(double - drop)]
    random.Random(seed).shuffle(got)
    numbers = [int.from_bytes(p[:8], "little") for p in got]
    late = 0
    seen: set[int] = set()
    for number in numbers:
        late += number not in seen and any(number < other for other in seen)
        seen.add(number)
    assert check(got, [20]) == (20, len(got), len(drop), len(double - drop), late)


def test_foreign_producers_do_not_count_and_foreign_sizes_are_refused() -> None:
    assert check([*sent(0, 2), *sent(9, 5)], [2]) == (2, 2, 0, 0, 0)
    with pytest.raises(ValueError):
        Checker(size=24).add([b"short"], 0)


def test_latencies_need_room_for_the_time() -> None:
    checker = Checker(size=24)
    checker.add(sent(0, 4), 1_000_005)
    latencies = checker.latencies_ms()
    assert latencies is not None
    assert percentiles_ms(latencies)["p50_ms"] == 1.0
    small = Checker(size=8)
    small.add(sent(0, 4, size=8), 10)
    assert small.latencies_ms() is None
    assert percentiles_ms(None) == dict.fromkeys(("p50_ms", "p99_ms", "p999_ms", "max_ms"))


RESULT: dict[str, Any] = {
    "verified": {"missing": 0, "duplicates": 2},
    "median": {"p50_ms": 0.5, "p99_ms": None, "messages_per_s": 600_000.0},
    "raw": {"fdatasync_p50_ms": 0.1},
    "runs": [{"messages_per_s": 7}],
    "durability": "fsynced",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("verified.missing == 0", True),
        ("verified.duplicates == 0", False),
        ("median.messages_per_s >= 500000 and verified.missing == 0", True),
        ("median.p50_ms <= raw.fdatasync_p50_ms + 0.9", True),
        ("median.p50_ms * 2 < raw.fdatasync_p50_ms", False),
        ("0 <= verified.missing < 1", True),
        ("runs[0].messages_per_s == 7", True),
        ("durability == 'fsynced'", True),
        ("not verified.missing == 1", True),
        ("median.p99_ms < 10", False),  # unknown is not small
        ("median.p99_ms == None", True),
        ("verified['missing'] == 0 or 1 == 2", True),
        ("verified.missing > -1", True),
    ],
)
def test_condition(text: str, holds: bool) -> None:
    assert Expression(text).holds(RESULT) is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "verified.missing",
        "__import__('os').system('x') == 0",
        "[x for x in runs] == 1",
        "(lambda: 1)() == 1",
        "verified.missing = 0",
        "2 ** 9999 == 1",
        "verified.missing is 0",
        "f'{durability}' == 'x'",
    ],
)
def test_what_is_no_condition_is_refused_when_it_is_given(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Expression(text)


@pytest.mark.parametrize(
    "text", ["verified.mising == 0", "median.p50_ms.x == 1", "runs[5] == 1", "durability < 3"]
)
def test_name_that_the_result_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Expression(text).holds(RESULT)


def test_values_of_a_condition_are_shown() -> None:
    found = Expression("median.p50_ms <= raw.fdatasync_p50_ms + 0.9").values(RESULT)
    assert found == {"median.p50_ms": 0.5, "raw.fdatasync_p50_ms": 0.1}


def run_of(rate: float, p50: float | None) -> dict[str, Any]:
    return {
        "messages_per_s": rate,
        "megabytes_per_s": rate / 1000,
        **dict.fromkeys(("p50_ms", "p99_ms", "p999_ms", "max_ms"), p50),
        "verified": {"sent": 1, "received": 1, "missing": 0, "duplicates": 0, "out_of_order": 0},
        "server": {"cpu_us_per_message": 2.0, "rss_peak_bytes": int(rate)},
        "durability": "fsynced",
    }


def test_result_has_medians_sums_and_ratios() -> None:
    result = assemble(
        scenario="e2e",
        command="danube bench e2e",
        config={},
        runs=[run_of(300.0, 1.0), run_of(100.0, 3.0), run_of(200.0, 2.0)],
        raw={
            "fdatasync_p50_ms": 0.5,
            "fdatasync_per_s": 100.0,
            "empty_grpc_calls_per_s": 50.0,
            "crc32_mb_per_s": None,
        },
        machine=machine(),
    )
    assert result["median"]["messages_per_s"] == 200.0
    assert result["median"]["p50_ms"] == 2.0
    assert result["verified"]["sent"] == 3
    assert result["server"] == {"cpu_us_per_message": 2.0, "rss_peak_bytes": 300}
    assert result["ratio"]["messages_per_fdatasync"] == 2.0
    assert result["ratio"]["p50_over_fdatasync_p50_ms"] == 1.5
    assert result["ratio"]["megabytes_per_crc32_megabyte"] is None
    assert set(result["machine"]) == {"cpus", "load_before", "python", "versions"}


def test_every_scenario_of_the_catalogue_can_be_run() -> None:
    assert set(SCENARIOS) == set(DEFAULT_MESSAGES)


@given(messages=st.integers(1, 10_000), producers=st.integers(1, 64))
def test_shares_of_the_producers_add_up(messages: int, producers: int) -> None:
    plan = Plan(
        scenario="e2e",
        size=16,
        messages=messages,
        producers=producers,
        consumers=1,
        each=False,
        compression="none",
        timeout_s=1,
    )
    assert sum(plan.shares) == messages
    assert max(plan.shares) - min(plan.shares) <= 1


def test_raw_references_measure_something(tmp_path: Path) -> None:
    disk = fdatasync_reference(tmp_path, seconds=0.05)
    assert disk["fdatasync_per_s"] > 0
    assert disk["fdatasync_p50_ms"] <= disk["fdatasync_p99_ms"]
    assert list(tmp_path.iterdir()) == []
    assert crc32_mb_per_s(seconds=0.01) > 0
    grpc = grpc_reference(seconds=0.1)
    assert all(value > 0 for value in grpc.values())
