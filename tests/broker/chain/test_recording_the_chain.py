"""When the chain of a broker's journal is recorded for its heirs, and when that is done already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydanube_broker.tier.storing import Storing
from pydanube_core.errors import Unavailable

pytestmark = pytest.mark.anyio


class Chain:
    """A chain, and its part of the record `/journals/<broker>`, which is closed while `term` is None."""

    from_number = 4

    def __init__(self) -> None:
        self.is_needed = self.is_wanted = False
        self.term: int | None = 3
        self.calls: list[str] = []

    async def copied(self, from_piece: int) -> int | None:
        assert from_piece == self.from_number
        self.calls.append("record")
        return self.term

    async def begin_term(self, term: int) -> None:
        self.calls.append(f"term {term}")

    async def want(self, cluster: str, *, needed: bool) -> None:
        self.calls.append(f"copy to {cluster}")
        self.is_wanted = True
        self.is_needed = self.is_needed or needed

    def take(self) -> list[str]:
        taken, self.calls = self.calls, []
        return taken


def storing_on(chain: Any) -> Storing:
    async def cluster() -> str:
        return "c"

    membership: Any = SimpleNamespace(registration=SimpleNamespace())
    return Storing(chain, chain, membership, cluster)


async def test_a_chain_is_recorded_once_for_stored_topics_and_each_time_that_a_copy_alone_begins() -> None:
    chain = Chain()
    storing = storing_on(chain)
    await storing.begin()
    assert chain.take() == ["record", "term 3", "copy to c"]
    await storing.begin()
    assert chain.take() == []
    await storing.begin(needed=False)
    assert chain.take() == ["record", "term 3", "copy to c"]


async def test_nothing_is_copied_while_other_brokers_take_topics_over() -> None:
    chain = Chain()
    chain.term = None
    with pytest.raises(Unavailable):
        await storing_on(chain).begin()
    assert (chain.take(), chain.is_needed) == (["record"], False)
