"""Nobody gets in, and nobody gets further than its bindings and its token: the locks of a broker, over a real store."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydanube_broker.admin_state import AdminState
from pydanube_broker.rpc.caller import Peer
from pydanube_broker.security import last_used
from pydanube_broker.security.authenticator import Authenticator, certificate_name
from pydanube_broker.security.jwt_keys import web_tokens
from pydanube_broker.security.last_used import ROUND_S, WITHIN_S, LastUsed
from pydanube_broker.security.locks import MOST_COUNTED, Locks, open_locks
from pydanube_broker.settings.security import Auth
from pydanube_core.errors import ClusterError, PermissionDenied, Unauthenticated
from pydanube_core.names import TopicName
from pydanube_core.security.api_tokens import DICE_BYTES, new_token
from pydanube_core.security.identity import (
    ANONYMOUS,
    OPERATOR,
    RELAYED_PROOF,
    Identity,
    Maker,
    current_identity,
)
from pydanube_core.security.permissions import (
    CLUSTER,
    CONSUME,
    LOOK_UP,
    PRODUCE,
    Binding,
    Principal,
    Resource,
    Scope,
)
from pydanube_core.security.records import (
    VERSION,
    TokenRecord,
    binding_key,
    decode_token,
    encode_binding,
    encode_revocation,
    encode_token,
    revocation_key,
    token_key,
)
from pydanube_core.security.revocations import Revocation, RevocationKind, serial_number
from pydanube_core.security.scopes import DATA, READ, WRITE

from tests.support.memory_store import MemoryStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ANN, BOB, ROBOT = Principal("ann"), Principal("bob"), Principal("robot")
ORDERS = Resource("default", "orders")
REMOTE = Peer(address="ipv4:192.0.2.7:50123")
BROKEN = "Bearer danube_0000000000000000_" + "A" * 43


class Broker:
    """The security of a broker: its store, its locks, and tokens by principal."""

    def __init__(self, store: MemoryStore) -> None:
        self.state = AdminState(store)
        self.locks: Locks
        self.refused: Counter[str] = Counter()
        self.records: dict[Principal, TokenRecord] = {}
        self._written = 0

    async def open(self, mode: str) -> None:
        settings = Auth(mode=mode)  # type: ignore[arg-type]
        found = await open_locks(settings, self.state, self.refused, lambda identity: lambda: None)
        assert found is not None
        self.locks = found

    async def write(self, changes: dict[str, bytes | None]) -> None:
        self._written += 1
        await self.state.write({**changes, VERSION: str(self._written).encode()}, {})
        await self.locks.reload()

    async def bind(self, principal: Principal, role: str, resource: str = "", scope: str = "cluster") -> str:
        each = Binding(
            id=f"{principal.name}-{role}-{resource}",
            principal=principal,
            roles=(role,),
            scope=Scope(scope),
            resource=resource,
        )
        await self.write({binding_key(each.id): encode_binding(each)})
        return each.id

    async def token(self, principal: Principal, *, until_ms: int | None = None) -> str:
        now_ms = int(time.time() * 1000)
        record, text = new_token(
            "t", principal, secrets.token_bytes(DICE_BYTES), now_ms=now_ms, until_ms=until_ms
        )
        self.records[principal] = record
        await self.write({token_key(record.token_id): encode_token(record)})
        return f"Bearer {text}"

    def identify(self, shown: str | None, peer: Peer = REMOTE) -> Identity:
        return self.locks.authenticator.identify(shown, peer)

    def may(self, identity: Identity | None, permission: str, resource: Resource = CLUSTER) -> bool:
        try:
            self.locks.check(identity, permission, resource)
        except (PermissionDenied, Unauthenticated):
            return False
        return True


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with MemoryStore() as store:
        found = Broker(store)
        await found.open("required")
        yield found


@pytest.fixture
async def optional() -> AsyncIterator[Broker]:
    async with MemoryStore() as store:
        found = Broker(store)
        await found.open("optional")
        yield found


async def test_a_broker_without_authorization_has_no_locks() -> None:
    async with MemoryStore() as store:
        state = AdminState(store)
        assert await open_locks(Auth(mode="off"), state, Counter(), lambda identity: lambda: None) is None


# -- who calls -------------------------------------------------------------------------------------------------


async def test_a_token_is_good_as_long_as_it_is_there_and_by_its_own_secret_only(broker: Broker) -> None:
    shown = await broker.token(ANN)
    found = broker.identify(shown)
    assert (found.principal, found.method, found.credential) == (ANN, "token", broker.records[ANN].token_id)
    assert broker.identify(shown.replace("Bearer", "bearer")).principal == ANN
    for wrong in (
        shown[:-1] + ("A" if shown[-1] != "A" else "B"),
        BROKEN,
        "Bearer ",
        shown[7:],
        "Basic YQ==",
    ):
        with pytest.raises(Unauthenticated):
            broker.identify(wrong)
    await broker.write({token_key(broker.records[ANN].token_id): None})
    with pytest.raises(Unauthenticated):
        broker.identify(shown)
    with pytest.raises(Unauthenticated, match="revoked"):  # a stream that was opened before
        broker.locks.check(found, LOOK_UP, ORDERS)


async def test_a_token_that_has_expired_is_good_for_nothing_also_on_an_open_stream(broker: Broker) -> None:
    with pytest.raises(Unauthenticated, match="the token 't' has expired"):
        broker.identify(await broker.token(ANN, until_ms=int(time.time() * 1000) - 1))
    await broker.bind(BOB, "admin")
    found = broker.identify(await broker.token(BOB, until_ms=int(time.time() * 1000) + 3_600_000))
    assert broker.may(found, "topics:delete", ORDERS)
    assert found.expires_at_s is not None
    assert not broker.may(replace(found, expires_at_s=time.time() - 0.001), "topics:delete", ORDERS)


async def test_a_token_of_another_scheme_and_a_scheme_without_a_token_are_refused(broker: Broker) -> None:
    token = (await broker.token(ANN)).removeprefix("Bearer ")
    for shown in (f"Basic {token}", f"Token {token}", "Bearer", "Bearer  ", token):
        with pytest.raises(Unauthenticated, match="write `Bearer <token>`"):
            broker.identify(shown)
    with pytest.raises(Unauthenticated, match="none of this broker's"):  # it has no keys of web tokens
        broker.identify("Bearer eyJh.eyJz.c2ln")


async def test_who_shows_nothing_is_nobody_and_is_let_in_only_where_that_is_optional(
    broker: Broker, optional: Broker
) -> None:
    with pytest.raises(Unauthenticated, match="requires authentication"):
        broker.identify(None)
    assert broker.refused == {"no_identity": 1}
    assert optional.identify(None) == optional.identify(BROKEN) == ANONYMOUS
    assert optional.refused == {"no_identity": 1, "credential": 1}


async def test_the_socket_of_this_machine_is_the_operators_whatever_else_is_shown(broker: Broker) -> None:
    assert broker.identify(BROKEN, Peer(address="unix:", local=True)) == OPERATOR
    assert broker.may(OPERATOR, "security:change")
    with pytest.raises(Unauthenticated):
        broker.identify(None, Peer(address="unix:"))


def certificate(*names: str, uris: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "subject": (tuple(("commonName", name) for name in names),),
        "subjectAltName": tuple(("URI", uri) for uri in uris),
        "serialNumber": "0AFF",
    }


async def test_a_certificate_names_one_principal_and_a_token_beside_it_comes_first(broker: Broker) -> None:
    peer = Peer(address=REMOTE.address, certificate=certificate("bob"))
    found = broker.identify(None, peer)
    assert (found.principal, found.method, found.credential) == (BOB, "certificate", "0AFF")
    assert broker.identify(await broker.token(ANN), peer).principal == ANN
    with pytest.raises(Unauthenticated):  # a wrong token is not made good by a certificate
        broker.identify(BROKEN, peer)
    assert certificate_name(certificate("bob", uris=("spiffe://a/b",))) == "spiffe://a/b"
    for harm in (certificate(), certificate("a", "b"), certificate(""), certificate("a\nb"), certificate("a" * 257),
                 certificate("a", uris=("x", "y"))):  # fmt: skip
        with pytest.raises(Unauthenticated):
            certificate_name(harm)
    for name in ("a", "a" * 256):
        assert certificate_name(certificate(name)) == name


async def test_what_was_revoked_is_good_for_nothing_from_the_next_call_on(broker: Broker) -> None:
    peer = Peer(address=REMOTE.address, certificate=certificate("bob"))
    found = broker.identify(None, peer)
    await broker.bind(BOB, "admin")
    assert broker.may(found, "topics:delete", ORDERS)
    each = Revocation(kind=RevocationKind.CERTIFICATE, value=serial_number("0a:ff"), created_ms=0)
    await broker.write({revocation_key(each.id): encode_revocation(each)})
    assert not broker.may(found, "topics:delete", ORDERS)
    with pytest.raises(Unauthenticated, match="revoked"):
        broker.identify(None, peer)


async def test_a_web_token_of_a_relayed_call_is_not_checked_against_keys_again(broker: Broker) -> None:
    class Keys:
        checked = 0

        def check(self, identity: Identity) -> None:
            self.checked += 1
            raise Unauthenticated("its key is gone")

    keys: Any = Keys()
    keeper = Authenticator(
        broker.locks.access_records, keys, required=True, refused=Counter(), failed=Any, connections=Any  # type: ignore[arg-type]
    )  # fmt: skip
    own = Identity(principal=ANN, method="jwt")
    with pytest.raises(Unauthenticated, match="its key is gone"):
        keeper.check(own)
    keeper.check(replace(own, proof=RELAYED_PROOF))
    keeper.check(replace(own, method="certificate"))
    assert keys.checked == 1


async def test_wrong_credentials_are_told_once_and_delay_who_tries_again(broker: Broker) -> None:
    told: list[tuple[str, int]] = []
    broker.locks.authenticator.on_failed = lambda address, count: told.append((address, count))
    for _ in range(9):
        with pytest.raises(Unauthenticated):
            broker.identify(BROKEN)
    assert told == [(REMOTE.host, 1)]
    assert broker.locks.authenticator.wait_s(REMOTE) > 0
    assert broker.locks.authenticator.wait_s(Peer(address="ipv4:192.0.2.8:1")) == 0
    assert broker.refused["credential"] == 9


# -- what is allowed -------------------------------------------------------------------------------------------


async def test_a_principal_may_what_its_bindings_say_and_no_more(broker: Broker) -> None:
    found = broker.identify(await broker.token(ANN))
    assert not broker.may(found, PRODUCE, ORDERS)
    binding = await broker.bind(ANN, "producer", "/default/orders", "topic")
    assert broker.may(found, PRODUCE, ORDERS)
    for permission, resource in (
        (CONSUME, ORDERS),
        (PRODUCE, Resource("default", "bills")),
        (PRODUCE, CLUSTER),
    ):
        with pytest.raises(PermissionDenied) as refused:
            broker.locks.check(found, permission, resource)
        assert refused.value.details["permission"] == permission
    await broker.write({binding_key(binding): None})
    assert not broker.may(found, PRODUCE, ORDERS)


async def test_nobody_known_may_nothing_and_refusals_are_counted_by_permission(broker: Broker) -> None:
    with pytest.raises(Unauthenticated):
        broker.locks.check(None, PRODUCE, ORDERS)
    assert not broker.locks.allows(None, PRODUCE, ORDERS)
    assert not broker.locks.allows_part(None, PRODUCE, ORDERS)
    found = broker.identify(await broker.token(ANN))
    for _ in range(2):
        assert not broker.may(found, PRODUCE, ORDERS)
    assert broker.refused[PRODUCE] == 2
    assert not broker.locks.allows(found, PRODUCE, ORDERS)
    assert broker.refused[PRODUCE] == 2, "a look is no refusal"


async def test_in_optional_everything_is_allowed_and_counted_as_it_would_be_refused(optional: Broker) -> None:
    optional.locks.check(None, PRODUCE, ORDERS)
    optional.locks.check(optional.identify(None), PRODUCE, ORDERS)
    assert optional.refused[PRODUCE] == 2
    assert optional.locks.allows(None, PRODUCE, ORDERS)
    assert not optional.locks.allows_part(OPERATOR, PRODUCE, ORDERS), "nothing is cut: all may be seen"
    optional.locks.check_scope(Identity(principal=ANN, method="jwt", scopes=frozenset()), PRODUCE)


async def test_who_acts_for_another_may_what_both_may(broker: Broker) -> None:
    await broker.bind(ANN, "admin")
    robot = broker.identify(await broker.token(ROBOT))
    acting = Identity(principal=ANN, method="token", actor=robot)
    assert not broker.may(acting, PRODUCE, ORDERS)
    await broker.bind(ROBOT, "producer", "/default/orders", "topic")
    assert broker.may(acting, PRODUCE, ORDERS)
    assert not broker.may(acting, PRODUCE, Resource("default", "bills"))
    assert not broker.may(replace(acting, principal=BOB), PRODUCE, ORDERS)
    assert broker.locks.allows_part(acting, PRODUCE, Resource("default"))
    assert not broker.locks.allows_part(replace(acting, principal=BOB), PRODUCE, Resource("default"))
    await broker.write({token_key(broker.records[ROBOT].token_id): None})
    assert not broker.may(acting, PRODUCE, ORDERS), "the one who calls has no token any more"


async def test_a_part_is_seen_of_what_a_binding_touches_and_of_nothing_else(broker: Broker) -> None:
    found = broker.identify(await broker.token(ANN))
    await broker.bind(ANN, "viewer", "/default/orders*", "topic")
    assert broker.locks.allows_part(found, "topics:read", CLUSTER)
    assert broker.locks.allows_part(found, "topics:read", Resource("default"))
    assert not broker.locks.allows_part(found, "topics:read", Resource("other"))
    assert not broker.locks.allows_part(found, "topics:delete", Resource("default"))
    assert broker.locks.allows_part(OPERATOR, "topics:delete", Resource("default"))


async def test_a_revoked_token_sees_no_part_of_anything_itself_or_on_behalf_of_another(
    broker: Broker,
) -> None:
    """A list that is cut to a part checks nothing else."""
    await broker.bind(ANN, "admin")
    await broker.bind(ROBOT, "admin")
    ann, robot = broker.identify(await broker.token(ANN)), broker.identify(await broker.token(ROBOT))
    acting = Identity(principal=ANN, method="token", actor=robot)
    for caller in (ann, acting):
        assert broker.locks.allows_part(caller, "topics:read", Resource("default"))
    await broker.write({token_key(record.token_id): None for record in broker.records.values()})
    for caller in (ann, acting):
        with pytest.raises(Unauthenticated, match="revoked"):
            broker.locks.allows_part(caller, "topics:read", Resource("default"))


async def test_a_scope_narrows_what_a_token_may_and_never_adds_to_it(broker: Broker) -> None:
    await broker.bind(ANN, "admin")
    narrow = Identity(principal=ANN, method="certificate", scopes=frozenset({READ, DATA}))
    assert broker.may(narrow, "topics:read", ORDERS)
    assert broker.may(narrow, PRODUCE, ORDERS)
    for permission in ("topics:delete", "bindings:change"):
        with pytest.raises(PermissionDenied, match="not issued for"):
            broker.locks.check(narrow, permission, ORDERS)
        with pytest.raises(PermissionDenied, match="not issued for"):
            broker.locks.check_scope(narrow, permission)
        assert not broker.locks.allows_part(narrow, permission, Resource("default"))
    assert broker.refused == {"topics:delete": 2, "bindings:change": 2}, "each refusal is counted once"
    broker.locks.check_scope(narrow, "topics:read")
    broker.locks.check_scope(replace(narrow, scopes=None), "topics:delete")
    wide = Identity(principal=BOB, method="certificate", scopes=frozenset({READ, WRITE}))
    assert not broker.may(wide, "topics:delete", ORDERS)


async def test_a_token_gives_what_every_one_of_its_makers_may_do_within_their_scopes(broker: Broker) -> None:
    """On a topic, and where a part of a namespace is enough."""
    await broker.bind(ANN, "admin")
    await broker.bind(BOB, "viewer", "/default/orders", "topic")
    made = replace(broker.identify(await broker.token(ANN)), makers=(Maker(BOB),))

    def may(identity: Identity, permission: str) -> set[bool]:
        part = broker.locks.allows_part(identity, permission, Resource("default"))
        return {broker.may(identity, permission, ORDERS), part}

    assert may(made, "topics:read") == {True}
    assert may(made, "topics:delete") == {False}, "Ann may, and Bob who made it may not"
    admin = Maker(ANN)
    assert may(replace(made, makers=(admin,)), "topics:delete") == {True}
    assert may(replace(made, makers=(admin, Maker(BOB))), "topics:delete") == {False}
    narrow = Maker(ANN, frozenset({READ}))
    assert may(replace(made, makers=(narrow,)), "topics:read") == {True}
    assert may(replace(made, makers=(narrow,)), "topics:delete") == {False}, "made with a token for reading"
    assert may(replace(made, makers=(Maker(ROBOT, frozenset({READ})),)), "topics:read") == {False}


@pytest.mark.parametrize(
    ("resource", "named"),
    [(CLUSTER, "cluster"), (Resource("default"), "default"), (ORDERS, "/default/orders")],
)
@pytest.mark.parametrize("makers", [(), (Maker(BOB), Maker(ROBOT))])
async def test_a_refusal_names_the_permission_the_resource_the_caller_and_the_makers_of_its_token(
    broker: Broker, resource: Resource, named: str, makers: tuple[Maker, ...]
) -> None:
    ann = replace(broker.identify(await broker.token(ANN)), makers=makers)
    with pytest.raises(PermissionDenied) as refused:
        broker.locks.check(ann, "topics:delete", resource)
    expected = {"permission": "topics:delete", "resource": named, "principal": str(ANN)}
    if makers:
        expected["makers"] = [str(BOB), str(ROBOT)]  # type: ignore[assignment]
    assert refused.value.details == expected


async def test_errors_suggest_only_topics_that_the_caller_may_look_up(broker: Broker) -> None:
    await broker.bind(ANN, "producer", "/default/orders", "topic")
    before = current_identity.set(broker.identify(await broker.token(ANN)))
    try:
        assert broker.locks.sees_topic(TopicName.parse("/default/orders"))
        assert not broker.locks.sees_topic(TopicName.parse("/default/bills"))
    finally:
        current_identity.reset(before)


async def test_a_change_that_is_half_written_changes_no_grants(broker: Broker) -> None:
    """Grants are built when the version is there, and not from some of a change's records."""
    built = broker.locks.grants
    each = Binding(id="b", principal=ANN, roles=("admin",), scope=Scope.CLUSTER)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(broker.locks.access_records.records.follow)
        await broker.state.write({binding_key("b"): encode_binding(each)}, {})
        record, _ = new_token("t", BOB, bytes(DICE_BYTES), now_ms=0, until_ms=None)
        await broker.state.write({token_key(record.token_id): encode_token(record)}, {})
        with anyio.fail_after(20):
            while record.token_id not in broker.locks.access_records.tokens:  # noqa: ASYNC110
                await anyio.sleep(0.005)
        assert broker.locks.grants is built
        broker.locks.access_records.changed.clear()
        await broker.state.write({VERSION: b"1"}, {})
        with anyio.fail_after(20):
            await broker.locks.access_records.changed.wait()
        assert broker.locks.grants.decide(ANN, PRODUCE, ORDERS).allowed
        tasks.cancel_scope.cancel()


