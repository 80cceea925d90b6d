"""Links between two clusters that check rights: the token for the source, and mirrored roles and bindings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from pydanube import FailedOver, PermissionDenied, Retry
from pydanube.admin import connect_admin
from pydanube.sync import connect
from pydanube_broker.links.grants import SourceGrants, mirrored
from pydanube_core.errors import InvalidArgument
from pydanube_core.links import LinkRecord
from pydanube_core.security.permissions import Binding, Principal, Role, Scope

from tests.support.broker_process import BrokerProcess
from tests.support.mirrors import by_socket, until

REPLICATING = "Replicate,data:fence,roles:read,bindings:read"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    folder, environment = tmp_path_factory.mktemp("brokers"), {"DANUBE_AUTH__MODE": "required"}
    with (
        BrokerProcess(folder / "source", environment=environment) as source,
        BrokerProcess(folder / "here", environment=environment) as here,
    ):
        yield source, here


def bind(broker: BrokerProcess, name: str, roles: str, scope: str = "cluster", resource: str = "") -> None:
    by_socket(
        broker, "bindings.create", binding=name, principal=name, roles=roles, scope=scope, resource=resource
    )


def token(broker: BrokerProcess, name: str) -> str:
    return str(by_socket(broker, "tokens.create", name=name)["token"])


def publish(broker: BrokerProcess, topic: str, shown: str, payload: bytes = b"x") -> None:
    with (
        connect(broker.url, token=shown, retry=Retry(max_elapsed_s=1)) as client,
        client.producer(topic) as producer,
    ):
        producer.send(payload)


def link_to(here: BrokerProcess, source: BrokerProcess, topics: str, file: Path, **more: Any) -> None:
    address = source.url.replace("http://", "danube://")
    arguments = {"link": "eu", "source": address, "topics": topics, "token_file": str(file), **more}
    by_socket(here, "links.create", **arguments)


def described(here: BrokerProcess) -> dict[str, Any]:
    return by_socket(here, "links.describe", link="eu")


def copied(here: BrokerProcess, *topics: str) -> bool:
    return {each["topic"]: each["copied_until"] for each in described(here)["mirrors"]} == dict.fromkeys(
        topics, 1
    )


def test_the_token_decides_what_is_mirrored_and_whether_the_source_is_fenced(
    tmp_path: Path, brokers: tuple[BrokerProcess, BrokerProcess]
) -> None:
    """`Replicate` mirrors. A fence wants `data:fence`, too."""
    source, here = brokers
    orders, parts = "/tokens/orders", "/tokens/parts"
    by_socket(source, "namespaces.create", namespace="tokens")
    by_socket(source, "roles.create", role="fencer", permissions="Replicate,data:fence")
    by_socket(source, "roles.create", role="replicator", permissions="Replicate")
    file = tmp_path / "token"
    bind(source, "nobody", "consumer")
    bind(source, "writer", "producer")
    file.write_text(token(source, "nobody"))
    for topic in (orders, parts):
        publish(source, topic, token(source, "writer"))
    link_to(here, source, "/tokens/*", file)
    until("the refusal", lambda: "data:mirror" in str(described(here)["why"]))
    bind(source, "replicator", "replicator")
    file.write_text(token(source, "replicator"))  # read for each call
    until("the copies", lambda: copied(here, orders, parts))
    done = by_socket(here, "links.fail_over", link="eu", topics=orders)
    assert (done["source_fenced"], "data:fence" in done["source"]) == (False, True), done
    bind(source, "fencer", "fencer")
    file.write_text(token(source, "fencer"))
    assert by_socket(here, "links.fail_over", link="eu", topics=parts)["source_fenced"]
    by_socket(here, "links.delete", link="eu")


@pytest.mark.parametrize("withdrawn", ["binding", "token"])
def test_a_right_that_is_withdrawn_ends_the_copy_that_it_began(
    tmp_path: Path, brokers: tuple[BrokerProcess, BrokerProcess], withdrawn: str
) -> None:
    """The stream of a link stayed open: it got every later message."""
    source, here = brokers
    orders, copier = f"/{withdrawn}/orders", f"copier-{withdrawn}"
    by_socket(source, "namespaces.create", namespace=withdrawn)
    by_socket(source, "roles.create", role=copier, permissions="Replicate")
    bind(source, copier, copier)
    bind(source, f"writer-{withdrawn}", "producer")
    made, shown = by_socket(source, "tokens.create", name=copier), token(source, f"writer-{withdrawn}")
    file = tmp_path / "token"
    file.write_text(made["token"])
    publish(source, orders, shown)
    link_to(here, source, f"/{withdrawn}/*", file, link=withdrawn)

    def mirror() -> dict[str, Any]:
        found: list[dict[str, Any]] = by_socket(here, "links.describe", link=withdrawn)["mirrors"]
        return found[0] if found else {}

    until("the copy", lambda: mirror().get("copied_until") == 1)
    if withdrawn == "token":
        by_socket(source, "tokens.revoke", token_id=made["token_id"])
    else:
        by_socket(source, "bindings.delete", binding=copier)
    publish(source, orders, shown, b"nothing for the link")
    until("the refusal", lambda: mirror()["state"] == "source_unreachable" and mirror()["why"])
    assert mirror()["copied_until"] == 1
    by_socket(here, "links.delete", link=withdrawn)
    for binding in [f"writer-{withdrawn}", *([copier] if withdrawn == "token" else [])]:
        by_socket(source, "bindings.delete", binding=binding)


def bindings(broker: BrokerProcess) -> Mapping[str, tuple[str, str, str]]:
    found = by_socket(broker, "bindings.list", filter="*")["items"]
    return {
        each["binding"]: (each["principal"], ",".join(each["roles"]), each["resource"])
        for each in found
        if each["binding"].startswith("eu:")
    }


def test_roles_and_bindings_are_mirrored_for_the_topics_of_the_link_and_stay_after_the_fail_over(
    tmp_path: Path, brokers: tuple[BrokerProcess, BrokerProcess]
) -> None:
    source, here = brokers
    orders = "/shop/orders"
    by_socket(source, "namespaces.create", namespace="shop")
    by_socket(source, "roles.create", role="clerk", permissions="Produce,Consume")
    by_socket(source, "roles.create", role="unused", permissions="Produce")
    bind(source, "ann", "clerk", "topic", "/shop/ord*")
    bind(source, "bob", "consumer", "namespace", "shop")
    bind(source, "carl", "clerk", "namespace", "elsewhere")
    bind(source, "dora", "clerk")
    by_socket(source, "roles.create", role="reading", permissions="Replicate,data:fence")
    bind(source, "mirroring", "reading")
    publish(source, orders, token(source, "ann"))
    file = tmp_path / "token"
    file.write_text(token(source, "mirroring"))
    link_to(here, source, "/shop/*", file, roles=True)
    until("the copy", lambda: copied(here, orders))
    left = until("the refusal", lambda: described(here)["left_out"])
    assert [(each["topic"], each["state"]) for each in left] == [("roles and bindings", "left_out")]
    assert "roles:read" in left[0]["why"]
    assert not bindings(here)

    by_socket(source, "roles.create", role="reading", permissions=REPLICATING)
    wanted = {"eu:ann": ("ann", "eu:clerk", "/shop/ord*"), "eu:bob": ("bob", "consumer", "/shop/*")}
    of_all = {"eu:dora": ("dora", "eu:clerk", "/shop/*")}

    def has(expected: Mapping[str, tuple[str, str, str]]) -> bool:
        others = {"eu:mirroring", "eu:writer", "eu:nobody", "eu:replicator", "eu:fencer"}  # of these tests
        return {name: each for name, each in bindings(here).items() if name not in others} == expected

    until("the bindings", lambda: has(wanted | of_all))
    assert not described(here)["left_out"]
    assert by_socket(here, "roles.get", role="eu:clerk")["permissions"] == ["Produce", "Consume"]
    assert "eu:unused" not in [each["role"] for each in by_socket(here, "roles.list")["items"]]
    by_socket(source, "bindings.delete", binding="dora")
    until("a deletion", lambda: has(wanted))
    by_socket(source, "roles.create", role="clerk", permissions="Produce")
    until("a change", lambda: by_socket(here, "roles.get", role="eu:clerk")["permissions"] == ["Produce"])

    by_socket(here, "links.fail_over", link="eu")
    with pytest.raises(FailedOver):
        publish(source, orders, token(source, "ann"))
    by_socket(here, "links.delete", link="eu")
    assert has(wanted), "they stay, as the topics do"
    publish(here, orders, token(here, "ann"))
    with pytest.raises(PermissionDenied):
        publish(here, orders, token(here, "bob"))
    by_socket(here, "bindings.delete", binding="eu:ann")
    with pytest.raises(PermissionDenied):
        publish(here, orders, token(here, "ann"))


@pytest.mark.anyio
async def test_only_a_caller_with_all_rights_mirrors_roles_and_replaces_none(
    brokers: tuple[BrokerProcess, BrokerProcess],
) -> None:
    """The source decides which rights come, so that its maker has to hold all of them."""
    _, here = brokers

    def prepared() -> str:
        by_socket(
            here,
            "roles.create",
            role="linker",
            permissions="links:*,schemas:*,topics:*,subscriptions:*,namespaces:create,Produce",
        )
        bind(here, "linker", "linker")
        return token(here, "linker")

    shown = await to_thread.run_sync(prepared)
    async with connect_admin(here.admin, token=shown) as admin:

        async def create(**more: Any) -> None:
            await admin.links.create("mine", source="127.0.0.1:1", topics="/mine/*", **more)

        await create()
        await to_thread.run_sync(lambda: by_socket(here, "links.delete", link="mine"))
        with pytest.raises(PermissionDenied, match="admin gives"):
            await create(roles=True)
        by_name = {"principal": "linker", "roles": "admin"}
        of_namespace = {"scope": "namespace", "resource": "mine", **by_name}
        await to_thread.run_sync(lambda: by_socket(here, "bindings.create", binding="its", **of_namespace))
        with pytest.raises(PermissionDenied, match="admin gives"):
            await create(roles=True)
        await to_thread.run_sync(
            lambda: by_socket(here, "bindings.create", binding="all", scope="cluster", **by_name)
        )
        await to_thread.run_sync(
            lambda: by_socket(here, "roles.create", role="mine:ops", permissions="Produce")
        )
        with pytest.raises(InvalidArgument, match="mine:ops"):
            await create(roles=True)  # it would be replaced by the source's
        await to_thread.run_sync(lambda: by_socket(here, "roles.delete", role="mine:ops"))
        with pytest.raises(InvalidArgument, match="would hold on more topics"):
            await admin.links.create("mine", source="127.0.0.1:1", topics="/mine/a?c*", roles=True)
        await create(roles=True)
        assert (await admin.links.describe("mine")).roles


def made(topics: str, binding: Binding, rename: str = "") -> list[tuple[str, str]]:
    link = LinkRecord(name="eu", source="eu-1", topics=tuple(topics.split(",")), rename=rename)
    grants = mirrored(link, SourceGrants(bindings=[binding]))
    return [(each.id, each.resource) for each in grants if isinstance(each, Binding)]


def binding(
    scope: Scope, resource: str, name: str = "ann", roles: tuple[str, ...] = ("producer",)
) -> Binding:
    return Binding(id=name, principal=Principal("ann"), roles=roles, scope=scope, resource=resource)


@pytest.mark.parametrize(
    ("topics", "scope", "resource", "mirrors"),
    [
        ("/shop/*", Scope.CLUSTER, "", ["/shop/*"]),
        ("/shop/orders", Scope.CLUSTER, "", ["/shop/orders"]),
        ("/shop/ord?rs-*", Scope.CLUSTER, "", ["/shop/ord*"]),
        ("/shop/*", Scope.NAMESPACE, "shop", ["/shop/*"]),
        ("/shop/*", Scope.NAMESPACE, "sh*", ["/shop/*"]),
        ("/shop/*", Scope.NAMESPACE, "shopping", []),
        ("/shop/*", Scope.TOPIC, "/shop/orders", ["/shop/orders"]),
        ("/shop/*", Scope.TOPIC, "/shop/ord*", ["/shop/ord*"]),
        ("/shop/orders*", Scope.TOPIC, "/shop/ord*", ["/shop/orders*"]),
        ("/shop/orders", Scope.TOPIC, "/shop/ord*", ["/shop/orders"]),
        ("/shop/order*", Scope.TOPIC, "/shop/order", ["/shop/order"]),
        ("/shop/orders", Scope.TOPIC, "/shop/order", []),
        ("/shop/*", Scope.TOPIC, "/sho*", ["/shop/*"]),
        ("/shop/*", Scope.TOPIC, "/other/*", []),
    ],
)
def test_a_mirrored_binding_holds_on_the_mirrors_only(
    topics: str, scope: Scope, resource: str, mirrors: list[str]
) -> None:
    assert made(topics, binding(scope, resource)) == [("eu:ann", each) for each in mirrors]


def test_mirrored_bindings_have_the_names_of_the_mirrors_and_names_of_their_own() -> None:
    everywhere = binding(Scope.CLUSTER, "")
    assert made("/shop/*", everywhere, rename="eu-") == [("eu:ann", "/shop/eu-*")]
    assert made("/shop/*,/bar/x", everywhere) == [("eu:1:ann", "/shop/*"), ("eu:2:ann", "/bar/x")]
    for name in ("n" * 126, "a\nb", " "):
        with pytest.raises(InvalidArgument, match="is no name here"):
            made("/shop/*", binding(Scope.CLUSTER, "", name=name))


def test_roles_that_no_mirrored_binding_has_stay_away() -> None:
    link = LinkRecord(name="eu", source="eu-1", topics=("/shop/*",))
    roles = [Role(name=each, permissions=("Produce",)) for each in ("clerk", "other")]
    source = SourceGrants(roles, [binding(Scope.CLUSTER, "", roles=("clerk", "viewer"))])
    of_ann, clerk = mirrored(link, source)
    assert isinstance(of_ann, Binding)
    assert of_ann.roles == ("eu:clerk", "viewer"), "a built-in role is the same in each cluster"
    assert clerk == Role(name="eu:clerk", permissions=("Produce",))
