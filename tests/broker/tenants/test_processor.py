"""Processor time of a principal's calls: long steps are charged, debts are waited for, and others are not in the way."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest
from pydanube_broker.rpc.caller import Caller, Peer
from pydanube_broker.tenants import processor
from pydanube_broker.tenants.processor import ProcessorBudget, charge_caller, metered
from pydanube_core.security.identity import Identity
from pydanube_core.security.permissions import Principal

pytestmark = pytest.mark.anyio


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


class Called:
    def __init__(self, name: str = "", host: str = "10.0.0.1", *, everything: bool = False) -> None:
        self.identity = None
        if name:
            self.identity = Identity(principal=Principal(name), method="token", everything=everything)
        self.caller = Caller(peer=Peer(address=f"ipv4:{host}:5"))


async def test_long_steps_are_charged_and_short_ones_are_not() -> None:
    spent: list[float] = []

    async def work() -> str:
        burn(0.03)
        await asyncio.sleep(0)
        burn(0.001)
        await asyncio.sleep(0.001)
        burn(0.02)
        return "done"

    assert await metered(work(), spent.append) == "done"
    assert len(spent) == 2
    assert spent[0] >= 0.03
    assert spent[1] >= 0.02


async def test_errors_and_cancellation_pass_through() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("as it is")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    with pytest.raises(ValueError, match="as it is"):
        await metered(fails(), lambda seconds: None)
    with anyio.move_on_after(0.01) as scope:
        await metered(waits(), lambda seconds: None)
    assert scope.cancelled_caught
    assert ended == ["cleaned up"]


async def test_one_who_burns_the_processor_waits_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "BUDGET_US", 100_000)
    budget = ProcessorBudget()
    begun = time.monotonic()
    calls = 0

    async def expensive() -> None:
        nonlocal calls
        burn(0.05)
        calls += 1

    async def many() -> None:
        hostile = budget.account(Called("mallory"))
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(budget.within, expensive(), hostile)

    with anyio.move_on_after(1):
        await many()
    elapsed = time.monotonic() - begun
    assert 2 <= calls <= (elapsed * 100_000 + 100_000) / 50_000 + 2, (
        "its share, a burst, and the step that went beyond"
    )
    for other in (Called("ann"), Called(host="10.0.0.1"), Called("root", everything=True)):
        account = budget.account(other)
        assert account is None or not account.wait_s


async def test_an_unknown_caller_is_its_address_and_threads_are_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor, "BUDGET_US", 100_000)
    budget = ProcessorBudget()
    here = budget.account(Called(host="10.0.0.1"))
    assert here is not None
    assert budget.account(Called(host="10.0.0.1")) is here
    assert budget.account(Called(host="10.0.0.2")) is not here

    async def in_a_thread() -> None:
        charge_caller(0.3)

    await budget.within(in_a_thread(), here)
    assert 1 < here.wait_s <= 2.1
