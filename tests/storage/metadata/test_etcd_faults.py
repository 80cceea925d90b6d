"""etcd on bad days: members that stop, stall or lose the lead, tokens that run out, a database that is full."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import ipaddress
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest
from pydanube_core.errors import (
    ClosedResource,
    InvalidArgument,
    MetadataUnavailable,
    PermissionDenied,
    Unauthenticated,
)
from pydanube_storage.metadata import (
    Absent,
    Compacted,
    Delete,
    Event,
    GuardFailed,
    KeyRange,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    read_all,
)
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore
from pydanube_storage.metadata.etcd import link as etcd_link
from pydanube_storage.metadata.etcd.refusals import plain

from tests.storage.metadata.adapters import EVERYTHING, opened, options, revision
from tests.support.broker_process import free_ports
from tests.support.etcd import EtcdMembers
from tests.support.relay import Relay
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop")]
NOTICED_S = 10.0  # how soon a watch that hears nothing must be on another member


def at(*ports: int, prefix: str = "/faults", **other: object) -> EtcdOptions:
    address = EtcdAddress.parse(f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports)}{prefix}")
    return dataclasses.replace(EtcdOptions(address=address), **other)  # type: ignore[arg-type]


@pytest.fixture
async def relay(etcd_member: EtcdMembers) -> AsyncIterator[Relay]:
    async with Relay(etcd_member.ports[0]) as relay:
        yield relay


# Who answers there


async def test_nobody_at_the_address_is_said_with_the_address(anyio_backend: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(MetadataUnavailable) as caught:
        async with EtcdStore(at(port, timeout_s=0.5)):
            pass
    assert f"127.0.0.1:{port}: " in caught.value.message
    assert "etcdctl endpoint health" in caught.value.message
    assert caught.value.details == {"endpoints": [f"127.0.0.1:{port}"]}


async def test_name_that_does_not_resolve_is_said_with_the_name(anyio_backend: str) -> None:
    address = EtcdAddress.parse("etcd://no-such-host.invalid:2379/p")
    with pytest.raises(MetadataUnavailable, match=r"no-such-host\.invalid:2379: "):
        async with EtcdStore(EtcdOptions(address=address, timeout_s=0.5)):
            pass


async def test_grpc_server_that_is_not_etcd_is_named_so() -> None:
    from grpc import aio

    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(InvalidArgument, match=r"is not etcd .*metadata\] url"):
            async with EtcdStore(at(port)):
                pass
    finally:
        await server.stop(None)


async def test_first_member_may_be_away(etcd_member: EtcdMembers) -> None:
    (dead,) = free_ports(1)
    async with opened(at(dead, *etcd_member.ports)) as store:
        await store.transact([Put("/a", b"")])
        assert await store.get("/a") is not None


async def test_change_goes_to_the_next_member_where_the_connection_was_refused(
    etcd_member: EtcdMembers, relay: Relay
) -> None:
    """Nothing was sent, so it is no unknown outcome."""
    async with opened(at(relay.port, *etcd_member.ports)) as store:
        await relay.__aexit__(None, None, None)
        await disconnected(store)
        for i in range(5):
            await store.transact([Put(f"/{i}", b"")], guards=[Absent(f"/{i}")])


async def disconnected(store: EtcdStore) -> None:
    """Wait until gRPC knows that the first member's connection has ended: what is sent on it before may have arrived."""
    channel = store.link._members[0].channel
    while (state := channel.get_state()).name == "READY":
        await channel.wait_for_state_change(state)


# Silence


async def test_every_call_on_a_silent_member_ends_at_its_deadline(relay: Relay) -> None:
    async with EtcdStore(at(relay.port, timeout_s=0.6)) as store:
        relay.silent = True
        for call in (
            lambda: store.get("/a"),
            lambda: store.range(EVERYTHING),
            lambda: store.grant_lease(1000),
            lambda: store.transact([], guards=[Absent("/a")]),
        ):
            with pytest.raises(MetadataUnavailable, match="no answer in time"):
                await call()


async def test_calls_are_refused_sooner_once_no_member_has_answered(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_link, "AWAY_S", 0.4)
    async with EtcdStore(at(relay.port, timeout_s=1.0)) as store:
        await store.transact([Put("/there", b"")])
        relay.silent = True
        for within in ("1 s", "0.4 s"):
            with pytest.raises(MetadataUnavailable, match=f"within {within}"):
                await store.get("/there")
        relay.cut()
        relay.silent = False
        await in_time(store, "/there")
        relay.silent = True
        with pytest.raises(MetadataUnavailable, match="within 1 s"):
            await store.get("/there")


