"""Records that operators declare by name, such as connectors and links: read, written, forecast and undone alike.

A change writes a later generation, by which those who carry the record out see that it is another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pydanube_core.errors import AlreadyExists, ClusterError, InvalidArgument
from pydanube_core.refusals import changed_since

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.forecast import Done, Forecast, Undo, entry, nothing_left
from pydanube_admin.engine.operation import Forecaster, Undoer
from pydanube_admin.engine.stored_grants import state_values


class Declared(Protocol):
    """A record: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...

    @property
    def paused(self) -> bool: ...

    @property
    def generation(self) -> int: ...

    def to_bytes(self) -> bytes: ...

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Self: ...


R = TypeVar("R", bound=Declared)
#: returns a record before a request and after it. Raises the errors of the request
Changing = Callable[[Context, Any], Awaitable[tuple[R | None, R | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRecords(Generic[R]):
    """The records of one kind.

    Attributes:
        kind: in words, which is also the field of a request with its name: `link`.
        prefix: of their keys.
        shown: returns the declared fields, as plans show them.
        pinned: returns what must stay as it is between a plan and its application.
        missing: the error for a name without a record.
    """

    kind: str
    prefix: str
    key: Callable[[str], str]
    record: type[R]
    shown: Callable[[R], dict[str, Any]]
    pinned: Callable[[R], Any]
    missing: type[ClusterError]

    async def all(self, context: Context) -> list[R]:
        return [self.record.from_bytes(value) for value in await state_values(context, self.prefix)]

    async def stored(self, context: Context, name: str) -> R | None:
        item = await context.port.read_state(self.key(name))
        return None if item is None else self.record.from_bytes(item.value)

    async def found(self, context: Context, name: str) -> R:
        """Return the record of that name. Raises `missing`."""
        found = await self.stored(context, name)
        if found is None:
            raise self.missing(
                f"there is no {self.kind} {name!r}. See danube {self.kind}s list", field=self.kind, value=name
            )
        return found

    async def check_new(self, context: Context, name: str, *, most: int, instead: str) -> None:
        """Check that a record of that name may be created. `instead`: what to do if there is one."""
        records = await self.all(context)
        if any(each.name == name for each in records):
            raise AlreadyExists(f"the {self.kind} {name} exists. {instead}", field=self.kind, value=name)
        if len(records) >= most:
            raise InvalidArgument(
                f"there are {most} {self.kind}s already. Delete one.", field=self.kind, value=name
            )

    async def write(self, context: Context, name: str, record: R | None) -> None:
        await context.port.write_state({self.key(name): None if record is None else record.to_bytes()})

    def forecast_of(self, change: Changing[R]) -> Forecaster:
        """Return the forecast of an operation that makes this change."""

        async def forecast(context: Context, request: Any) -> Forecast:
            return self.forecast(getattr(request, self.kind), *await change(context, request))

        return forecast

    def undo_of(self, made: Callable[[Any, R | None], R | None]) -> Undoer:
        """Return the undo of an operation. `made`: returns the record after it, by the request and the record before."""

        async def undo(context: Context, request: Any, done: Done) -> Undo:
            return await self.undo(
                context, getattr(request, self.kind), made(request, self.before(done)), done
            )

        return undo

    async def deleted(self, context: Context, request: Any) -> tuple[R, None]:
        """Return the change of a deletion."""
        return await self.found(context, getattr(request, self.kind)), None

    def forecast(self, name: str, before: R | None, after: R | None) -> Forecast:
        return Forecast(
            diff=[entry(f"{self.kind}s/{name}", self._shown(before), self._shown(after))],
            image={"before": None if before is None else before.to_bytes().decode()},
            basis=[None if each is None else self.pinned(each) for each in (before, after)],
        )

    def before(self, done: Done) -> R | None:
        """Return the record from before a change."""
        stored = done.image["before"]
        return None if stored is None else self.record.from_bytes(stored.encode())

    async def undo(self, context: Context, name: str, made: R | None, done: Done) -> Undo:
        """Write back the record from before, unless it was changed again."""
        before, now = self.before(done), await self.stored(context, name)
        if self._shown(now) not in (self._shown(made), self._shown(before)):
            raise changed_since(f"the {self.kind} {name}")
        if self._shown(now) == self._shown(before):
            return Undo(act=nothing_left)
        generation = max(each.generation for each in (now, before) if each is not None) + 1
        back = None if before is None else replace(before, generation=generation)
        return Undo(act=partial(self.write, context, name, back), forecast=self.forecast(name, now, back))

    def _shown(self, record: R | None) -> dict[str, Any] | None:
        return None if record is None else self.shown(record)


def paused_or_not(record: R, *, paused: bool) -> R:
    """Return the record paused or not, a generation later if that is a change."""
    if record.paused == paused:
        return record
    return replace(record, paused=paused, generation=record.generation + 1)


def undone_pause(*, paused: bool) -> Callable[[Any, R | None], R | None]:
    """Return what `undo_of` takes for a pause, or for its end."""

    def made(request: Any, before: R | None) -> R:
        assert before is not None
        return replace(before, paused=paused)

    return made
