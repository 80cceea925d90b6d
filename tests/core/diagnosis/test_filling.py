from __future__ import annotations

from pydanube_core.diagnosis.filling import AHEAD, filling

GIB = 1 << 30


def samples(*rates: float, every_s: float = 5.0, free: float = 100 * GIB) -> list[tuple[int, int]]:
    found = [(0, int(free))]
    for number, rate in enumerate(rates, start=1):
        free -= rate * every_s
        found.append((int(number * every_s * 1000), int(free)))
    return found


def test_a_copy_of_two_minutes_does_not_fill_the_day() -> None:
    """Seen: 7.6 MB/s for two minutes beside 20 GiB were a warning of 46 minutes left."""
    seen = filling(samples(*[7.6e6] * 24), room=20 * GIB, least_s=60)
    assert seen is not None
    assert 20 * GIB / seen.bytes_per_s > AHEAD * seen.seen_s


def test_what_lasts_is_believed() -> None:
    seen = filling(samples(*[7.6e6] * 80), room=20 * GIB, least_s=60)
    assert seen is not None
    assert abs(seen.bytes_per_s - 7.6e6) < 10
    assert 20 * GIB / seen.bytes_per_s < AHEAD * seen.seen_s


def test_a_burst_in_one_half_is_no_rate() -> None:
    for rates in ([0.0] * 12 + [20e6] * 12, [50e6] * 12 + [0.0] * 12, [200e6] + [0.0] * 40):
        seen = filling(samples(*rates), room=20 * GIB, least_s=60)
        assert seen is None or seen.bytes_per_s < 1e6 or 20 * GIB / seen.bytes_per_s > AHEAD * seen.seen_s


def test_a_quick_fill_after_a_long_quiet_time_is_seen_over_its_own_time() -> None:
    seen = filling(samples(*[0.0] * 60, *[50e6] * 30), room=10 * GIB, least_s=60)
    assert seen is not None
    assert abs(seen.bytes_per_s - 50e6) < 1e6
    assert 10 * GIB / seen.bytes_per_s < AHEAD * seen.seen_s


def test_too_little_was_seen() -> None:
    assert filling([], room=1, least_s=1) is None
    assert filling(samples(*[1e9] * 3), room=1, least_s=1) is None
    assert filling(samples(*[1e9] * 8), room=1, least_s=60) is None
