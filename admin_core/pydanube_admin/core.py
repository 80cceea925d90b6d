"""The admin core: the one place where operations are carried out.

It runs beside the broker, behind `danube.ops/Call`. The broker hands it encoded calls and returns its encoded
answers. The command that starts both attaches the broker's port once it exists. Every call leaves its records
in the audit. Changes go through the executor, which plans, records and makes them. Every failure is an answer: a
call never raises, so that neither a bug here nor one in the port takes the broker's server down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast

import anyio
from google.protobuf.message import DecodeError
from pydantic import BaseModel
from pydanube_core.calling_program import CallingProgram, current_program
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import (
    ClusterError,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ReadOnly,
    Unauthenticated,
    Unavailable,
)
from pydanube_core.facts import CreatedTopicFacts, DataChangesTaken
from pydanube_core.generated.danube_ops_pb2 import CallRequest, CallResponse
from pydanube_core.secrets import without_passwords
from pydanube_core.security.identity import OPERATOR, current_identity, relayed_by
from pydanube_core.security.permissions import Principal

from pydanube_admin.arguments import parse_call
from pydanube_admin.cluster_wide_port import ASKED, ClusterWidePort
from pydanube_admin.engine.audit.audit_cut_off import record_let_in
from pydanube_admin.engine.audit.audit_log import AuditLog
from pydanube_admin.engine.audit.audit_records import Entry, data_records, note_refusal, run_recorded
from pydanube_admin.engine.audit.audit_recovered import record_recovery
from pydanube_admin.engine.balancer import BalanceOptions, Balancer
from pydanube_admin.engine.broker_names import with_broker_ids
from pydanube_admin.engine.change_executor import ChangeExecutor
from pydanube_admin.engine.context import AdminOptions, Context, NowMs, system_now_ms
from pydanube_admin.engine.freezes import OURSELVES, check_not_frozen
from pydanube_admin.engine.list_memory import ListMemory
from pydanube_admin.engine.models import Effect, Page
from pydanube_admin.engine.operation import APPLY, Call
from pydanube_admin.engine.permission import acting_for, calling, check_acting, check_permission
from pydanube_admin.engine.stored_records import CALL, new_id
from pydanube_admin.engine.system_topics import check_system_topics
from pydanube_admin.peers import ASK, Peers, Unseen, not_seen, noting, noting_whys
from pydanube_admin.registry import OPERATIONS

_log = logging.getLogger("pydanube.admin")
OK: Final = "OK"  # code of a call that was answered with a result

# Groups whose results quote settings and answers of stores, whose addresses may hold a password.
_ABOUT_SETTINGS = frozenset({"alerts", "brokers", "diagnose", "objects", "operations", "tasks"})

BALANCE = "balance"  # principal and face of the load manager's own calls
MCP = "mcp"  # the face of agents
LOGIN = "login"  # not an operation, recorded in the audit if it failed
GATHERED_S = 1.0  # interval at which changes by data calls are recorded: at most a hundred records a second


class AdminCore:
    """Carries out operations on one cluster.

    Args:
        port: the broker's. It may be attached later, and until then every call answers UNAVAILABLE.
        now_ms: the clock that stamps append times, in milliseconds since 1970.
        options: `[admin]` of the settings.
        balance: `[balance]` of the settings.
    """

    def __init__(
        self,
        port: ClusterPort | None = None,
        *,
        now_ms: NowMs = system_now_ms,
        options: AdminOptions | None = None,
        balance: BalanceOptions | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._lists = ListMemory()
        self._balance = balance or BalanceOptions()
        self._balancer: Balancer
        self._options = options or AdminOptions()
        self._port: ClusterPort | None = None
        #: counts calls of MCP clients: tool (empty: none of that name), program, code, bytes of the answer
        self.on_mcp_call: Callable[[str, str, str, int], None] = lambda *_: None
        self.audit: AuditLog
        self.executor: ChangeExecutor
        self._tidied: anyio.Event | None = None
        self._peers: Peers | None = None
        self._collecting: asyncio.TimerHandle | None = None
        self._calls_ended = False
        if port is not None:
            self.attach(port)

    def attach(self, port: ClusterPort) -> None:
        """Attach the port of the broker that the core was started for."""
        assert self._port is None, "a core serves one broker"
        own = port  # each core records the changes that clients make at its own broker
        if port.several:
            self._peers = Peers(port, ASKED)
            port = cast("ClusterPort", ClusterWidePort(port, self._peers))
        self.audit = AuditLog(port, self._options.audit_reads)
        self.executor = ChangeExecutor(port, self.audit, self._options, self._now_ms, self._parse)
        self.executor.balancer = self._balancer = Balancer(
            port, self._balance, noting_whys, now_ms=self._now_ms
        )
        self._port = port
        self.audit.collect_from(lambda: self._recorded(own.take_data_changes()))
        own.watch_data_changes(self._data_changed)

    def _recorded(self, taken: DataChangesTaken) -> Iterator[Mapping[str, Any]]:
        """Make audit records of clients' changes. The state for an undo is kept under the same call id."""
        named = [(new_id(CALL, self._now_ms()), change) for change in taken.changes]
        for call_id, change in named:
            if change.cursor is not None:
                self.executor.moves.keep_later(call_id, change)
        return data_records(named, taken.left_out, lambda: new_id(CALL, self._now_ms()))

    def _data_changed(self) -> None:
        """Schedule the record of a client's change, together with further changes."""
        self._collecting = asyncio.get_running_loop().call_later(GATHERED_S, self.audit.collect)

    def _parse(
        self, operation: str, arguments: bytes | str | Mapping[str, Any], *, plan_token: str = ""
    ) -> Call:
        """Check a call and its caller's permission, also for calls within a plan or an undo."""
        assert self._port is not None, "attached"
        call = check_permission(self._port, parse_call(operation, arguments, plan_token=plan_token))
        return with_broker_ids(self._port, check_system_topics(call))

    async def end_calls(self) -> None:
        """Stop tasks without a waiting caller, and write the waiting audit records. Then end calls with `Draining`.

        Records of clients' changes are written until `aclose`. A cancellation ends the waiting, and the calls too.
        """
        if self._port is None or self._calls_ended:
            return
        self._calls_ended = True
        try:
            await self.executor.tasks.aclose()
            await self.audit.settled()
        finally:
            self.audit.end_calls()

    async def aclose(self) -> None:
        """End calls, and write the last audit records as far as possible, after the ports and before the journal."""
        try:
            await self.end_calls()
        finally:
            if self._port is not None:
                if self._collecting is not None:
                    self._collecting.cancel()
                await self.audit.aclose()
        if self._peers is not None:
            await self._peers.aclose()

    async def balance(self) -> None:
        """Balance the brokers while this one leads, until cancelled."""
        if self._peers is not None:
            current_identity.set(OPERATOR)  # of this task: the brokers themselves call
            await self._balancer.run(self._rebalance)

    async def _rebalance(self) -> None:
        found = await self.call("cluster.rebalance", {}, principal=BALANCE, face=BALANCE)
        if isinstance(found, ClusterError):
            _log.warning("admin.not_rebalanced", extra={"error": found.message})

    async def begin(self) -> None:
        """Resume tasks that an earlier start left unfinished. Without this, the first call does."""
        await self._tidy_up()
        if self._port is not None:
            self.audit.index.wrote(0)

    async def call(
        self,
        operation: str,
        arguments_json: bytes | str | Mapping[str, Any],
        *,
        principal: str,
        face: str,
        plan_token: str = "",
        one_step: bool = False,
        read_only: bool = False,
        from_outside: bool = False,
        is_part: bool = False,
    ) -> BaseModel | ClusterError:
        """Carry out one operation, and return its result or the error. Never raises.

        Args:
            operation: `topics.list` …
            arguments_json: a JSON object, or empty for none.
            principal: the caller. With authorization on, a name other than the credential's needs the
                permission `act_for`.
            face: where the call was made: `cli`, `mcp`, `jsonrpc`, `tui`.
            plan_token: of the plan to apply. It may be in the arguments instead.
            one_step: for a face that cannot show a plan (`danube_admin` over gRPC): a destructive change is
                planned, recorded and made in one call, unless `admin.compat_destructive` is off.
            read_only: refuse everything but reads, for a face that was started with --read-only.
            from_outside: refuse the faces of the broker's own calls, which no freeze covers.
            is_part: another broker makes the call as a part of its own, and records that.

        After a cancellation, a change may have been made or not.
        """
        try:
            with acting_for(self._port, principal):
                result, unseen = await noting(
                    lambda: self._carry_out(
                        operation,
                        arguments_json,
                        principal=principal,
                        face=face,
                        plan_token=plan_token,
                        one_step=one_step,
                        read_only=read_only,
                        from_outside=from_outside,
                        is_part=is_part,
                    )
                )
            return _with_unseen(result, unseen)
        except ClusterError as error:
            return error
        except Exception:
            # The text of an unforeseen exception may hold anything. It belongs in the log, not in the answer.
            facts = {"operation": operation[:100], "face": face, "principal": principal}
            _log.exception("admin.operation_failed", extra=facts)
            return Internal(
                f"{operation[:100]} failed by a defect on our side. The broker's log has the details"
            )

    async def _carry_out(
        self,
        name: str,
        arguments: bytes | str | Mapping[str, Any],
        *,
        principal: str,
        face: str,
        plan_token: str,
        one_step: bool,
        read_only: bool,
        from_outside: bool,
        is_part: bool,
    ) -> BaseModel:
        if self._port is None:
            parse_call(name, arguments)
            raise Unavailable("the broker is still starting: try again in a moment", retry_after_ms=500)
        self._port.quotas.request(calling())
        await self._tidy_up()
        proven = _known_principal(self._port)
        context = Context(
            port=self._port,
            now_ms=self._now_ms,
            face=face,
            principal=principal if proven is None else proven.name,
            principal_type="" if proven is None else proven.type,
            call_id=new_id(CALL, self._now_ms()),
            executor=self.executor,
            audit=self.audit,
            lists=self._lists,
            is_part=is_part,
        )
        self.audit.check_room()
        try:
            check_acting(self._port)
            if from_outside and face in OURSELVES:
                raise InvalidArgument(
                    f"face {face!r} is the broker's own; name the program's, such as cli or mcp",
                    field="face",
                    value=face,
                )
            known = OPERATIONS.get(name)
            if read_only and known is not None and known.effect is not Effect.READ:
                raise ReadOnly(
                    f"{name} is no read, and only reads are taken here: the address is /mcp/read, or the server was started "
                    "with --read-only, or with ,read_only behind this cluster's address. Connect to /mcp, start it without, "
                    "or use the command line",
                    field="operation",
                    value=name,
                )
            call = self._parse(name, arguments, plan_token=plan_token)
            _check_named(call, face)
            if call.operation.effect is not Effect.READ:
                shown = calling()
                await check_not_frozen(
                    self._port,
                    face=face,
                    principals={context.principal}
                    if shown is None
                    else {context.principal, shown.principal.name},
                    operation=name,
                    now_ms=self._now_ms(),
                )
            context = replace(context, why=call.why)
        except ClusterError as error:
            entry = Entry.of(context, name, _as_far_as_known(arguments))
            note_refusal(self.audit, entry, *entry.refused(error))
            raise
        if call.detach:
            return await self.executor.tasks.detached(
                context, call.operation.name, lambda own: self._dispatch(own, call, one_step=one_step)
            )
        return await self._dispatch(context, call, one_step=one_step)

    async def _dispatch(self, context: Context, call: Call, *, one_step: bool) -> BaseModel:
        """Give a change to the executor, which plans and records it. Run and record anything else."""
        if call.operation.planned:
            return await self.executor.change(context, call, one_step=one_step)
        if call.operation.name == APPLY:  # recorded as the change that it makes
            return await call.operation.handler(context, call.request)
        if call.operation.effect is Effect.READ:
            return await run_recorded(context, call)
        async with self.executor.guards.held(context.call_id, context.call_id):  # marks the call as under way
            return await run_recorded(context, call)

    def note_failed_login(self, address: str, failures: int) -> None:
        """Record in the audit that wrong credentials came from an address. The broker selects such logins."""
        if self._port is None:
            return
        now_ms = self._now_ms()
        entry = Entry(
            call_id=new_id(CALL, now_ms),
            principal="",
            face="",
            operation=LOGIN,
            arguments={"address": address, "failures": failures},
            time_ms=now_ms,
        )
        with suppress(ClusterError):
            self.audit.check_room()
            self.audit.note(*entry.refused(Unauthenticated("wrong credentials")))

    async def _tidy_up(self) -> None:
        """Before the first call: record changes that an earlier start left half-made as such."""
        if self._tidied is not None:
            if not self._tidied.is_set():
                await self._tidied.wait()
            return
        self._tidied = anyio.Event()
        before = current_identity.set(OPERATOR)  # resumed work was permitted when it began
        try:
            assert self._port is not None, "attached"
            try:
                await record_recovery(self._port, self.audit)
            except ClusterError as error:
                _log.warning("admin.recovery_not_recorded", extra={"error": str(error)})
            await self.executor.tidy_up()
            await record_let_in(self._port, self.audit)
        except ClusterError as error:
            _log.warning("admin.not_tidied_up", extra={"error": str(error)})
        finally:
            current_identity.reset(before)
            self._tidied.set()

    async def serve_call(self, request: bytes) -> bytes:
        """`danube.ops/Call`: an encoded CallRequest in, an encoded CallResponse out. Never raises."""
        try:
            call = CallRequest.FromString(request)
        except DecodeError:
            refused = InvalidArgument("the request is not a danube.ops.CallRequest")
            return CallResponse(error=refused.to_json().encode()).SerializeToString()
        answer, code = await self._answer(call)
        if call.face == MCP:
            known = OPERATIONS.get(call.operation)
            named = CallingProgram(name=call.client_name).cleaned()
            self.on_mcp_call("" if known is None else known.tool, named.name, code, len(answer))
        return answer

    async def _answer(self, call: CallRequest) -> tuple[bytes, str]:
        """Return the encoded answer, and its code: `OK`, or that of the error."""
        try:
            # The call refuses the broker's own face, and records that.
            if call.face not in OURSELVES and (elsewhere := await self.by_another_broker(call)) is not None:
                return CallResponse(result=elsewhere).SerializeToString(), OK
        except ClusterError as refused:
            return CallResponse(error=refused.to_json().encode()).SerializeToString(), refused.code
        else:
            named = CallingProgram(name=call.client_name, version=call.client_version, by=call.by)
            before = current_program.set(named.cleaned())
            try:
                outcome = await self.call(
                    call.operation,
                    call.arguments,
                    principal=call.principal,
                    face=call.face,
                    plan_token=call.plan_token,
                    read_only=call.read_only,
                    from_outside=True,
                    is_part=bool(relayed_by.get()) and call.HasField("within"),
                )
            finally:
                current_program.reset(before)
        if isinstance(outcome, ClusterError):
            # Errors may quote the caller's text, in which a lone surrogate would not encode. backslashreplace
            # writes it as the escape that JSON has for it.
            error = without_passwords(outcome.to_json())
            encoded = error.encode("utf-8", "backslashreplace")
            return CallResponse(error=encoded).SerializeToString(), outcome.code
        result = outcome.model_dump_json(by_alias=True)
        if call.operation.partition(".")[0] in _ABOUT_SETTINGS:
            result = without_passwords(result)
        return CallResponse(result=result.encode()).SerializeToString(), OK

    async def created_topic(self, topic: str) -> CreatedTopicFacts:
        """Return the facts of a topic that this broker has in its memory, without its owner. Raises `TopicNotFound`."""
        assert self._port is not None, "attached"
        return await self._port.created_topic(topic)

    async def by_another_broker(self, call: CallRequest) -> bytes | None:
        """Forward a call to the broker that answers it, or answer the query of another broker.

        Returns None if this broker carries the call out itself.
        """
        if self._peers is None:
            return None
        if relayed_by.get():
            if not call.operation.startswith(ASK):
                return None
            self._check_whole(call)
            return await self._peers.answer(call.operation.removeprefix(ASK), call.arguments)
        return None if self._is_refused(call) else await self._peers.forwarded(call)

    def _is_refused(self, call: CallRequest) -> bool:
        """Return whether the caller may not make this call. It is then not forwarded, but refused and recorded here."""
        if self._port is None or self._port.locks is None:
            return False
        try:
            with acting_for(self._port, call.principal):
                check_acting(self._port)
                self._parse(call.operation, call.arguments)
        except ClusterError:
            return True
        return False

    def _check_whole(self, call: CallRequest) -> None:
        """Check that the caller may call the operation that another broker's query is part of. Raise if not."""
        if self._port is None or self._port.locks is None:
            return
        check_acting(self._port)
        identity = current_identity.get()
        if call.HasField("within"):
            self._parse(call.within.operation, call.within.arguments)
        elif self._port.locks.required and (identity is None or not identity.everything):
            raise PermissionDenied("the forwarded call names no caller", field="within")


def _with_unseen(result: BaseModel, unseen: Mapping[str, Unseen]) -> BaseModel:
    """Add to a list the brokers that did not answer."""
    if not unseen or not isinstance(result, Page):
        return result
    return result.model_copy(update={"not_seen": not_seen(unseen)})


def _known_principal(port: ClusterPort) -> Principal | None:
    """Return the authenticated caller if authorization is on. None: trust the name in the call."""
    identity = current_identity.get()
    if port.locks is None or identity is None or identity.method == "none":
        return None
    return identity.principal


def _check_named(call: Call, face: str) -> None:
    """Check that a change over MCP has the name of a program, for its record. Raises `InvalidArgument`."""
    program = current_program.get()
    if face == MCP and call.operation.effect is not Effect.READ and program is not None and not program.name:
        raise InvalidArgument(
            f"{call.operation.name} is recorded with the program that calls, and this one has no name: it must send "
            "clientInfo with a name when it connects",
            field="clientInfo",
        )


def _as_far_as_known(arguments: bytes | str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return refused arguments, as far as they can be recorded in the audit."""
    if isinstance(arguments, Mapping):
        return arguments
    text = arguments.decode("utf-8", "replace") if isinstance(arguments, bytes) else arguments
    return {"refused": text[:512]}
