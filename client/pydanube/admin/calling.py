"""The way of an operation to the broker's admin port and back: `danube.ops/Call`."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
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
from pydanube_core.services import OPS

from pydanube.admin.values import ResultT

if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin
    from pydanube.admin.generated.sync_operations import SyncAdmin

__all__ = ["Caller", "SyncCaller", "connect_admin", "connect_admin_sync"]

DEFAULT_URL: Final = "http://127.0.0.1:50051"
FACE: Final = "python"
LONG_RUNNING_S: Final = 3600.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
)


class _Terms:
    """What asynchronous and plain calls have in common."""

    def __init__(self, url: str | None, *, principal: str | None, timeout_s: float) -> None:
        self.url = url or os.environ.get("DANUBE_ADMIN_ENDPOINT") or DEFAULT_URL
        self.principal = principal or os.environ.get("DANUBE_PRINCIPAL") or _somebody()
        self.timeout_s = timeout_s
        scheme, _, rest = self.url.rpartition("://")
        self.target = rest.rstrip("/")
        if scheme not in ("", "http") or not self.target.rpartition(":")[2].isdecimal():
            raise InvalidArgument(
                f"{self.url!r} is not an admin address; write http://host:port, such as {DEFAULT_URL}",
                field="url",
                value=self.url,
            )

    def request(self, operation: str, arguments: Mapping[str, Any]) -> CallRequest:
        """What was not given (None) is left out: the broker has the defaults."""
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            body = json.dumps(given, allow_nan=False, default=dict)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"the arguments are not JSON: {error}", field="arguments", value=None
            ) from error
        return CallRequest(operation=operation, arguments=body.encode(), principal=self.principal, face=FACE)

    def result(self, response: CallResponse, kind: type[ResultT]) -> ResultT:
        match response.WhichOneof("outcome"):
            case "result":
                return kind.model_validate_json(response.result)
            case "error":
                raise ClusterError.from_json(response.error.decode())
            case _:
                raise Internal("danube.ops answered neither result nor error")

    def failure(self, error: Any, operation: str) -> ClusterError:
        """A transport's status as one of our errors."""
        name, _, message = (error.details() or "").partition(":")
        if name in CODES:
            return error_for(name, message.strip())
        match error.code():
            case grpc.StatusCode.UNAVAILABLE:
                return Unavailable(
                    f"no broker answers at {self.url}; start one with `danube up`",
                    retry_after_ms=1000,
                    url=self.url,
                )
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return DeadlineExceeded(
                    f"{operation} at {self.url}: no answer in time; a change may have been made or not. Look before "
                    "you repeat it",
                    url=self.url,
                )
            case grpc.StatusCode.UNIMPLEMENTED:
                return NotImplementedYet(
                    f"{self.url} is not the admin port of a pydanube broker", url=self.url
                )
            case code:
                return Internal(f"{operation} at {self.url} failed: {code.name}", url=self.url)

    def limit_s(self, *, long_running: bool) -> float:
        return max(self.timeout_s, LONG_RUNNING_S) if long_running else self.timeout_s


class Caller(_Terms):
    """Calls from asyncio."""

    def __init__(self, url: str | None, *, principal: str | None, timeout_s: float) -> None:
        super().__init__(url, principal=principal, timeout_s=timeout_s)
        self._channel = grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        self._method = self._channel.unary_unary(
            OPS["Call"].path,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )

    async def call(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        kind: type[ResultT],
        *,
        long_running: bool = False,
    ) -> ResultT:
        """One operation. Cancelled, a change may have been made or not. Raises any `ClusterError`."""
        request = self.request(operation, arguments)
        try:
            response = await self._method(request, timeout=self.limit_s(long_running=long_running))
        except grpc.aio.AioRpcError as error:
            raise self.failure(error, operation) from error
        return self.result(response, kind)

    async def aclose(self) -> None:
        await self._channel.close()


class SyncCaller(_Terms):
    """Calls that wait; from any thread."""

    def __init__(self, url: str | None, *, principal: str | None, timeout_s: float) -> None:
        super().__init__(url, principal=principal, timeout_s=timeout_s)
        self._channel = grpc.insecure_channel(self.target, options=_OPTIONS)
        self._method = self._channel.unary_unary(
            OPS["Call"].path,
            request_serializer=CallRequest.SerializeToString,
            response_deserializer=CallResponse.FromString,
        )

    def call(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        kind: type[ResultT],
        *,
        long_running: bool = False,
    ) -> ResultT:
        """As `Caller.call`."""
        request = self.request(operation, arguments)
        try:
            response = self._method(request, timeout=self.limit_s(long_running=long_running))
        except grpc.RpcError as error:
            raise self.failure(error, operation) from error
        return self.result(response, kind)

    def close(self) -> None:
        self._channel.close()


@asynccontextmanager
async def connect_admin(
    url: str | None = None, *, principal: str | None = None, timeout_s: float = 10.0
) -> AsyncIterator[Admin]:
    """The operations of a cluster, for the block.

    Args:
        url: of the admin port; DANUBE_ADMIN_ENDPOINT, else http://127.0.0.1:50051.
        principal: who asks, for the audit; DANUBE_PRINCIPAL, else `<user>@<host>`.
        timeout_s: for a call; operations that take long have an hour.
    """
    from pydanube.admin.generated.operations import Admin

    caller = Caller(url, principal=principal, timeout_s=timeout_s)
    try:
        yield Admin(caller)
    finally:
        await caller.aclose()


@contextmanager
def connect_admin_sync(
    url: str | None = None, *, principal: str | None = None, timeout_s: float = 10.0
) -> Iterator[SyncAdmin]:
    """`connect_admin` without await; `pydanube.sync` exports it under that name."""
    from pydanube.admin.generated.sync_operations import SyncAdmin

    caller = SyncCaller(url, principal=principal, timeout_s=timeout_s)
    try:
        yield SyncAdmin(caller)
    finally:
        caller.close()


def _somebody() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without an entry for its uid
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
