"""The admin core: the one place where operations are carried out.

It runs beside the broker, behind `danube.ops/Call`. The broker hands it bytes and passes on the bytes it answers;
the command that starts both gives it the broker's port once there is one. Every failure is an answer: a call never
raises, so that neither a bug here nor one in the port takes the broker's server down.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError
from pydantic import BaseModel
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, Internal, InvalidArgument, NotImplementedYet, Unavailable
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse

from pydanube_admin.arguments import parse_call, plans_come_later
from pydanube_admin.context import Context, NowMs, system_now_ms
from pydanube_admin.next_calls import next_call

__all__ = ["COMMAND_LINE", "AdminCore"]

_log = logging.getLogger("pydanube.admin")

COMMAND_LINE: Final = "cli"


class AdminCore:
    """Carries out operations on one cluster.

    Args:
        port: the broker's; may be attached later, and until then every call answers UNAVAILABLE.
        now_ms: the clock that stamps append times, in milliseconds since 1970.
    """

    def __init__(self, port: ClusterPort | None = None, *, now_ms: NowMs = system_now_ms) -> None:
        self._port = port
        self._now_ms = now_ms

    def attach(self, port: ClusterPort) -> None:
        """Give the core the broker it was started for."""
        assert self._port is None, "a core serves one broker"
        self._port = port

    async def call(
        self,
        operation: str,
        arguments_json: bytes | str | Mapping[str, Any],
        *,
        principal: str,
        face: str,
        plan_token: str = "",
    ) -> BaseModel | ClusterError:
        """Carry out one operation and return its result, or the error that stands for it. Never raises.

        Args:
            operation: `topics.list` …
            arguments_json: a JSON object; empty means none.
            principal: who asks; a claim until there is authentication.
            face: where it was asked, `cli`, `mcp`, `jsonrpc`, `tui`.
            plan_token: of the plan to apply.

        Cancelled, a change may have been made or not.
        """
        try:
            return await self._carry_out(operation, arguments_json, face=face, plan_token=plan_token)
        except ClusterError as error:
            return error
        except Exception:
            # The text of an unforeseen exception may hold anything; it belongs in the log, not in the answer.
            _log.exception(
                "operation failed",
                extra={
                    "event": "admin.operation_failed",
                    "operation": operation[:100],
                    "face": face,
                    "principal": principal,
                },
            )
            return Internal(
                f"{operation[:100]} failed by a defect on our side; the broker's log has the details"
            )

    async def _carry_out(
        self, name: str, arguments: bytes | str | Mapping[str, Any], *, face: str, plan_token: str
    ) -> BaseModel:
        call = parse_call(name, arguments)
        operation = call.operation
        if plan_token:
            raise plans_come_later("plan_token")
        if operation.command_line_only and face != COMMAND_LINE:
            raise NotImplementedYet(
                f"{name} is not offered here until plans exist, because nothing could show what it would destroy "
                "and bind it to that. A person can do it on the command line, which shows it and asks",
                field="operation",
                value=name,
                arrives_with="admin",
                next=[self._by_hand(name, call.request), *self._look_first(call.request)],
            )
        if call.plan_only and face != COMMAND_LINE:
            raise plans_come_later("plan_only")
        if self._port is None:
            raise Unavailable("the broker is still starting; try again in a moment", retry_after_ms=500)
        context = Context(port=self._port, now_ms=self._now_ms, face=face)
        if call.plan_only:
            assert operation.preview is not None, "plan_only is an argument of changes alone"
            return await operation.preview(context, call.request)
        return await operation.handler(context, call.request)

    @staticmethod
    def _by_hand(name: str, request: BaseModel) -> dict[str, Any]:
        step = next_call(
            name, request.model_dump(exclude_unset=True), "for a person: shows what would go, then asks"
        )
        return step | {"operation": None, "tool": None}  # following it on this face would only fail again

    @staticmethod
    def _look_first(request: BaseModel) -> list[dict[str, Any]]:
        topic = getattr(request, "topic", None)
        return (
            []
            if topic is None
            else [next_call("topics.describe", {"topic": topic}, "shows what there is to lose")]
        )

    async def serve_call(self, request: bytes) -> bytes:
        """`danube.ops/Call`: an encoded CallRequest in, an encoded CallResponse out. Never raises."""
        try:
            call = CallRequest.FromString(request)
        except DecodeError:
            outcome: BaseModel | ClusterError = InvalidArgument("the request is not a danube.ops.CallRequest")
        else:
            outcome = await self.call(
                call.operation,
                call.arguments,
                principal=call.principal,
                face=call.face,
                plan_token=call.plan_token,
            )
        if isinstance(outcome, ClusterError):
            # Errors may quote what the caller sent; a lone surrogate in it would not encode. Escaped, it is the
            # very escape that JSON has for it.
            return CallResponse(
                error=outcome.to_json().encode("utf-8", "backslashreplace")
            ).SerializeToString()
        return CallResponse(result=outcome.model_dump_json(by_alias=True).encode()).SerializeToString()
