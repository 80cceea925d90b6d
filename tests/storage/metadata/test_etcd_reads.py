"""Concurrent reads of single keys share requests, and each gets the answer for its own key."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydanube_core.errors import ClosedResource, MetadataUnavailable
from pydanube_storage.metadata import MAX_OPERATIONS, KeyRange, KeyValue, Put, RangePage
from pydanube_storage.metadata.etcd import EtcdStore
from pydanube_storage.metadata.etcd import link as api
from pydanube_storage.metadata.etcd.refusals import AnswerTooLarge

from tests.storage.metadata.adapters import opened, options
from tests.support.etcd import EtcdMembers
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]
MANY = 500
ALONE = 8


async def read_all_at_once(store: EtcdStore, keys: list[str]) -> list[KeyValue | Exception | None]:
    found: list[KeyValue | Exception | None] = [None] * len(keys)

    async def read(number: int) -> None:
        try:
            found[number] = await store.get(keys[number])
        except Exception as error:
            found[number] = error

    async with anyio.create_task_group() as group:
        for number in range(len(keys)):
            group.start_soon(read, number)
    return found


async def test_many_reads_take_few_requests_and_get_their_own_values(
    etcd_member: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(options(etcd_member)) as store:
        for first in range(0, MANY, 50):
            await store.transact([Put(f"/{n}", b"%d" % n) for n in range(first, first + 50)])
        call, calls = store.link.call, list[Any]()

        async def counted(method: api.Method, request: Any) -> Any:
            calls.append(method)
            return await call(method, request)

        monkeypatch.setattr(store.link, "call", counted)
        keys = [f"/{n}" if n % 3 else f"/none-{n}" for n in range(MANY)]
        found = await read_all_at_once(store, keys)
        for number, item in enumerate(found):
            if number % 3:
                assert isinstance(item, KeyValue)
                assert (item.key, item.value) == (f"/{number}", b"%d" % number)
            else:
                assert item is None
        assert len(calls) <= MANY // MAX_OPERATIONS + 2 * ALONE, "the first ones leave alone"


async def test_shared_pages_are_those_that_were_asked_for(
    etcd_member: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(options(etcd_member)) as store:
        for n in range(40):
            revision = await store.transact([Put(f"/{n}/{m}", b"") for m in range(n % 4 + 1)])
        call, calls = store.link.call, list[Any]()
        is_too_large = False

        async def counted(method: api.Method, request: Any) -> Any:
            calls.append(method)
            if method is api.READS and is_too_large and len(request.success) > 1:
                raise AnswerTooLarge
            return await call(method, request)

        monkeypatch.setattr(store.link, "call", counted)
        for is_too_large in (False, True):
            calls.clear()
            pages: dict[int, RangePage] = {}

            async def read(n: int, pages: dict[int, RangePage] = pages) -> None:
                pages[n] = await store.range(KeyRange.prefix(f"/{n}/"), limit=3)

            async with anyio.create_task_group() as group:
                for n in range(40):
                    group.start_soon(read, n)
            for n, page in pages.items():
                assert [item.key for item in page.items] == [f"/{n}/{m}" for m in range(min(3, n % 4 + 1))]
                assert page.more == (n % 4 == 3)
                assert page.revision == revision
            assert (len(calls) >= 40) == is_too_large


async def test_each_read_of_a_failed_request_gets_the_error(
    etcd_member: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(options(etcd_member)) as store:
        call = store.link.call

        async def broken(method: api.Method, request: Any) -> Any:
            if method is api.READS:
                raise MetadataUnavailable("away")
            return await call(method, request)

        monkeypatch.setattr(store.link, "call", broken)
        found = await read_all_at_once(store, ["/a"] * 50)
        assert {type(each) for each in found} == {type(None), MetadataUnavailable}
        monkeypatch.undo()
        assert await read_all_at_once(store, ["/a"] * 50) == [None] * 50, "it goes on"


async def test_reads_that_wait_end_with_the_store(
    etcd_member: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    async with anyio.create_task_group() as group:
        async with EtcdStore(options(etcd_member)) as store:

            async def silent(method: api.Method, request: Any) -> Any:
                await anyio.sleep_forever()

            async def read() -> None:
                try:
                    await store.get("/a")
                except ClosedResource as error:
                    found.append(error)

            monkeypatch.setattr(store.link, "call", silent)
            for _ in range(20):
                group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
        await until(lambda: len(found) == 20 - ALONE)
        group.cancel_scope.cancel()
