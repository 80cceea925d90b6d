"""The collector of a broker's process looks only at what is new, and at everything once half as much was added."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from pydanube_cli import collecting
from pydanube_cli.collecting import Collecting


class Ring:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def found() -> Iterator[Collecting]:
    thresholds, made = gc.get_threshold(), Collecting()
    made.begin()
    yield made
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_new_is_collected_and_what_survives_is_not_looked_at_again(found: Collecting) -> None:
    kept = [Ring() for _ in range(1000)]
    gone = weakref.ref(Ring())
    assert found.collect() >= 1
    assert gone() is None
    frozen = gc.get_freeze_count()
    assert frozen >= 1000
    watched = weakref.ref(kept[0])
    kept.clear()
    found.collect()
    assert watched() is not None, "put aside: only a round over everything finds it"


def test_everything_is_looked_at_once_half_as_much_was_added(
    found: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "LEAST", 0)
    kept = [Ring() for _ in range(gc.get_freeze_count())]
    found.collect()
    watched = weakref.ref(kept[0])
    kept.clear()
    found.collect()
    assert watched() is None


def test_everything_is_looked_at_once_the_process_is_less_busy(
    found: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "LEAST", 0)
    kept = [Ring() for _ in range(gc.get_freeze_count())]
    found.collect()
    watched = weakref.ref(kept[0])
    kept.clear()
    found.collect(is_busy=True)
    assert watched() is not None, "a full round stops the process for long"
    found.collect()
    assert watched() is None


@pytest.mark.parametrize(("share", "late_s"), [(0.9, 0.0), (0.1, 0.5)], ids=["busy", "on a loaded machine"])
def test_full_round_comes_after_some_calm_seconds(
    found: Collecting, monkeypatch: pytest.MonkeyPatch, share: float, late_s: float
) -> None:
    monkeypatch.setattr(collecting, "LEAST", 0)
    kept = [Ring() for _ in range(gc.get_freeze_count())]
    found.round(share=0.0, late_s=0.0)
    watched = weakref.ref(kept[0])
    kept.clear()
    found.round(share=share, late_s=late_s)
    for _ in range(collecting.CALM - 1):
        found.round(share=0.0, late_s=0.0)
    assert watched() is not None
    found.round(share=0.0, late_s=0.0)
    assert watched() is None


def test_busy_process_waits_for_a_full_round_no_longer_than_its_bound(
    found: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "LEAST", 0)
    monkeypatch.setattr(collecting, "WAITS_S", 0.0)
    kept = [Ring() for _ in range(gc.get_freeze_count())]
    found.collect(is_busy=True)
    watched = weakref.ref(kept[0])
    kept.clear()
    found.collect(is_busy=True)
    assert watched() is None


def test_objects_that_are_freed_again_cause_no_full_round(
    found: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that had lived for a second counted as new, so that a busy process had a full round every ten minutes."""
    monkeypatch.setattr(collecting, "LEAST", 0)
    monkeypatch.setattr(collecting, "WAITS_S", 0.0)
    whole = Ring()
    watched = weakref.ref(whole)
    found.collect(is_busy=True)
    del whole
    for _ in range(10):
        short_lived = [[] for _ in range(gc.get_freeze_count() // 4)]  # type: ignore[var-annotated]
        found.collect(is_busy=True)
        short_lived.clear()
    assert watched() is not None


def test_the_oldest_generation_is_left_to_it(found: Collecting) -> None:
    assert gc.get_threshold() == collecting.THRESHOLDS
