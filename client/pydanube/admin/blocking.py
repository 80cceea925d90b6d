"""Groups of operations that are waited for, and their plans."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, overload

from pydanube.admin.plans import Plan, SyncPlan
from pydanube.admin.values import ResultT
from pydanube.blocking import Blocking, InLoop

P = ParamSpec("P")


class BlockingPlan(Generic[P, ResultT]):
    """A method of a group that plans: its plan is waited for, and so are the plan's own methods."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Plan[ResultT]]]) -> None:
        self._blocking = Blocking(method)
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: InLoop[Any], owner: type) -> Callable[P, SyncPlan[ResultT]]: ...

    def __get__(self, instance: InLoop[Any] | None, owner: type) -> Self | Callable[P, SyncPlan[ResultT]]:
        if instance is None:
            return self
        plan = self._blocking.__get__(instance, owner)

        def call(*args: P.args, **options: P.kwargs) -> SyncPlan[ResultT]:
            return SyncPlan(instance._loop, plan(*args, **options))

        return update_wrapper(call, plan)
