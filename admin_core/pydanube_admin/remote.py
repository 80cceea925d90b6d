"""The client of `danube.ops/Call`, through which every face reaches the admin core.

A face has no access to the admin core other than requests to `danube.ops/Call`, so that permissions are
checked in one place. Requests go over gRPC to the admin port. A face in the broker's own process may be given
the entry behind that port, which takes the same bytes. `OpsClient` is for asyncio (HTTP, MCP, console),
`call_sync` for a command that makes one call and ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from pydanube.addresses import DEFAULT_ADMIN_URL
from pydanube.principal import default_principal, named_principal
from pydanube_core.calling_program import CallingProgram, package_version
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.ops_call import LONG_RUNNING_S, call_request, call_result, call_target, no_answer

from pydanube_admin.engine.declaration import declarations

if TYPE_CHECKING:
    from pydanube.wire.ops_channel import OpsChannel


_NAMES: Final = {
    "cli": "danube",
    "tui": "danube",
    "jsonrpc": "",
}  # programs by face. Callers of JSON-RPC name their own
OpsEntry = Callable[[bytes], Awaitable[bytes]]  # an encoded CallRequest to an encoded CallResponse


class OpsClient:
    """Calls the operations of one cluster. Makes its channel at the first call, in that call's loop.

    Usable as an async context manager. `aclose` may be called more than once. With `read_only` the admin core
    refuses everything but reads. `entry` is the function behind the admin port, if that is in this process.
    """

    def __init__(
        self,
        admin_url: str = DEFAULT_ADMIN_URL,
        *,
        timeout_s: float = 10.0,
        principal: str | None = None,
        face: str = "cli",
        read_only: bool = False,
        entry: OpsEntry | None = None,
        program: CallingProgram | None = None,
    ) -> None:
        self.admin_url = admin_url
        self.read_only = read_only
        self.face = face
        self._principal = principal
        self._program = program or CallingProgram(
            name=_NAMES.get(face, "pydanube"), version=package_version()
        )
        self.timeout_s = timeout_s
        call_target(admin_url)  # refuses an address of another form
        self._entry = entry
        self._channel: OpsChannel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()

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

        After a cancellation or DEADLINE_EXCEEDED, a change may have been made or not.

        Raises:
            ClusterError: the operation's error, `Unavailable` if the address does not answer, or
                `DeadlineExceeded` after `timeout_s`.
        """
        result = await self.call_json(
            operation, arguments, plan_token=plan_token, principal=principal, timeout_s=timeout_s
        )
        return _object(result)

    async def call_json(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        plan_token: str = "",
        principal: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """As `call`, with the result as JSON text."""
        if timeout_s is None:
            timeout_s = max(self.timeout_s, LONG_RUNNING_S) if _long_running(operation) else self.timeout_s
        request = call_request(
            operation,
            arguments,
            principal=self.principal if principal is None else principal,
            face=self.face,
            plan_token=plan_token,
            read_only=self.read_only,
            program=self._program,
        )
        if self._entry is not None:
            return call_result(await self._here(self._entry, request, operation, timeout_s))
        return await self._opened().call(request, timeout_s=timeout_s, reads=_reads(operation))

    @property
    def principal(self) -> str:
        """The principal of calls that name no other. Empty if a credential identifies the caller."""
        if self._entry is None:
            return named_principal(self._principal, shows_identity=self._opened().shows_identity)
        from pydanube_core.security.identity import ANONYMOUS, current_identity

        caller = current_identity.get()  # of the request that this face answers
        if caller is not None and caller.method != ANONYMOUS.method:
            return ""
        return self._principal or default_principal()

    def _opened(self) -> OpsChannel:
        if self._channel is None:
            from pydanube.wire.ops_channel import OpsChannel  # an MCP server lists its tools without it

            self._channel = OpsChannel(self.admin_url)
        return self._channel

    async def _here(
        self, entry: OpsEntry, request: CallRequest, operation: str, timeout_s: float
    ) -> CallResponse:
        """Carry the call out in this process, as the admin port would: within the deadline, or not at all."""
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return CallResponse.FromString(await entry(request.SerializeToString()))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise no_answer(
                url=self.admin_url, operation=operation, timeout_s=timeout_s, reads=_reads(operation)
            ) from error


def _reads(operation: str) -> bool:
    known = declarations().get(operation)
    return known is not None and known.reads


def _long_running(operation: str) -> bool:
    known = declarations().get(operation)
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
    program: CallingProgram | None = None,
) -> dict[str, Any]:
    """Call one operation without asyncio. Raises the errors of `OpsClient.call`."""
    from pydanube.blocking.loop import Loop

    client = OpsClient(admin_url, timeout_s=timeout_s, principal=principal, face=face, program=program)

    async def once() -> dict[str, Any]:
        async with client:
            return await client.call(operation, arguments, plan_token=plan_token, timeout_s=timeout_s)

    loop = Loop()
    try:
        return loop.call(once())
    finally:
        loop.close()


def _object(body: bytes) -> dict[str, Any]:
    result = json.loads(body)
    assert isinstance(result, dict)
    return result
