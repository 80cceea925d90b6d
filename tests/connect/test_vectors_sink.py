"""`vectors-sink` with pgvector and with Qdrant's embedded engine: upserts, deletions, what does not fit."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from pydanube.testing import InMemoryCluster
from pydanube_connect.file import declared
from pydanube_connect.running import check, runner_of
from pydanube_core.errors import ClusterError, InvalidArgument
from qdrant_client import QdrantClient

from tests.connect.servers import Postgres, pgvector_binaries

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
Read = Callable[[], dict[str, tuple[list[float], dict[str, Any]]]]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(pgvector_binaries()) as found:
        yield found


@pytest.fixture(params=["pgvector", "qdrant"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Read]:
    """The url of an empty database, and a function that reads its points by id."""
    if request.param == "qdrant":

        def points() -> dict[str, tuple[list[float], dict[str, Any]]]:
            client = QdrantClient(path=str(tmp_path / "q"))
            found, _ = client.scroll("items", limit=10_000, with_vectors=True)
            client.close()
            return {each.payload.pop("danube_id"): (list(each.vector), each.payload) for each in found}  # type: ignore[union-attr,arg-type]

        return f"file://{tmp_path}/q", points
    server = request.getfixturevalue("server")
    server.sql("DROP TABLE IF EXISTS items")

    def rows() -> dict[str, tuple[list[float], dict[str, Any]]]:
        found = server.sql("SELECT id, embedding::text, payload FROM items")
        return {name: ([float(n) for n in text[1:-1].split(",")], payload) for name, text, payload in found}

    return server.dsn, rows


def file(address: str, **settings: Any) -> dict[str, Any]:
    terms = {"url": address, "collection": "items", "vector_field": "v", "distance": "l2", **settings}
    return {
        "name": "vectors", "connector": "vectors-sink", "topic": "t", "settings": terms,
        "delivery": {"backoff_s": 0.05, "on_error": "dead_letter", "start": "earliest"},
    }  # fmt: skip


async def once(client: Any, tree: dict[str, Any]) -> Any:
    runner = runner_of(declared(tree, path="v.toml"), client, stop=anyio.Event(), once=True)
    await runner.run()
    return runner.statistics


async def publish(client: Any, *records: tuple[str | None, Any]) -> None:
    async with client.producer("t") as producer:
        for key, value in records:
            gone = {"danube-null": "true"} if value is None else None
            await producer.send(
                b"" if value is None else json.dumps(value).encode(), key=key, attributes=gone
            )


@pytest.fixture
async def client(memory: InMemoryCluster) -> AsyncIterator[Any]:
    async with memory.connect() as found:
        yield found


async def test_points_follow_their_keys(client: Any, target: tuple[str, Read]) -> None:
    url, read = target
    await publish(
        client,
        ("a", {"v": [1, 0], "text": "one"}),
        ("b", {"v": [0, 1], "n": 2}),
        ("a", {"v": [0.5, 0.25], "text": "two"}),
    )
    found = await once(client, file(url))
    assert (found.records, found.guarantee) == (3, "idempotent")
    assert read() == {"a": ([0.5, 0.25], {"text": "two"}), "b": ([0.0, 1.0], {"n": 2})}
    await publish(client, ("b", None), ("never", None), ("c", {"v": [3, 4]}))
    await once(client, file(url))
    assert read().keys() == {"a", "c"}


async def test_a_point_for_each_record_is_not_doubled_by_a_second_run(
    client: Any, target: tuple[str, Read]
) -> None:
    url, read = target
    await publish(client, *((None, {"v": [n, n]}) for n in range(30)))
    await once(client, file(url, id="offset"))
    again = {**file(url, id="offset"), "name": "again"}  # the same records, as after a lost acknowledgement
    await once(client, again)
    found = read()
    assert sorted(vector[0] for vector, _ in found.values()) == list(range(30))
    assert "/default/t/0/7" in found


async def test_what_does_not_fit_is_a_dead_letter_with_its_reason(
    client: Any, target: tuple[str, Read]
) -> None:
    url, read = target
    await publish(
        client, ("a", {"v": [1, 2]}), ("b", {"v": [1, 2, 3]}), ("c", {"v": "no"}), ("d", {"w": 1}), (None, {"v": [1, 1]}),
        ("e", {"v": [1, None]}), ("f", {"v": []}), ("g", {"v": [5, 6]}),
    )  # fmt: skip
    found = await once(client, file(url, dimensions=2))
    assert (found.records, found.refused) == (2, 6)
    assert read().keys() == {"a", "g"}


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_function_makes_the_vectors(
    client: Any, target: tuple[str, Read], monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    url, read = target
    module = ModuleType("embedding_of_test")

    def embed(values: list[Any]) -> list[list[float]]:
        return [[float(len(value["text"])), 1.0] for value in values]

    async def later(values: list[Any]) -> list[list[float]]:
        return embed(values)

    vars(module)["embed"] = later if asynchronous else embed
    monkeypatch.setitem(sys.modules, "embedding_of_test", module)
    await publish(client, ("a", {"text": "one"}), ("b", {"text": "three"}))
    await once(client, file(url, vector_field=None, embed="embedding_of_test:embed"))
    assert read() == {"a": ([3.0, 1.0], {"text": "one"}), "b": ([5.0, 1.0], {"text": "three"})}
    vars(module)["embed"] = lambda values: [[1.0, 2.0]]
    await publish(client, ("a", {"text": "one"}), ("b", {"text": "three"}))
    with pytest.raises(InvalidArgument, match="returned 1 vectors for 2 values"):
        await once(client, file(url, vector_field=None, embed="embedding_of_test:embed"))


async def test_what_is_wrong_is_a_sentence(client: Any, target: tuple[str, Read]) -> None:
    url, _ = target
    await publish(client, ("a", {"v": [1, 2]}))
    assert "is made from the first batch" in str(await check(declared(file(url), path="v.toml"), client))
    await once(client, file(url))
    assert "2 dimensions" in str(await check(declared(file(url), path="v.toml"), client))
    with pytest.raises(InvalidArgument, match=r"settings\.dimensions = 3"):
        await check(declared(file(url, dimensions=3), path="v.toml"), client)


async def test_an_unusable_table_and_a_server_that_is_away(client: Any, server: Postgres) -> None:
    server.sql("DROP TABLE IF EXISTS items; CREATE TABLE items (a int)")
    await publish(client, ("a", {"v": [1, 2]}))
    with pytest.raises(InvalidArgument, match=r"id text PRIMARY KEY, embedding"):
        await check(declared(file(server.dsn), path="v.toml"), client)
    away = {**file("http://127.0.0.1:1"), "delivery": {"retries": 0}}
    with pytest.raises(ClusterError, match=r"Qdrant at http://127\.0\.0\.1:1"):
        await once(client, away)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vector_field": None}, "either vector_field or embed"),
        ({"embed": "a:b"}, "either vector_field or embed"),
        ({"url": "mysql://h"}, r"postgresql://"),
        ({"collection": "a b"}, r"settings\.collection"),
        ({"dimensions": 0}, r"settings\.dimensions"),
        ({"vector_field": None, "embed": "no_such_module:f"}, r"settings\.embed"),
    ],
)
def test_settings_that_cannot_be_are_a_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        declared(file("http://127.0.0.1:6333", **settings), path="v.toml").make()
