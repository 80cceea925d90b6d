"""The dict of bounded size."""

from __future__ import annotations

from pydanube_core.recent import RecentDict


def test_what_was_set_or_used_longest_ago_goes_first() -> None:
    kept: RecentDict[str, int] = RecentDict(3)
    for number, name in enumerate("abc"):
        kept[name] = number
    assert kept.use("a") == 0
    kept["b"] = 7  # set again
    assert kept["c"] == 2, "only read"
    kept["d"] = 3
    assert list(kept.items()) == [("a", 0), ("b", 7), ("d", 3)]
    assert kept.use("c") is None


def test_a_default_is_bounded_too_and_does_not_replace() -> None:
    kept: RecentDict[str, int] = RecentDict(2)
    kept["a"] = 1
    assert kept.setdefault("a", 9) == 1
    kept.setdefault("b", 2)
    kept.setdefault("c", 3)
    assert dict(kept) == {"b": 2, "c": 3}
