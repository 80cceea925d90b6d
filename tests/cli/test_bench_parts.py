"""The parts of the benchmark that decide: checking messages, conditions, medians. And the raw references run."""

from __future__ import annotations

import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_cli.bench.catalogue import DEFAULT_MESSAGES, OF_A_CLUSTER, Plan
from pydanube_cli.bench.cluster_scenarios import CLUSTER_SCENARIOS
from pydanube_cli.bench.payloads import Checker, Part, Tally, make_payloads, make_tally, merge, percentiles_ms
from pydanube_cli.bench.raw import crc32_mb_per_s, fdatasync_reference, grpc_reference
from pydanube_cli.bench.result import Expression, assemble, machine
from pydanube_cli.bench.sampling import Sampler, stage_of, stages
from pydanube_cli.bench.scenarios import SCENARIOS
from pydanube_core.batch.encode import encode_batch
from pydanube_core.errors import InvalidArgument

from tests.cli.running import Danube


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


@given(
    owners=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    drop=st.sets(st.integers(0, 11)),
    double=st.dictionaries(st.integers(0, 11), st.integers(0, 2)),
)
def test_consumers_of_one_subscription_are_checked_together(
    owners: list[int], drop: set[int], double: dict[int, int]
) -> None:
    payloads = sent(0, 12)
    parts: list[Part] = []
    received = 0
    for consumer in range(3):
        mine = [p for i, p in enumerate(payloads) if owners[i] == consumer and i not in drop]
        mine += [payloads[i] for i, again in double.items() if again == consumer and i not in drop]
        received += len(mine)
        checker = Checker(size=24)
        if mine:
            checker.add(mine, 10)
        parts.append(Part(**asdict(checker.part([12]))))
    found = merge(parts, [12])
    assert (found.sent, found.received, found.missing) == (12, received, len(drop))
    assert found.duplicates == len(set(double) - drop)


def test_order_is_looked_for_within_a_key_where_only_that_is_promised() -> None:
    payloads = sent(0, 6)
    mixed = [payloads[i] for i in (1, 3, 0, 2, 5, 4)]  # keys 1 1 0 0 1 0: each in order
    checker = Checker(size=24)
    checker.add(mixed, 10)
    assert checker.part([6], keys=2).out_of_order == 0
    assert checker.part([6]).out_of_order == 3
    checker = Checker(size=24)
    checker.add([payloads[i] for i in (2, 0, 1, 3)], 10)
    assert checker.part([6], keys=2).out_of_order == 1


def test_workers_add_up_what_each_has_received(tmp_path: Path) -> None:
    path = tmp_path / "tally"
    make_tally(path, 2)
    with Tally(str(path), 0) as first, Tally(str(path), 1) as second:
        first.put(5)
        second.put(7)
        first.put(6)
        assert (first.total(), second.total()) == (13, 13)


def plan(**changed: Any) -> Plan:
    whole: dict[str, Any] = {
        "scenario": "e2e",
        "size": 16,
        "messages": 1000,
        "producers": 1,
        "consumers": 4,
        "each": False,
        "compression": "none",
        "timeout_s": 1,
    }
    return Plan(**whole | changed)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"scenario": "latency", "sub_type": "shared"}, "scenario"),
        ({"scenario": "publish", "keys": 5}, "scenario"),
        ({"ack_delay_s": 60.0}, "ack_delay"),
        ({"scenario": "topics", "topics": 600}, "messages"),
    ],
)
def test_plan_that_measures_nothing_is_refused(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        plan(**changed)
    assert refused.value.details["field"] == field


def test_reference_is_the_plain_batch_path() -> None:
    measured = plan(sub_type="key-shared", keys=10, ack_delay_s=0.01)
    assert measured.about_a_subscription
    assert measured.shared_subscription
    assert measured.reference == plan(consumers=1)
    assert not measured.reference.about_a_subscription


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


def test_ratio_to_exclusive_is_the_median_of_neighbours() -> None:
    def pair(rate: float, reference: float) -> dict[str, Any]:
        return run_of(rate, None) | {
            "reference": {"messages_per_s": reference},
            "share_of_reference": rate / reference,
        }

    result = assemble(
        scenario="e2e",
        command="",
        config={},
        runs=[pair(8.0, 10.0), pair(70.0, 100.0), pair(900.0, 1000.0)],
        raw={},
        machine=machine(),
    )
    assert result["ratio"]["messages_per_s_to_exclusive"] == 0.8
    assert result["median"]["reference_messages_per_s"] == 100.0


def test_every_scenario_of_the_catalogue_can_be_run() -> None:
    assert {*SCENARIOS, *CLUSTER_SCENARIOS} == set(DEFAULT_MESSAGES)
    assert set(CLUSTER_SCENARIOS) == set(OF_A_CLUSTER)


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
    at_most = fdatasync_reference(tmp_path, seconds=3600, syncs=64)
    assert at_most["fdatasync_p50_ms"] > 0
    assert crc32_mb_per_s(seconds=0.01) > 0
    grpc = grpc_reference(seconds=0.1)
    assert all(value > 0 for value in grpc.values())


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("profile",), "road"),
        (("profile", "latency"), "road"),
        (("e2e", "each"), "road"),
        (("profile", "each", "--broker", "http://127.0.0.1:1"), "broker"),
    ],
)
def test_only_a_road_of_a_broker_of_its_own_is_profiled(
    danube: Danube, words: tuple[str, ...], field: str
) -> None:
    ran = danube("bench", *words, "--json")
    assert ran.code != 0
    assert ran.error["details"]["field"] == field


def test_samples_count_for_the_innermost_function_and_its_room() -> None:
    payloads = [b"x" * 100] * 200
    sampler = Sampler()
    sampler.start()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        encode_batch(payloads)
    found = stages(sampler.stop(), messages=1000)
    assert found["samples"] >= 10
    batch = next(one for one in found["stages"] if one["stage"] == "core.batch")
    assert batch["share"] > 0.5
    assert 300 <= found["us_per_message"] < 1000
    assert stage_of("pydanube_broker/journal/disk.py:Disk.pwritev") == "journal"
    assert stage_of("pydanube/sending/publish_lane.py:PublishLane.run") == "client.sending"
