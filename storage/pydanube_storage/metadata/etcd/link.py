"""Call etcd's members: one at a time, the next when it fails, each call with a deadline.

Idempotent calls (reads, renewals) are retried on the next member until the deadline. A change is retried only if etcd
certainly did not receive it: the connection failed, or etcd refused the call. Otherwise its outcome is unknown and the
caller decides by its guards.

A stopped or partitioned member with an open connection is detected by a call's deadline, and by the connection's pings
within `_PING_S + _PING_ANSWER_S`, which end its watches.

Renewals of leases have a connection and a thread of their own. A call through the event loop takes about ten of its
turns. While the loop is busy that can last for seconds, and a broker would lose its lease by its own work. A renewal
takes three turns, waits for no slot, and follows no bulk transaction on its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import anyio
import anyio.lowlevel
from pydanube_core.errors import (
    ClosedResource,
    ClusterError,
    InvalidArgument,
    MetadataUnavailable,
    MissingExtra,
)
from pydanube_core.extras import install_command
from pydanube_core.generated import etcd_pb2 as pb

from pydanube_storage.metadata.etcd.address import EtcdOptions
from pydanube_storage.metadata.etcd.refusals import Refused, Seen, judge

_PING_S: Final = 5.5  # etcd ends connections that ping more often than every 5 s (--grpc-keepalive-min-time)
_PING_ANSWER_S: Final = 3.0
_CONNECT_S: Final = 2.0
# Deadline during an outage, so that an operation of several calls fails before its caller gives up
AWAY_S: Final = 2.0
_ROUND_PAUSE_S: Final = 0.1  # when no member answers
_CALLS_AT_ONCE: Final = 256  # concurrent calls. Waiting for a slot counts towards the deadline
_MAX_ANSWER_BYTES: Final = 64 << 20  # larger pages are requested in smaller parts
CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", int(_PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(_PING_ANSWER_S * 1000)),
    (
        "grpc.http2.ping_timeout_ms",
        int(_PING_ANSWER_S * 1000),
    ),  # the default is a minute and includes the ping before
    ("grpc.http2.max_pings_without_data", 0),  # unlimited, so that idle watches are checked too
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # stores in one process share no connection
    ("grpc.enable_http_proxy", 0),
)
# Without a leader the member ends our streams instead of staying silent
_REQUIRE_LEADER: Final = ("hasleader", "true")

assert _PING_S + _PING_ANSWER_S < 10, "a watch that gets nothing is noticed within 10 s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of etcd's API. `repeatable`: calling it twice has the effect of once.

    `own_road`: it is called from a thread, on a connection of its own.
    """

    path: str
    request: Any
    answer: Any
    repeatable: bool
    stream: bool = False
    own_road: bool = False


def _method(path: str, request: Any, answer: Any, **more: bool) -> Method:
    """Return a method of etcd's API by its service and name."""
    full = f"/etcdserverpb.{path}"
    return Method(path=full, request=request, answer=answer, **{"repeatable": True, **more})


