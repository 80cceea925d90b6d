"""Derive blocking classes from asyncio classes, with the same arguments and types."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from pydanube.blocking.loop import Loop

InnerT = TypeVar("InnerT")
T = TypeVar("T")
P = ParamSpec("P")


class AroundAsyncio(Protocol):
    """Base of a blocking object around an asyncio object, `_inner`, which belongs to the loop."""

    @property
    def _loop(self) -> Loop: ...

    @property
    def _inner(self) -> Any: ...


class InLoop(Generic[InnerT]):
    """Base of a blocking object that may be called from any thread. Calls run in the client's loop."""

    def __init__(self, loop: Loop, inner: InnerT) -> None:
        self._loop = loop
        self._inner = inner


class Blocking(Generic[P, T]):
    """A blocking method: runs the inner object's method in the loop, and waits for its result."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: AroundAsyncio, owner: type) -> Callable[P, T]: ...

    def __get__(self, instance: AroundAsyncio | None, owner: type) -> Self | Callable[P, T]:
        if instance is None:
            return self

        def call(*args: P.args, **options: P.kwargs) -> T:
            return instance._loop.call(self._method(instance._inner, *args, **options))

        return update_wrapper(call, getattr(instance._inner, self._method.__name__))


class Wrapped(Generic[P, InnerT, T]):
    """A blocking method whose result is an asyncio object, too: `wrap(loop, result)` makes the blocking one."""

    def __init__(self, method: Blocking[P, InnerT], wrap: Callable[[Loop, InnerT], T]) -> None:
        self._blocking = method
        self._wrap = wrap
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: AroundAsyncio, owner: type) -> Callable[P, T]: ...

    def __get__(self, instance: AroundAsyncio | None, owner: type) -> Self | Callable[P, T]:
        if instance is None:
            return self
        inner = self._blocking.__get__(instance, owner)

        def call(*args: P.args, **options: P.kwargs) -> T:
            return self._wrap(instance._loop, inner(*args, **options))

        return update_wrapper(call, inner)


def at_once(method: Callable[Concatenate[Any, P], T]) -> Blocking[P, T]:
    """Run a method that does not wait in the loop, where nothing changes during the call."""

    async def call(inner: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return method(inner, *args, **options)

    update_wrapper(call, method)
    return Blocking(call)


def same(name: str) -> Any:
    """Return a property with the inner object's value. Declare its type where it is used: `topic: Final[str] = same("topic")`."""
    return property(attrgetter(f"_inner.{name}"), doc=f"`{name}` of the object of asyncio.")