# -- when a token was last used --------------------------------------------------------------------------------


async def test_the_last_use_of_a_token_is_written_down_and_brings_no_revoked_token_back(
    broker: Broker,
) -> None:
    noting = LastUsed(broker.state, broker.locks.access_records)
    key = token_key((await _used(broker)).token_id)
    await noting.write()
    found = await broker.state.read(key)
    assert found is not None
    first = decode_token(found.value).used_ms
    assert first is not None
    assert broker.locks.access_records.used == set()
    broker.locks.access_records.used.add(broker.records[ANN].token_id)
    await noting.write()  # within ten minutes
    again = await broker.state.read(key)
    assert again is not None
    assert again.revision == found.revision
    wrong = replace(decode_token(found.value), used_ms=first + 3_600_000)  # by a clock that was an hour ahead
    broker.locks.access_records.tokens[wrong.token_id] = wrong
    broker.locks.access_records.used.add(wrong.token_id)
    await noting.write()
    mended = await broker.state.read(key)
    assert mended is not None
    assert mended.revision > found.revision
    late = replace(decode_token(found.value), used_ms=first - int(WITHIN_S * 1000) - 1)
    broker.locks.access_records.tokens[late.token_id] = late
    broker.locks.access_records.used.add(late.token_id)
    await broker.state.write({key: None}, {})  # revoked meanwhile, and this broker has not seen it
    await noting.write()
    assert await broker.state.read(key) is None


