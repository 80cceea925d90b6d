"""`danube cluster compare`: two real clusters, what was told to one alone, and a cluster that answers otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.secrets import secret_mark

from tests.admin.real_broker import Administered, administered
from tests.cli.running import Danube
from tests.support.filled_cluster import add_topic, serve_ops

SECRET = "0123456789abcdef0123456789abcdef"
JSON_SCHEMA = {"schema_type": "json_schema", "schema_definition": '{"type": "object"}'}


@pytest.fixture(scope="module")
def other(portal: BlockingPortal) -> Iterator[Administered]:
    settings = {"alerts.webhook": ["http://127.0.0.1:9/hook"], "alerts.webhook_secret": SECRET}
    with portal.wrap_async_context_manager(administered(**settings)) as cluster:
        yield cluster


@pytest.fixture
def clusters(other: Administered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "clusters.toml"
    file.write_text(f'[prod]\nadmin = "{other.url}"\n[empty]\n[gone]\nadmin = "http://127.0.0.1:1"\n')
    monkeypatch.setenv("DANUBE_CLUSTERS", str(file))
    return file


def compared(danube: Danube, url: str, name: str = "prod") -> dict[tuple[str, str], Any]:
    ran = danube("cluster", "compare", name, "--admin", url, "--json")
    assert ran.code == 0, ran.err
    found = ran.result["differences"]
    assert found == sorted(found, key=lambda each: (each["kind"], each["name"]))
    return {(each["kind"], each["name"]): (each["here"], each["there"]) for each in found}


def test_what_differs_is_named_field_by_field(
    danube: Danube, clusters: Path, cluster: Administered, other: Administered, portal: BlockingPortal
) -> None:
    async def tell() -> None:
        await add_topic(other, "/default/orders")
        for one, limit in ((cluster, 5), (other, 7)):
            policies = {"max_publish_rate": limit, "max_message_size": 1000}
            await one("topics.set_policies", topic="orders", policies=policies)
            await one("roles.create", role="reader", permissions="topics:read")
            await one("schemas.register", subject="same", **JSON_SCHEMA)
        await other("topics.create", topic="extra", partitions=2)
        await cluster("schemas.register", subject="invoice", **JSON_SCHEMA)
        await other("namespaces.create", namespace="shop", policies={"retention_age_s": 60})
        await other(
            "bindings.create", binding="b", principal="kim", roles="reader", scope="cluster", resource=""
        )

    portal.call(tell)
    found = compared(danube, cluster.url)
    assert found["topic", "/default/orders"] == (
        {"policies": {"max_publish_rate": 5, "max_message_size": 1000}},
        {"policies": {"max_publish_rate": 7, "max_message_size": 1000}},
    )
    assert found["topic", "/default/extra"][0] is None
    assert found["topic", "/default/extra"][1]["partitions"] == 2
    assert found["namespace", "shop"] == (None, {"policies": {"retention_age_s": 60}})
    assert found["schema", "invoice"][1] is None
    assert found["binding", "b"][1]["roles"] == ["reader"]
    assert ("role", "reader") not in found
    assert ("schema", "same") not in found
    assert not any(name.startswith("server.") for _, name in found)


def test_secrets_are_compared_and_not_shown(
    danube: Danube, clusters: Path, cluster: Administered, other: Administered
) -> None:
    ran = danube("cluster", "compare", "prod", "--admin", cluster.url, "--json")
    found = {each["name"]: each for each in ran.result["differences"]}
    assert found["alerts.webhook_secret"]["there"]["value"].startswith("redacted:")
    assert SECRET.encode() not in ran.raw
    assert secret_mark("a", SECRET) == secret_mark("a", SECRET.encode())
    assert len({secret_mark("a", SECRET), secret_mark("b", SECRET), secret_mark("a", SECRET[1:])}) == 3


def test_a_cluster_beside_itself_is_the_same(danube: Danube, clusters: Path, other: Administered) -> None:
    assert compared(danube, other.url) == {}
    ran = danube("cluster", "compare", "prod", "--cluster", "prod")
    assert ran.out == "0 differences between prod and prod\n"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("prd", 2, "has no cluster prd; did you mean prod?"),
        ("empty", 2, "cluster empty of clusters.toml has neither admin nor broker"),
        ("gone", 3, "no broker answers at http://127.0.0.1:1"),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_a_sentence(
    danube: Danube, clusters: Path, admin_url: str, name: str, code: int, said: str
) -> None:
    ran = danube("cluster", "compare", name, "--admin", admin_url, "--json")
    assert ran.code == code
    assert said in ran.error["message"]


@pytest.mark.parametrize("answer", [b'{"settings": [{"key": "x"}]}', b'{"entries": []}'])
def test_a_cluster_of_another_format_is_a_sentence(
    danube: Danube, clusters: Path, admin_url: str, portal: BlockingPortal, answer: bytes
) -> None:
    async def old(request: bytes) -> bytes:
        assert CallRequest.FromString(request).operation == "brokers.config"
        return CallResponse(result=answer).SerializeToString()

    with portal.wrap_async_context_manager(serve_ops(old)) as url:
        clusters.write_text(f'[prod]\nadmin = "{url}"\n')
        ran = danube("cluster", "compare", "prod", "--admin", admin_url, "--json")
    assert ran.code == 2
    assert (
        "prod answers brokers.config in the format of another version: compare with" in ran.error["message"]
    )