async def test_outcome_of_a_change_that_got_no_answer_is_unknown(relay: Relay) -> None:
    async with EtcdStore(at(relay.port, timeout_s=0.6)) as store:
        relay.silent = True
        with pytest.raises(MetadataUnavailable) as caught:
            await store.transact([Put("/a", b"")])
        assert caught.value.details["outcome"] == "unknown"
        with pytest.raises(MetadataUnavailable) as caught:
            await store.get("/a")
        assert "outcome" not in caught.value.details


async def test_change_of_unknown_outcome_cannot_happen_after_it_was_looked_up(
    etcd_member: EtcdMembers, relay: Relay
) -> None:
    """It reaches etcd late, when a read has shown that it had not happened, and others have built on that."""
    prefix = "/late"
    async with opened(at(relay.port, *etcd_member.ports, prefix=prefix, timeout_s=4.0)) as store:
        await store.get("/a")  # connected, through the relay
        relay.holding = True
        sent: list[int] = []

        async def change() -> None:
            with pytest.raises(MetadataUnavailable) as caught:
                await store.transact([Put("/a", b"late")], guards=[Absent("/a")])
            assert caught.value.details["outcome"] == "unknown"

        async with anyio.create_task_group() as group:
            group.start_soon(change)
            await until(lambda: relay.held)
            await anyio.sleep(0.2)  # the whole call, and not its end, which follows after 2 s
            sent.append(len(relay.held))
        assert await store.get("/a") is None
        before = relay.bytes_back
        relay.release(sent[0])
        await until(lambda: relay.bytes_back >= before + 60)  # more than a ping: its answer
        assert await store.get("/a") is None
        await store.transact([Put("/a", b"mine")], guards=[Absent("/a")])