@pytest.mark.parametrize(
    ("ago_ms", "written"), [(WITHIN_S * 1000 - 1, False), (WITHIN_S * 1000, True), (-WITHIN_S * 1000, True)]
)
async def test_a_use_is_written_ten_minutes_after_the_one_before_to_the_millisecond(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, ago_ms: float, written: bool
) -> None:
    now_ms = 1_800_000_000_000
    token = replace(await _used(broker), used_ms=now_ms - int(ago_ms))
    await broker.write({token_key(token.token_id): encode_token(token)})
    monkeypatch.setattr(last_used, "time", SimpleNamespace(time=lambda: now_ms / 1000))
    await LastUsed(broker.state, broker.locks.access_records).write()
    found = await broker.state.read(token_key(token.token_id))
    assert found is not None
    assert (decode_token(found.value).used_ms == now_ms) is written
    assert broker.locks.access_records.used == set(), "until it is used again"


async def test_uses_are_written_in_rounds_with_a_pause_before_each_also_after_a_failure(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class EnoughError(BaseException):
        pass

    steps: list[object] = []

    async def pause(seconds: float) -> None:
        steps.append(seconds)

    class Rounds(LastUsed):
        async def write(self) -> None:
            steps.append("write")
            if steps.count("write") == 2:
                raise OSError("the store is away")
            if steps.count("write") == 3:
                raise EnoughError

    monkeypatch.setattr(last_used, "asyncio", SimpleNamespace(sleep=pause))
    with pytest.raises(EnoughError):
        await Rounds(broker.state, broker.locks.access_records).run()
    assert steps == [ROUND_S, "write"] * 3
    assert [each.message for each in caplog.records] == ["last_use_not_written"]


async def _used(broker: Broker) -> TokenRecord:
    broker.identify(await broker.token(ANN))
    return broker.records[ANN]


@pytest.mark.parametrize(
    ("settings", "verifies"),
    [
        ({"mode": "required"}, False),
        ({"mode": "required", "jwks_url": "https://issuer.example/keys"}, True),
        ({"mode": "off", "jwks_url": "https://issuer.example/keys"}, False),
        ({"mode": "off", "jwt_keys": "/missing"}, False),
    ],
)
def test_web_tokens_are_verified_only_where_keys_are_configured_and_authentication_is_on(
    settings: dict[str, str], verifies: bool
) -> None:
    assert (web_tokens(Auth(**settings)) is not None) is verifies  # type: ignore[arg-type]


async def test_keys_that_cannot_be_read_stop_a_start_and_name_the_setting(tmp_path: Path) -> None:
    async with MemoryStore() as store:
        settings = Auth(mode="required", jwt_keys=tmp_path / "missing.json", issuer="i", audience="a")
        with pytest.raises(ClusterError, match=r"auth.jwt_keys: cannot read"):
            await open_locks(settings, AdminState(store), Counter(), lambda identity: lambda: None)


async def test_refusals_are_counted_by_permission_and_their_kinds_have_a_bound(broker: Broker) -> None:
    ann = broker.identify(await broker.token(ANN))
    for number in range(MOST_COUNTED + 5):
        assert not broker.may(ann, f"made:up{number}")
    assert not broker.may(ann, "made:up0")
    assert len(broker.refused) == MOST_COUNTED
    assert broker.refused["made:up0"] == 2


@pytest.mark.parametrize("has_published", [False, True])
async def test_grants_the_use_of_tokens_and_published_keys_are_followed(has_published: bool) -> None:
    running: set[str] = set()

    def task(name: str) -> Any:
        async def run() -> None:
            running.add(name)

        return run

    records: Any = SimpleNamespace(records=SimpleNamespace(follow=task("grants")))
    keeper: Any = SimpleNamespace(required=True, refused=Counter())
    last_used: Any = SimpleNamespace(run=task("last used"))
    published: Any = SimpleNamespace(run=task("keys")) if has_published else None
    with anyio.fail_after(30):
        await Locks(records, keeper, last_used, published).run()
    assert running == {"grants", "last used"} | ({"keys"} if has_published else set())
