"""What a view is: the operations it asks, and the pure function that makes a page of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from pydanube_core.errors import ClusterError

from pydanube_tui.page import Column, Page, Row

Answer = Mapping[str, Any] | ClusterError
Moments = Sequence[tuple[int, float]]  # (milliseconds, value), oldest first
SAMPLES: Final = 30  # of each series a view keeps


class Extent(StrEnum):
    """How much of a list is asked for."""

    ONE = "one"  # the answer as it is
    ALL = "all"  # every page, each in its turn once all were seen
    NEWS = "news"  # newest first: after the first answer only what came since


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One operation that a view asks at each refresh. Where it is `optional` the view does without its answer."""

    operation: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    extent: Extent = Extent.ONE
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a page is made of."""

    arguments: Mapping[str, Any]
    answers: Mapping[str, Answer]
    now_ms: int
    width: int = 80
    height: int = 24
    series: Mapping[str, Moments] = field(default_factory=dict)
    kept: MutableMapping[str, tuple[Any, Row]] = field(default_factory=dict)  # rows of the page before

    def of(self, name: str) -> Mapping[str, Any]:
        """An answer; empty where there is none."""
        found = self.answers.get(name)
        return found if isinstance(found, Mapping) else {}

    def items(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The items of a list."""
        return self.of(name).get("items", ())  # type: ignore[no-any-return]

    def error(self, name: str) -> ClusterError | None:
        """Why an optional answer is missing."""
        found = self.answers.get(name)
        return found if isinstance(found, ClusterError) else None

    def values(self, name: str) -> list[float]:
        """A series without its times."""
        return [value for _, value in self.series.get(name, ())]

    def rates(self, name: str) -> list[float | None]:
        """A counter a second, between each two moments; None where it began anew."""
        moments = self.series.get(name, ())
        found: list[float | None] = []
        for (before_ms, before), (after_ms, after) in pairwise(moments):
            usable = after >= before and after_ms > before_ms
            found.append((after - before) * 1000 / (after_ms - before_ms) if usable else None)
        return found

    def rate(self, name: str) -> float | None:
        """The newest of `rates`."""
        found = self.rates(name)
        return found[-1] if found else None

    def row(self, key: str, item: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Row]) -> Row:
        """The row of an item; that of the page before where the very same item made it."""
        known = self.kept.get(key)
        if known is not None and known[0] is item:
            return known[1]
        made = make(item)
        self.kept[key] = (item, made)
        return made


def _none(_: Mapping[str, Answer]) -> Mapping[str, float]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A view. All functions are pure.

    Attributes:
        summary: what it is for; help and the documentation show it.
        takes: names of its arguments, in the order they are typed after `:`; those of `may` can be left out.
        asks: arguments -> name -> what to ask.
        measures: answers -> name -> a number to keep the last `SAMPLES` of.
        columns: those of its pages, for the letters that sort.
        twin: the command that tells the same, without a screen.
    """

    name: str
    title: str
    summary: str
    asks: Callable[[Mapping[str, Any]], Mapping[str, Ask]]
    page: Callable[[Situation], Page]
    twin: str
    columns: Sequence[Column] = ()
    aliases: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    measures: Callable[[Mapping[str, Answer]], Mapping[str, float]] = _none
    live: bool = False  # rows come from a reader of messages, not from answers
