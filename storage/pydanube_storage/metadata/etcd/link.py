"""Calls to etcd's members: to one at a time, to the next when it fails, and each with a deadline.

What is safe to repeat (reads, renewals) goes on to the next member until the deadline. A change is repeated only where
etcd has certainly not seen it: the connection was never made, or etcd says that it refused. Else its outcome is
unknown, and the caller, who has guards, decides.

A member that is stopped or cut off while the connection stands is noticed by the deadline of a call, and by the
connection's own pings within `_PING_S + _PING_ANSWER_S`, which ends its watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
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
AWAY_S: Final = (
    2.0  # the deadline then: an operation that asks several times is refused before its caller gives up
)
_ROUND_PAUSE_S: Final = 0.1  # when no member answers
_CALLS_AT_ONCE: Final = 256  # further calls wait their turn; it counts towards their deadline
_MAX_ANSWER_BYTES: Final = 64 << 20  # a page is asked for in smaller parts when it would be more
CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", int(_PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(_PING_ANSWER_S * 1000)),
    (
        "grpc.http2.ping_timeout_ms",
        int(_PING_ANSWER_S * 1000),
    ),  # a minute by default, and the ping before it counts
    ("grpc.http2.max_pings_without_data", 0),  # no bound: a quiet watch is watched too
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # one store's trouble is not another's
    ("grpc.enable_http_proxy", 0),
)
# A member without a leader ends our streams instead of keeping quiet
_REQUIRE_LEADER: Final = ("hasleader", "true")

assert _PING_S + _PING_ANSWER_S < 10, "a watch that hears nothing is noticed within 10 s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of etcd's API. `repeatable`: calling it twice has the effect of once."""

    path: str
    request: Any
    answer: Any
    repeatable: bool
    stream: bool = False


def _method(path: str, request: Any, answer: Any, *, repeatable: bool = True, stream: bool = False) -> Method:
    """Return a method of etcd's API by its service and name."""
    full = f"/etcdserverpb.{path}"
    return Method(path=full, request=request, answer=answer, repeatable=repeatable, stream=stream)


