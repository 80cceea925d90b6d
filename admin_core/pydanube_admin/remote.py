"""The client of `danube.ops/Call`: how every face reaches the admin core.

A face never holds the admin core; it calls it over gRPC on the admin port, so that what may be done is decided in
one place. `OpsClient` is for asyncio (HTTP, MCP, console), `call_sync` for a command that makes one call and ends.

A channel that could not connect waits before it tries again; here that wait is short, since a server that was
started before its broker must not answer UNAVAILABLE for minutes after the broker is up. Proxy settings of the
environment are ignored: the admin port is not reached through one.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import grpc
from grpc import aio
from pydanube_core.errors import (
    CODES,
    ClusterError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotImplementedYet,
    Unavailable,
    error_for,
)
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse

from pydanube_admin.registry import OPERATIONS

__all__ = ["DEFAULT_ADMIN_URL", "OPS_CALL", "OpsClient", "call_sync", "default_principal", "grpc_target"]

DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:50051"
# For operations that say so, where the caller says nothing; his leaving ends them sooner
LONG_RUNNING_S: Final = 3600.0
OPS_CALL: Final = "/danube.ops.Ops/Call"

_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024  # a page of 1 000 items with long names is under 1 MiB
_CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long a broker that accepts may take to say hello: on a busy machine more than the back-off's second.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
)


def default_principal() -> str:
    """`DANUBE_PRINCIPAL`, else `<user>@<host>`; a claim until there is authentication."""
    claimed = os.environ.get("DANUBE_PRINCIPAL")
    if claimed:
        return claimed
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without an entry for its uid
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def grpc_target(admin_url: str) -> str:
    """`host:port` of `http://host:port`.

    Raises:
        InvalidArgument: not such a URL; `field` is `admin`.
    """
    parts = urlsplit(admin_url if "://" in admin_url else f"http://{admin_url}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme == "https":
        raise NotImplementedYet(
            f"{admin_url}: TLS comes with the security work; use http:// on a trusted network", url=admin_url
        )
    if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise InvalidArgument(
            f"{admin_url!r} is not an admin address; write http://host:port, such as {DEFAULT_ADMIN_URL}",
            field="admin",
            value=admin_url,
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


class OpsClient:
    """Calls operations of one cluster. Makes its channel at the first call, in the loop of that call.

    Usable as an async context manager; `aclose` may be called more than once. With `read_only` the admin core
    refuses whatever is no read.
    """

    def __init__(
        self,
        admin_url: str = DEFAULT_ADMIN_URL,
        *,
        timeout_s: float = 10.0,
        principal: str | None = None,
        face: str = "cli",
        read_only: bool = False,
    ) -> None:
        self.admin_url = admin_url
        self.read_only = read_only
        self.face = face
        self.principal = principal or default_principal()
        self.timeout_s = timeout_s
        self._target = grpc_target(admin_url)
        self._channel: aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def call(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        plan_token: str = "",
        principal: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Call one operation and return its result as a JSON object.

        Cancelled, or after DEADLINE_EXCEEDED, a change may have been made or not.

        Raises:
            ClusterError: what the operation answered; `Unavailable` if nobody listens at the address;
                `DeadlineExceeded` after `timeout_s`.
        """
        if self._channel is None:
            self._channel = aio.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
        method = self._channel.unary_unary(
            OPS_CALL,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )
        if timeout_s is None:
            timeout_s = max(self.timeout_s, LONG_RUNNING_S) if _long_running(operation) else self.timeout_s
        request = _request(operation, arguments, plan_token, principal or self.principal, self.face)
        request.read_only = self.read_only
        try:
            response = await method(request, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise _translate(error.code(), error.details(), self.admin_url, operation, timeout_s) from error
        return _decode(response)


def _long_running(operation: str) -> bool:
    known = OPERATIONS.get(operation)
    return known is not None and known.long_running


def call_sync(
    admin_url: str,
    operation: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = 10.0,
    principal: str | None = None,
    face: str = "cli",
    plan_token: str = "",
) -> dict[str, Any]:
    """Call one operation without asyncio; raises as `OpsClient.call` does."""
    request = _request(operation, arguments, plan_token, principal or default_principal(), face)
    with grpc.insecure_channel(grpc_target(admin_url), options=_CHANNEL_OPTIONS) as channel:
        method = channel.unary_unary(
            OPS_CALL,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )
        try:
            response = method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _translate(error.code(), error.details(), admin_url, operation, timeout_s) from error
    return _decode(response)


def _request(
    operation: str, arguments: Mapping[str, Any] | None, plan_token: str, principal: str, face: str
) -> CallRequest:
    try:
        body = json.dumps(dict(arguments or {}), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            "the arguments are not a JSON object: pass strings, numbers, booleans, lists and objects",
            field="arguments",
        ) from error
    return CallRequest(
        operation=_text(operation),
        arguments=body.encode(),
        plan_token=_text(plan_token),
        principal=_text(principal),
        face=face,
    )


def _text(value: str) -> str:
    """A lone surrogate cannot travel as a protobuf string; a name that has one is unknown anyway."""
    return value.encode("utf-8", "replace").decode()


def _decode(response: CallResponse) -> dict[str, Any]:
    match response.WhichOneof("outcome"):
        case "result":
            result = json.loads(response.result)
            assert isinstance(result, dict)
            return result
        case "error":
            raise ClusterError.from_json(response.error.decode())
        case _:
            raise Internal("danube.ops answered neither result nor error")


def _translate(
    code: grpc.StatusCode, details: str | None, admin_url: str, operation: str, timeout_s: float
) -> ClusterError:
    """A transport's status as one of our errors."""
    text = (details or "").strip()
    name, _, message = text.partition(":")
    if name in CODES:  # a broker of ours refused before the admin core saw it: CODE: message
        return error_for(name, message.strip())
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(
                f"no broker answers at {admin_url}; start one with `danube up`, or name another with --admin "
                "or DANUBE_ADMIN_ENDPOINT",
                next=[
                    {
                        "operation": None,
                        "tool": None,
                        "command": "danube up",
                        "arguments": {},
                        "why": "starts a broker on this machine",
                    }
                ],
                retry_after_ms=1000,
                url=admin_url,
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(
                f"{operation} at {admin_url}: no answer within {timeout_s:g} s; a change may have been made "
                "or not. Look before you repeat it, or allow more time with --timeout",
                url=admin_url,
                timeout_s=timeout_s,
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return NotImplementedYet(
                f"the server at {admin_url} does not offer danube.ops; is this the admin port (50051) of a "
                "pydanube broker?",
                url=admin_url,
            )
        case _:
            return Internal(
                f"{operation} at {admin_url} failed: {code.name}", url=admin_url, status=code.name
            )
