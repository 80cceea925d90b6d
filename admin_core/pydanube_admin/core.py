"""The admin core: the one place where operations are carried out.

It runs beside the broker, behind `danube.ops/Call`. The broker hands it bytes and passes on the bytes it answers;
the command that starts both gives it the broker's port once there is one. Every failure is an answer: a call never
raises, so that neither a bug here nor one in the port takes the broker's server down.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError
from pydantic import BaseModel
from pydanube_core.errors import ClusterError, Internal, InvalidArgument, NotImplementedYet, Unavailable
from pydanube_core.facts import ClusterPort
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse

from pydanube_admin.arguments import parse_call, plans_come_later
from pydanube_admin.brokers import broker_status
from pydanube_admin.context import Context, NowMs, system_now_ms
from pydanube_admin.objects import (
    collect_objects,
    compact_objects,
    describe_journal,
    export_objects,
    list_objects,
    preview_collect,
    preview_compact,
    preview_export,
    preview_replay,
    replay_topic,
    verify_objects,
)
from pydanube_admin.operation import Effect
from pydanube_admin.policies import (
    create_namespace,
    get_namespace_policies,
    get_topic_policies,
    list_namespaces,
    preview_create_namespace,
    preview_set_namespace_policies,
    preview_set_topic_policies,
    set_namespace_policies,
    set_topic_policies,
)
from pydanube_admin.registry import OPERATIONS, next_call
from pydanube_admin.schemas import (
    check_schema,
    configure_topic_schema,
    delete_version,
    get_compatibility,
    get_schema,
    get_schema_by_id,
    get_topic_schema,
    list_subjects,
    list_versions,
    preview_configure,
    preview_delete_version,
    preview_register,
    preview_set_compatibility,
    preview_set_policy,
    register_schema,
    set_compatibility,
    set_validation_policy,
)
from pydanube_admin.subscription_changes import (
    create_subscription,
    delete_subscription,
    get_failure_policy,
    preview_create_subscription,
    preview_delete_subscription,
    preview_purge,
    preview_seek,
    preview_set_failure_policy,
    preview_skip,
    purge_subscription,
    seek_subscription,
    set_failure_policy,
    skip_messages,
)
from pydanube_admin.subscriptions import consumer_lag, list_subscriptions
from pydanube_admin.topics import (
    create_topic,
    delete_topic,
    describe_topic,
    list_topics,
    preview_create,
    preview_delete,
)

__all__ = ["COMMAND_LINE", "AdminCore"]

_log = logging.getLogger("pydanube.admin")

COMMAND_LINE: Final = "cli"

Handler = Callable[[Context, Any], Awaitable[BaseModel]]

_HANDLERS: Final[Mapping[str, Handler]] = {
    "topics.list": list_topics,
    "topics.describe": describe_topic,
    "topics.create": create_topic,
    "topics.delete": delete_topic,
    "topics.get_policies": get_topic_policies,
    "topics.set_policies": set_topic_policies,
    "namespaces.list": list_namespaces,
    "namespaces.create": create_namespace,
    "namespaces.get_policies": get_namespace_policies,
    "namespaces.set_policies": set_namespace_policies,
    "subscriptions.list": list_subscriptions,
    "subscriptions.lag": consumer_lag,
    "subscriptions.create": create_subscription,
    "subscriptions.seek": seek_subscription,
    "subscriptions.skip": skip_messages,
    "subscriptions.purge": purge_subscription,
    "subscriptions.delete": delete_subscription,
    "subscriptions.get_failure_policy": get_failure_policy,
    "subscriptions.set_failure_policy": set_failure_policy,
    "objects.list": list_objects,
    "objects.verify": verify_objects,
    "objects.compact": compact_objects,
    "objects.collect": collect_objects,
    "objects.export": export_objects,
    "topics.replay": replay_topic,
    "journal.describe": describe_journal,
    "schemas.list": list_subjects,
    "schemas.get": get_schema,
    "schemas.get_by_id": get_schema_by_id,
    "schemas.versions": list_versions,
    "schemas.check": check_schema,
    "schemas.get_compatibility": get_compatibility,
    "schemas.register": register_schema,
    "schemas.set_compatibility": set_compatibility,
    "schemas.delete_version": delete_version,
    "topics.configure_schema": configure_topic_schema,
    "topics.set_validation_policy": set_validation_policy,
    "topics.get_schema_config": get_topic_schema,
    "brokers.status": broker_status,
}
_PREVIEWS: Final[Mapping[str, Handler]] = {
    "topics.create": preview_create,
    "topics.delete": preview_delete,
    "topics.set_policies": preview_set_topic_policies,
    "namespaces.create": preview_create_namespace,
    "namespaces.set_policies": preview_set_namespace_policies,
    "subscriptions.create": preview_create_subscription,
    "subscriptions.seek": preview_seek,
    "subscriptions.skip": preview_skip,
    "subscriptions.purge": preview_purge,
    "subscriptions.delete": preview_delete_subscription,
    "subscriptions.set_failure_policy": preview_set_failure_policy,
    "objects.compact": preview_compact,
    "objects.collect": preview_collect,
    "objects.export": preview_export,
    "topics.replay": preview_replay,
    "schemas.register": preview_register,
    "schemas.set_compatibility": preview_set_compatibility,
    "schemas.delete_version": preview_delete_version,
    "topics.configure_schema": preview_configure,
    "topics.set_validation_policy": preview_set_policy,
}
assert set(_HANDLERS) == set(OPERATIONS), (
    "an operation is declared but not carried out, or the other way round"
)
assert set(_PREVIEWS) == {name for name, each in OPERATIONS.items() if each.effect is not Effect.READ}, (
    "a change cannot be previewed"
)


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
        handler = _PREVIEWS[name] if call.plan_only else _HANDLERS[name]
        return await handler(context, call.request)

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