RANGE: Final = _method("KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = _method("KV/Txn", pb.TxnRequest, pb.TxnResponse, repeatable=False)
FENCE: Final = replace(TXN, repeatable=True)
COMPACT: Final = _method("KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
# Twice: the lease nobody knows of runs out by itself
LEASE_GRANT: Final = _method("Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE: Final = _method(
    "Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse, repeatable=False
)
LEASE_KEEP_ALIVE: Final = _method(
    "Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse, stream=True
)
WATCH: Final = _method("Watch/Watch", pb.WatchRequest, pb.WatchResponse, stream=True)
_AUTHENTICATE: Final = _method("Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class _Member:
    """One member: its channel, which reconnects without help, and its prepared calls."""

    def __init__(self, address: str, channel: Any) -> None:
        self.address = address
        self.channel = channel
        self._calls: dict[str, Any] = {}

    def callable(self, method: Method) -> Any:
        if method.path not in self._calls:
            make = self.channel.stream_stream if method.stream else self.channel.unary_unary
            self._calls[method.path] = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.answer.FromString,
            )
        return self._calls[method.path]

    async def connect(self, patience_s: float) -> None:
        """Wait until the channel is connected or its last attempt has failed.

        A failed attempt is no error here: the call that follows is refused at once and says why.

        Raises `Refused`: neither has happened in time; nothing was sent.
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
    """`async with EtcdLink(options) as link`; on asyncio. Raises `MissingExtra` and, for bad files, `InvalidArgument`."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._members: list[_Member] = []
        self._current = 0
        self._slots = anyio.Semaphore(_CALLS_AT_ONCE)
        self._token: str | None = None
        self._open_mode = options.user is None  # nothing to authenticate with, or etcd does not ask for it
        self._authenticating = anyio.Lock()
        self._away = False  # no member has answered the last call that was repeated until its deadline
        self.waiting = 0

    async def __aenter__(self) -> Self:
        try:
            from grpc import aio
        except ImportError as error:
            raise MissingExtra(
                f"brokers on etcd need a part that is not installed: {install_command('cluster')}",
                extra="cluster",
            ) from error
        credentials = self._credentials()
        for address in self._options.address.endpoints:
            if credentials is None:
                channel = aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            else:
                channel = aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
            self._stack.push_async_callback(channel.close, None)
            self._members.append(_Member(address, channel))
        return self

    async def __aexit__(self, *_: object) -> None:
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
        """Make a call on the member that answered last, or on the others in turn.

        Raises:
            MetadataUnavailable: no member answered within the deadline; with `outcome: "unknown"` if a change may have
                been carried out all the same.
            ClusterError: what etcd refused, translated (`refusals`).
        """
        timeout_s = min(self._options.timeout_s, AWAY_S) if self._away else self._options.timeout_s
        deadline = anyio.current_time() + timeout_s
        faults: dict[str, str] = {}
        self.waiting += 1
        try:
            with anyio.move_on_after(timeout_s):
                async with self._slots:
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
        """Call one member, and wait `patience_s` for its answer, so that another gets a chance, too."""
        await member.connect(min(_CONNECT_S, patience_s))
        for is_last in (False, True):
            token = await self._authenticated(member)
            try:
                left_s = max(deadline - anyio.current_time(), 0.001)
                return await _send(member, method, request, min(left_s, patience_s), _metadata(token))
            except Refused as refused:
                if not refused.stale_token or is_last or self._open_mode:
                    raise
                self.forget_token(token)
        raise AssertionError("unreachable")

    async def open_watch(self, request: pb.WatchRequest) -> tuple[_Member, Any]:
        """Begin a watch on the present member; the stream's `read` returns its answers.

        Raises `Refused`, after which the next member is to be tried.
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

    # Who we are

    def forget_token(self, token: str | None = None) -> None:
        """Authenticate anew before the next call, unless that has happened since `token`."""
        if token is None or self._token == token:
            self._token = None

    async def _authenticated(self, member: _Member) -> str | None:
        """Return the token to send; None if etcd requires none."""
        if self._open_mode or self._token is not None:
            return self._token
        async with self._authenticating:
            if self._token is None and not self._open_mode:
                request = pb.AuthenticateRequest(name=self._options.user, password=self._options.password)
                try:
                    answer = await _send(member, _AUTHENTICATE, request, self._options.timeout_s / 2, ())
                    self._token = answer.token
                except Refused as refused:
                    if not refused.no_authentication:
                        raise
                    self._open_mode = True  # etcd lets everybody in: a password too many is no error
        return self._token

    def _unavailable(
        self, faults: dict[str, str], timeout_s: float, *, perhaps_done: bool = False
    ) -> ClusterError:
        said = "; ".join(f"{address}: {why}" for address, why in faults.items()) or "no member was reached"
        hint = "check `[metadata] url` and that etcd runs (etcdctl endpoint health)"
        hint += (
            ", and `[metadata] ca, cert, key`" if self._options.secure else "; etcds:// where it wants TLS"
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
    """Await something of gRPC; raises what `judge` makes of its errors.

    A cancellation that has been through gRPC's tasks no longer looks like that of a scope, which would let it pass;
    and the calls of a channel that is closed end like cancelled ones.
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


async def _send(
    member: _Member, method: Method, request: Any, timeout_s: float, metadata: tuple[tuple[str, str], ...]
) -> Any:
    """Send one request; return its answer. Raises `Refused`, or what `judge` makes of etcd's error."""
    calling = member.callable(method)
    if not method.stream:
        return await of_grpc(calling(request, timeout=timeout_s, metadata=metadata))
    stream = calling([request], timeout=timeout_s, metadata=metadata)
    try:
        answer = await of_grpc(stream.read())
    finally:
        stream.cancel()
    if not isinstance(answer, method.answer):  # the end of the stream
        raise Refused("ended the call without an answer", seen=Seen.MAYBE)
    return answer


def _metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (("token", token),)


def _read(path: Path | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"metadata.{name}: {path} cannot be read ({error.strerror}); name a PEM file that this user may read",
            field=f"metadata.{name}",
            value=str(path),
        ) from error