async def test_changes_beside_one_of_unknown_outcome_are_carried_out(
    etcd_member: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was on its way with the fence of another whose outcome is unknown: it is done again, under the next fence."""
    async with opened(at(*etcd_member.ports, prefix="/beside")) as store:
        call, fences = store._call, []

        async def late(method: etcd_link.Method, request: object) -> object:
            if method is etcd_link.TXN and not fences:
                fences.append(store._fence)
                store._doubt(store._fence)
                await store.get("/a")  # which puts the fence up
            return await call(method, request)

        monkeypatch.setattr(store, "_call", late)
        await store.transact([Put("/a", b"")], guards=[Absent("/a")])
        assert store._fence not in fences
        assert await store.get("/a") is not None


async def test_calls_go_on_while_the_leader_is_stalled(etcd_trio: EtcdMembers) -> None:
    leader = await anyio.to_thread.run_sync(etcd_trio.leader)
    await count_while_stalled(etcd_trio, [leader])


@pytest.mark.long
async def test_calls_go_on_while_each_member_in_turn_is_stalled(etcd_trio: EtcdMembers) -> None:
    await count_while_stalled(etcd_trio, [0, 1, 2, 0, 1, 2])


async def count_while_stalled(etcd: EtcdMembers, members: list[int]) -> None:
    async with opened(options(etcd)) as store:
        await store.transact([Put("/counter", b"0")])
        for count, n in enumerate(members):
            etcd.stall(n)
            try:
                assert await in_time(store, "/counter") == b"%d" % count
                await counted(store, count + 1)
            finally:
                etcd.resume(n)
        assert await in_time(store, "/counter") == b"%d" % len(members)


async def in_time(store: MetadataStore, key: str) -> bytes:
    """A value, asked for until a leader is there."""
    while True:
        try:
            item = await store.get(key)
        except MetadataUnavailable:
            continue
        assert item is not None
        return item.value


async def counted(store: MetadataStore, value: int) -> None:
    """Count up, as callers must: an unknown outcome is looked up before it is tried again."""
    while await in_time(store, "/counter") != b"%d" % value:
        try:
            await store.transact([Put("/counter", b"%d" % value)])
        except MetadataUnavailable:
            continue


async def test_black_holed_watch_is_on_another_member_within_ten_seconds(
    etcd_member: EtcdMembers, relay: Relay
) -> None:
    prefix = "/black-hole"
    async with (
        opened(at(*etcd_member.ports, prefix=prefix)) as writer,
        EtcdStore(at(relay.port, *etcd_member.ports, prefix=prefix)) as reader,
    ):
        start = await revision(writer)
        async with reader.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
            await writer.transact([Put("/a", b"")])
            assert (await anext(events)).key == "/a"
            relay.silent = True
            await writer.transact([Put("/b", b"")])
            began = anyio.current_time()
            assert (await anext(events)).key == "/b"
            assert anyio.current_time() - began < NOTICED_S
            await writer.transact([Put("/c", b"")])
            assert (await anext(events)).key == "/c"


# Nothing lost, nothing twice


async def test_watch_cut_again_and_again_brings_every_event_once(
    etcd_member: EtcdMembers, relay: Relay
) -> None:
    prefix = "/cut"
    async with (
        opened(at(*etcd_member.ports, prefix=prefix)) as writer,
        EtcdStore(at(relay.port, prefix=prefix)) as reader,
    ):
        start = await revision(writer)
        seen: list[tuple[int, str]] = []
        async with reader.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
            for round_ in range(6):
                for i in range(3):
                    await writer.transact([Put(f"/{round_}/{i}/{j:02d}", b"x" * 2000) for j in range(60)])
                while len(seen) < (round_ + 1) * 180:
                    event = await anext(events)
                    seen.append((event.revision - start, event.key))
                    if len(seen) % 90 == 41:  # in the middle of a revision
                        relay.cut()
        wanted = [
            (1 + round_ * 3 + i, f"/{round_}/{i}/{j:02d}")
            for round_ in range(6)
            for i in range(3)
            for j in range(60)
        ]
        assert seen == wanted
        assert relay.connections > 3


async def test_cut_watch_whose_place_was_compacted_says_so(etcd_member: EtcdMembers, relay: Relay) -> None:
    prefix = "/cut-compacted"
    async with (
        opened(at(*etcd_member.ports, prefix=prefix)) as writer,
        EtcdStore(at(relay.port, prefix=prefix)) as reader,
    ):
        start = await revision(writer)
        async with reader.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
            await writer.transact([Put("/a", b"1")])
            await anext(events)
            relay.silent = True
            await writer.transact([Put("/a", b"2")])
            last = await writer.transact([Delete("/a")])
            await writer.forget_history(last)
            relay.cut()
            relay.silent = False
            with pytest.raises(Compacted) as caught:
                await anext(events)
            assert caught.value.oldest_revision == last + 1
        items, seen_at = await read_all(reader, EVERYTHING)
        assert (items, seen_at) == ([], last)


async def test_watch_and_changes_outlive_a_change_of_leader(etcd_trio: EtcdMembers) -> None:
    async with opened(options(etcd_trio)) as store:
        start = await revision(store)
        made: list[bytes] = []
        async with store.watch(EVERYTHING, from_revision=Revision(start + 1)) as events:
            for n in range(3):
                leader = await anyio.to_thread.run_sync(etcd_trio.leader)
                target = etcd_trio.member_id((leader + 1) % 3)
                for i in range(5):
                    made.append(b"%d-%d" % (n, i))
                    await put_surely(store, "/k", made[-1])
                await anyio.to_thread.run_sync(
                    lambda leader=leader, target=target: etcd_trio.control(
                        "move-leader", target, endpoints=[etcd_trio.endpoints[leader]]
                    )
                )
            seen = [(await anext(events)).value for _ in made]
        assert seen == made


async def put_surely(store: MetadataStore, key: str, value: bytes) -> None:
    """Put once, guarded by what was read, whatever becomes of an answer."""
    while True:
        try:
            item = await store.get(key)
            if item is not None and item.value == value:
                return
            guard = Absent(key) if item is None else ModRevision(key, item.mod_revision)
            await store.transact([Put(key, value)], guards=[guard])
            return
        except (MetadataUnavailable, GuardFailed):
            continue


# Answers of any size


async def test_page_of_large_values_comes_in_parts(
    etcd_member: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tuple(
        (name, 600_000 if name == "grpc.max_receive_message_length" else value)
        for name, value in etcd_link.CHANNEL_OPTIONS
    )
    monkeypatch.setattr(etcd_link, "CHANNEL_OPTIONS", small)
    async with opened(at(*etcd_member.ports, prefix="/large")) as store:
        for i in range(12):
            await store.transact([Put(f"/{i:02d}", bytes(200_000))])
        page = await store.range(EVERYTHING)
        assert page.more
        items, _ = await read_all(store, EVERYTHING)
        assert [item.key for item in items] == [f"/{i:02d}" for i in range(12)]


# Who we are

USER, PASSWORD = "danube", "right"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    """One member that asks for a password, whose tokens live a second; the user may touch `/mine`."""
    folder = tmp_path_factory.mktemp("etcd-guarded")
    with EtcdMembers(folder, options=["--auth-token-ttl=1", "--bcrypt-cost=4"]) as etcd:
        for name, password in (("root", "root"), (USER, PASSWORD)):
            etcd.control("user", "add", f"{name}:{password}")
        etcd.control("role", "add", "mine")
        etcd.control("role", "grant-permission", "mine", "--prefix=true", "readwrite", "/mine")
        etcd.control("user", "grant-role", USER, "mine")
        etcd.control("user", "grant-role", "root", "root")
        etcd.control("auth", "enable")
        yield etcd


def as_user(etcd: EtcdMembers, *, password: str = PASSWORD, prefix: str = "/mine") -> EtcdOptions:
    return at(*etcd.ports, prefix=prefix, user=USER, password=password)


async def test_wrong_password_is_refused_with_the_setting(guarded: EtcdMembers) -> None:
    with pytest.raises(Unauthenticated, match="DANUBE_METADATA__PASSWORD") as caught:
        async with EtcdStore(as_user(guarded, password="wrong")):
            pass
    assert "wrong" not in caught.value.to_json()


async def test_missing_password_is_refused_with_the_setting(guarded: EtcdMembers) -> None:
    with pytest.raises(Unauthenticated, match="DANUBE_METADATA__USER"):
        async with EtcdStore(at(*guarded.ports)):
            pass


async def test_prefix_of_somebody_else_is_refused_with_the_command(guarded: EtcdMembers) -> None:
    with pytest.raises(PermissionDenied, match="etcdctl role grant-permission"):
        async with EtcdStore(as_user(guarded, prefix="/other")):
            pass


async def test_watch_of_a_range_that_is_not_ours_is_refused(guarded: EtcdMembers) -> None:
    async with EtcdStore(as_user(guarded)) as store:
        beyond = KeyRange(start="/", end="0")
        store._messages._prefix = b"/other"  # type: ignore[attr-defined]
        async with store.watch(beyond, from_revision=Revision(1)) as events:
            with pytest.raises(PermissionDenied):
                await anext(events)


async def test_password_that_etcd_does_not_ask_for_is_no_error(etcd_member: EtcdMembers) -> None:
    async with opened(as_user(etcd_member)) as store:
        await store.transact([Put("/a", b"")])


async def test_token_that_etcd_has_forgotten_is_renewed_for_calls_and_watches(guarded: EtcdMembers) -> None:
    """Disabled and enabled, it knows none of those it gave out, as when their time is over."""
    async with opened(as_user(guarded)) as store:
        await use_everything(store, lambda: forget_tokens(guarded))


@pytest.mark.long
async def test_token_that_has_run_out_is_renewed_for_calls_and_watches(guarded: EtcdMembers) -> None:
    async with opened(as_user(guarded)) as store:
        await use_everything(
            store, lambda: anyio.sleep(2.2)
        )  # etcd's clock: a second, looked at every second


async def forget_tokens(etcd: EtcdMembers) -> None:
    def disable_and_enable() -> None:
        etcd.control("--user=root:root", "auth", "disable")
        etcd.control("auth", "enable")

    await anyio.to_thread.run_sync(disable_and_enable)


async def use_everything(store: EtcdStore, expire: Callable[[], Awaitable[None]]) -> None:
    await expire()
    now = await store.transact([Put("/watched", b"")])
    await expire()
    async with store.watch(EVERYTHING, from_revision=now) as events:
        assert (await anext(events)).key == "/watched"
    await expire()
    lease = await store.grant_lease(60_000)
    await expire()
    assert await store.keep_alive(lease) == 60_000
    await expire()
    assert await store.get("/watched") is not None


# A full database


async def test_full_database_is_said_with_the_remedy_and_can_be_mended(tmp_path: Path) -> None:
    with EtcdMembers(tmp_path / "etcd", options=[f"--quota-backend-bytes={3 << 20}"]) as etcd:
        async with EtcdStore(at(*etcd.ports)) as store:
            with pytest.raises(MetadataUnavailable, match=r"NOSPACE.*etcdctl defrag") as caught:
                await write_on(store)
            assert caught.value.details == {"reason": "nospace"}
            item = await store.get("/same")  # reading goes on
            assert item is not None
            await store.forget_history(item.mod_revision)
            etcd.control("defrag")
            etcd.control("alarm", "disarm")
            await store.transact([Put("/same", b"")])


async def write_on(store: MetadataStore) -> None:
    """Write until it raises: etcd counts what it holds when it commits, every 100 ms or when the machine lets it."""
    with anyio.fail_after(60):
        for i in itertools.count():
            await store.transact([Put("/same", b"%d" % i + bytes(100_000))])


# Encrypted


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert_file, key_file


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdMembers, Path, Path]]:
    """A member with TLS, the certificate to trust, and one that signs nothing."""
    folder = tmp_path_factory.mktemp("etcd-tls")
    cert, key = certificate(folder, "server")
    other, _ = certificate(folder, "other")
    with EtcdMembers(folder, tls=(cert, key)) as etcd:
        yield etcd, cert, other


async def test_encrypted_member_is_used_like_any(encrypted: tuple[EtcdMembers, Path, Path]) -> None:
    etcd, cert, _ = encrypted
    async with EtcdStore(at(*etcd.ports, ca=cert)) as store:
        made = await store.transact([Put("/a", b"")])
        async with store.watch(EVERYTHING, from_revision=made) as events:
            assert isinstance(await anext(events), Event)


async def test_certificate_that_is_not_trusted_is_refused_with_the_setting(
    encrypted: tuple[EtcdMembers, Path, Path],
) -> None:
    etcd, _, other = encrypted
    with pytest.raises(MetadataUnavailable, match=r"is not of the authority in `\[metadata\] ca`"):
        async with EtcdStore(at(*etcd.ports, ca=other, timeout_s=1.0)):
            pass


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (
            "SSL_ERROR_SSL: error:10000412:SSL routines:OPENSSL_internal:SSLV3_ALERT_BAD_CERTIFICATE",
            "cert, key",
        ),
        ("Handshake read failed (Socket closed)", "use etcd://"),
        (
            "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired",
            "renew it",
        ),
        ("Hostname Verification Check failed.", "for another name"),
    ],
)
def test_what_grpc_says_of_a_handshake_is_said_in_words(said: str, means: str) -> None:
    assert means in plain(
        f"failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: {said}"
    )


async def test_plain_connection_to_an_encrypted_member_ends_in_a_sentence(
    encrypted: tuple[EtcdMembers, Path, Path],
) -> None:
    etcd, _, _ = encrypted
    with pytest.raises(MetadataUnavailable, match=r"127\.0\.0\.1.*etcds://"):
        async with EtcdStore(at(*etcd.ports, timeout_s=1.0)):
            pass


async def test_file_that_cannot_be_read_is_named(tmp_path: Path, anyio_backend: str) -> None:
    with pytest.raises(InvalidArgument, match=r"metadata\.ca: .*missing\.crt cannot be read"):
        async with EtcdStore(at(1, ca=tmp_path / "missing.crt")):
            pass


# Life


@pytest.mark.parametrize("renews", [False, True], ids=["a call", "a renewal"])
async def test_closing_ends_calls_under_way(relay: Relay, renews: bool) -> None:
    """The close of gRPC's channel looks like a cancellation, which nobody asked for."""
    ended: list[type[BaseException]] = []

    async def ask(call: Awaitable[object]) -> None:
        try:
            await call
        except (ClosedResource, MetadataUnavailable, RuntimeError, asyncio.CancelledError) as error:
            ended.append(type(error))

    async with anyio.create_task_group() as group, EtcdStore(at(relay.port)) as store:
        lease = await store.grant_lease(60_000)
        relay.silent = True
        group.start_soon(ask, store.keep_alive(lease) if renews else store.get("/a"))
        while store.statistics().waiting == 0:
            await anyio.lowlevel.checkpoint()
    assert ended == [ClosedResource]


# Leases of busy brokers


async def test_renewal_of_a_lease_takes_few_turns_of_a_busy_loop(etcd_member: EtcdMembers) -> None:
    async with EtcdStore(at(*etcd_member.ports)) as store, anyio.create_task_group() as group:
        lease = await store.grant_lease(60_000)
        await store.keep_alive(lease)  # connected
        turns = 0

        async def work() -> None:
            nonlocal turns
            while True:
                time.sleep(0.05)  # noqa: ASYNC251  # as a thousand short tasks hold the loop
                turns += 1
                await asyncio.sleep(0)

        group.start_soon(work)
        await asyncio.sleep(0)
        before = turns
        await store.keep_alive(lease)
        assert turns - before <= 4, "a turn lasts long while thousands of topics are taken over"
        group.cancel_scope.cancel()


async def test_renewal_of_a_lease_waits_for_no_other_call(relay: Relay) -> None:
    async with EtcdStore(at(relay.port)) as store, anyio.create_task_group() as group:
        lease = await store.grant_lease(60_000)
        await store.keep_alive(lease)
        relay.holding = True
        for _ in range(300):  # more than are sent at once
            group.start_soon(store.transact, [Put("/a", b"b")])
        await until(lambda: bool(relay.held))
        group.start_soon(store.keep_alive, lease)
        await until(lambda: len({writer for writer, _ in relay.held}) == 2)
        group.cancel_scope.cancel()
        relay.holding = False
