"""The budget of processor time that one principal may take from the loop, over all its calls.

A single call has limits of its own. Many calls below those limits would still delay all other callers, so each
principal, or each address if authorization is off, has a budget. Only steps that hold the loop for `LONG_STEP_S` or
more count, because short steps alternate with the work of others. A principal in debt waits before its next call begins.
No call is refused. The operator at the broker's own socket has no budget.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from types import coroutine
from typing import Any, Final, TypeVar

from pydanube_core.security.identity import Identity, relayed_by

from pydanube_broker.rpc.caller import COLD_CALL, Called
from pydanube_broker.topics.gate import monotonic_ms
from pydanube_broker.topics.rate_limit import TokenBucket

T = TypeVar("T")
Handler = Callable[[bytes], Awaitable[bytes]]

LONG_STEP_S: Final = 0.01
#: Microseconds per second that the long steps of one principal may take, also the burst. Half of the loop stays for others.
BUDGET_US: Final = 500_000
MOST_ACCOUNTS: Final = 10_000  # beyond this number, those without debt are forgotten

log = logging.getLogger("pydanube.rpc")


class ProcessorAccount:
    """The budget of one principal or address."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waited = 0  # calls that had to wait
        self._bucket = TokenBucket(BUDGET_US, monotonic_ms())

    def charge(self, seconds: float) -> None:
        """Count processor time, into debt if need be."""
        self._bucket.take(int(seconds * 1e6), monotonic_ms())

    @property
    def wait_s(self) -> float:
        """Seconds until the debt is paid. 0 without one."""
        return self._bucket.wait_ms(1, monotonic_ms()) / 1000

    async def room(self) -> None:
        """Wait until there is no debt. Of callers that wait together, each begins when the one before left no debt."""
        while wait_s := self.wait_s:
            self.waited += 1
            if self.waited == 1:  # once: the account may stay in debt for hours
                log.warning("calls_slowed", extra={"caller": self.name, "wait_s": wait_s})
            await asyncio.sleep(wait_s)


#: The account charged by the running task, for work that it hands to threads.
charged: ContextVar[ProcessorAccount | None] = ContextVar("charged", default=None)


def charge_caller(seconds: float) -> None:
    """Charge processor time of a thread to the caller of the task that waited for it."""
    if (account := charged.get()) is not None:
        account.charge(seconds)


class ProcessorBudget:
    """The accounts of a broker. Single user: the loop."""

    def __init__(self) -> None:
        self._accounts: dict[str, ProcessorAccount] = {}

    def account(self, called: Called = COLD_CALL) -> ProcessorAccount | None:
        """Return the account of a caller. None for the operator and for other brokers on their own behalf."""
        identity = called.identity
        if identity is not None and identity.actor is not None:
            identity = identity.actor
        name = _name(identity, called)
        if not name:
            return None
        found = self._accounts.get(name)
        if found is None:
            if len(self._accounts) >= MOST_ACCOUNTS:
                self._accounts = {key: each for key, each in self._accounts.items() if each.wait_s}
            found = self._accounts[name] = ProcessorAccount(name)
        return found

    def bound(self, handler: Handler) -> Handler:
        """Return the handler with a budget for each of its callers."""

        async def within(data: bytes) -> bytes:
            return await self.within(handler(data), self.account())

        return within

    def bound_all(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        return {path: self.bound(handler) for path, handler in handlers.items()}

    async def within(self, work: Awaitable[T], account: ProcessorAccount | None) -> T:
        """Run work on an account. It begins when there is no debt, and its long steps are charged."""
        if account is None:
            return await work
        try:
            await account.room()
        except BaseException:
            if isinstance(work, Coroutine):
                work.close()  # it never began
            raise
        before = charged.set(account)
        try:
            return await metered(work, account.charge)
        finally:
            charged.reset(before)


def _name(identity: Identity | None, called: Called) -> str:
    if identity is not None and identity.method != "none":
        return "" if identity.everything else str(identity.principal)
    peer = called.caller.peer
    return "" if relayed_by.get() or peer.local else peer.host


@coroutine
def metered(work: Awaitable[T], charge: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await `work`, and charge the processor seconds of each step of it that takes `LONG_STEP_S` or more."""
    steps = work.__await__()
    step: Callable[[Any], Any] = steps.send
    given: Any = None
    while True:
        began = time.thread_time()
        try:
            waited = step(given)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            spent_s = time.thread_time() - began
            if spent_s >= LONG_STEP_S:
                charge(spent_s)
        try:
            given = yield waited
            step = steps.send
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            step, given = steps.throw, error