RANGE: Final = _method("KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = _method("KV/Txn", pb.TxnRequest, pb.TxnResponse, repeatable=False)
FENCE: Final = replace(TXN, repeatable=True)
READS: Final = FENCE  # a transaction that only reads
COMPACT: Final = _method("KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
# Repeatable, because a lease granted twice expires unused
LEASE_GRANT: Final = _method("Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE: Final = _method(
    "Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse, repeatable=False
)
LEASE_KEEP_ALIVE: Final = _method(
    "Lease/LeaseKeepAlive",
    pb.LeaseKeepAliveRequest,
    pb.LeaseKeepAliveResponse,
    stream=True,
    own_road=True,
)
WATCH: Final = _method("Watch/Watch", pb.WatchRequest, pb.WatchResponse, stream=True)
_AUTHENTICATE: Final = _method("Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class _Member:
    """One member: its channels, which reconnect automatically, and its prepared calls.

    `own_road`: a channel of the blocking API, for methods that are called from a thread.
    """

    def __init__(self, address: str, channel: Any, own_road: Any) -> None:
        self.address = address
        self.channel = channel
        self.own_road = own_road
        self._calls: dict[str, Any] = {}

    def callable(self, method: Method) -> Any:
        if method.path not in self._calls:
            channel = self.own_road if method.own_road else self.channel
            make = channel.stream_stream if method.stream else channel.unary_unary
            self._calls[method.path] = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.answer.FromString,
            )
        return self._calls[method.path]

    async def connect(self, patience_s: float) -> None:
        """Wait until the channel is connected or its last attempt has failed.

        A failed attempt is no error here, because the next call fails immediately with the reason.

        Raises `Refused` if neither happens in time. Nothing was sent then.
        """
        import grpc

        with anyio.move_on_after(patience_s):
            state = self.channel.get_state(try_to_connect=True)
            while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                await of_grpc(self.channel.wait_for_state_change(state))
                state = self.channel.get_state(try_to_connect=True)
            return
        raise Refused(f"no connection within {patience_s:.1f} s", seen=Seen.NO)


class EtcdLink:
    """Use as `async with EtcdLink(options) as link` on asyncio.

    Entering raises `MissingExtra`, and `InvalidArgument` for unreadable certificate files.
    """

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._members: list[_Member] = []
        self._current = 0
        self._slots = anyio.Semaphore(_CALLS_AT_ONCE)
        self._thread = ThreadPoolExecutor(1, "etcd-lease")
        self._token: str | None = None
        self._open_mode = options.user is None  # no user is set, or etcd's authentication is off
        self._authenticating = anyio.Lock()
        self._away = False  # the last call that was retried until its deadline got no answer
        self.waiting = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            import grpc
            from grpc import aio
        except ImportError as error:
            raise MissingExtra(
                f"brokers on etcd need a part that is not installed: {install_command('cluster')}",
                extra="cluster",
            ) from error
        credentials = self._credentials()
        self._stack.callback(self._thread.shutdown, wait=False)
        for address in self._options.address.endpoints:
            channel, own_road = (
                api.insecure_channel(address, options=CHANNEL_OPTIONS)
                if credentials is None
                else api.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
                for api in (aio, grpc)
            )
            self._stack.push_async_callback(channel.close, None)
            self._stack.callback(own_road.close)  # ends a call under way
            self._members.append(_Member(address, channel, own_road))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    def _credentials(self) -> Any:
        if not self._options.secure:
            return None
        import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=_read(self._options.ca, "ca"),
            private_key=_read(self._options.key, "key"),
            certificate_chain=_read(self._options.cert, "cert"),
        )

    # Calls

    async def call(self, method: Method, request: Any) -> Any:
        """Call the member that answered last, or the others in turn.

        Raises:
            MetadataUnavailable: no member answered within the deadline. With `outcome: "unknown"` if etcd may have
                carried out the change.
            ClusterError: etcd's error, translated (`refusals`).
        """
        # A renewal outlasts transactions that etcd answers late
        is_short = self._away and not method.own_road
        timeout_s = min(self._options.timeout_s, AWAY_S) if is_short else self._options.timeout_s
        deadline = anyio.current_time() + timeout_s
        faults: dict[str, str] = {}
        self.waiting += 1
        try:
            with anyio.move_on_after(timeout_s):
                async with nullcontext() if method.own_road else self._slots:
                    while True:
                        member = self._members[self._current]
                        try:
                            answer = await self._attempt(member, method, request, deadline, timeout_s / 2)
                        except Refused as refused:
                            faults[member.address] = refused.why
                            self.turn_from(member)
                            if refused.seen is Seen.MAYBE and not method.repeatable:
                                raise self._unavailable(faults, timeout_s, perhaps_done=True) from refused
                        else:
                            self._away = False
                            return answer
                        if self._current == 0:
                            await anyio.sleep(_ROUND_PAUSE_S)
        finally:
            self.waiting -= 1
        self._away = True
        raise self._unavailable(faults, timeout_s)

    async def _attempt(
        self, member: _Member, method: Method, request: Any, deadline: float, patience_s: float
    ) -> Any:
        """Call one member and wait `patience_s` for its answer, which leaves time for another member."""
        if not method.own_road:
            await member.connect(min(_CONNECT_S, patience_s))
        for is_last in (False, True):
            token = await self._authenticated(member)
            try:
                left_s = max(deadline - anyio.current_time(), 0.001)
                return await self._send(member, method, request, min(left_s, patience_s), _metadata(token))
            except Refused as refused:
                if not refused.stale_token or is_last or self._open_mode:
                    raise
                self.forget_token(token)
        raise AssertionError("unreachable")

    async def _send(
        self,
        member: _Member,
        method: Method,
        request: Any,
        timeout_s: float,
        metadata: tuple[tuple[str, str], ...],
    ) -> Any:
        """Send one request and return its answer. Raises `Refused` or the error translated by `judge`."""
        calling = member.callable(method)
        if not method.own_road:
            return await of_grpc(calling(request, timeout=timeout_s, metadata=metadata))
        if self._closed:
            raise ClosedResource("the metadata store is closed", resource="EtcdStore")
        loop = asyncio.get_running_loop()
        answer = await of_grpc(
            loop.run_in_executor(self._thread, _first_answer, calling, request, timeout_s, metadata)
        )
        if answer is None:
            raise Refused("ended the call without an answer", seen=Seen.MAYBE)
        return answer

    async def open_watch(self, request: pb.WatchRequest) -> tuple[_Member, Any]:
        """Open a watch on the current member and return that member and the stream.

        Raises `Refused`. The next call uses the next member then.
        """
        member = self._members[self._current]
        try:
            await member.connect(_CONNECT_S)
            token = await self._authenticated(member)
            stream = member.callable(WATCH)(metadata=(*_metadata(token), _REQUIRE_LEADER))
            await of_grpc(stream.write(request))
        except Refused:
            self.turn_from(member)
            raise
        return member, stream

    def turn_from(self, member: _Member) -> None:
        """Use the next member from now on, unless another call has switched already."""
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    # Authentication

    def forget_token(self, token: str | None = None) -> None:
        """Authenticate again before the next call, unless `token` has been replaced already."""
        if token is None or self._token == token:
            self._token = None

    async def _authenticated(self, member: _Member) -> str | None:
        """Return the token to send, None if etcd requires none."""
        if self._open_mode or self._token is not None:
            return self._token
        async with self._authenticating:
            if self._token is None and not self._open_mode:
                request = pb.AuthenticateRequest(name=self._options.user, password=self._options.password)
                try:
                    answer = await self._send(member, _AUTHENTICATE, request, self._options.timeout_s / 2, ())
                    self._token = answer.token
                except Refused as refused:
                    if not refused.no_authentication:
                        raise
                    self._open_mode = True  # etcd's authentication is off: an unneeded password is no error
        return self._token

    def _unavailable(
        self, faults: dict[str, str], timeout_s: float, *, perhaps_done: bool = False
    ) -> ClusterError:
        said = "; ".join(f"{address}: {why}" for address, why in faults.items()) or "no member was reached"
        hint = "check `[metadata] url` and that etcd runs (etcdctl endpoint health)"
        hint += (
            ", and `[metadata] ca, cert, key`" if self._options.secure else ", and `etcds://` if it wants TLS"
        )
        error = MetadataUnavailable(
            f"etcd does not answer within {timeout_s:g} s: {said}; {hint}",
            retry_after_ms=1000,
            endpoints=list(self._options.address.endpoints),
        )
        if perhaps_done:
            error.details["outcome"] = "unknown"
        return error


async def of_grpc(awaitable: Awaitable[Any]) -> Any:
    """Await an awaitable of gRPC and translate its errors with `judge`.

    A cancellation that passed through gRPC's tasks has lost the mark of its cancel scope, so the scope would not catch
    it. Calls on a closed channel end with the same exception as cancelled ones.
    """
    try:
        return await awaitable
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ClosedResource("the metadata store is closed", resource="EtcdStore") from None
    except Exception as error:
        raise judge(error) from error


def _first_answer(
    call: Any, request: Any, timeout_s: float, metadata: tuple[tuple[str, str], ...]
) -> Any | None:
    """Return the first answer of a stream of the blocking API, None if it ended without one. Runs in a thread."""
    stream = call(iter((request,)), timeout=timeout_s, metadata=metadata)
    try:
        return next(stream, None)
    finally:
        stream.cancel()


def _metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (("token", token),)


def _read(path: Path | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"metadata.{name}: {path} cannot be read ({error.strerror}). Name a PEM file that this user may read",
            field=f"metadata.{name}",
            value=str(path),
        ) from error
