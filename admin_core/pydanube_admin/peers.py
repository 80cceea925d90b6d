"""The other brokers, if any: a call about one topic goes to its owner, a list queries all brokers involved.

Every broker accepts every call. A call that belongs to another broker (`engine.places`) is forwarded
unchanged, carried out and recorded there. This broker carries out lists, and calls about a topic with several
owners (`cluster_wide_port`), and queries the owners in parallel under one deadline. Brokers that did not
answer are named under `not_seen` of a list.

Both kinds travel with the caller's identity under a seal that only a broker of the cluster can make
(`danube.relay.Administration/Call`), and are not forwarded again. With authorization on, the receiver checks
the caller as well, by its own copy of the grants: a query between brokers names the operation that it is a
part of, and the caller must be permitted to make that.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from heapq import nsmallest
from typing import Any, Final, TypeVar, get_type_hints

import anyio
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydanube.wire.endpoint import Tls
from pydanube.wire.http2_transport import Http2Transport
from pydanube.wire.ops_channel import OpsChannel
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, InvalidArgument, PermissionDenied, Unavailable
from pydanube_core.facts import BrokerAddress
from pydanube_core.ops_call import CARRIED_CALL, UNCERTAIN, call_request, unknown_outcome
from pydanube_core.port_marks import is_read

from pydanube_admin.engine.models import NotSeen
from pydanube_admin.engine.operation import DECLARED
from pydanube_admin.engine.permission import call_under_way
from pydanube_admin.engine.places import Places
from pydanube_admin.gone_owners import GONE, GoneOwner

T = TypeVar("T")
_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=True)


def named(method: str, arguments: tuple[Any, ...], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of the port, by name."""
    bound = inspect.signature(getattr(ClusterPort, method)).bind(None, *arguments, **more)
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def arguments_to_json(method: str, arguments: Mapping[str, Any]) -> bytes:
    """Encode the arguments of a method of the port, for `arguments_of`."""
    return _arguments(method)(**arguments).model_dump_json(exclude_unset=True).encode()


def arguments_of(method: str, text: bytes) -> dict[str, Any]:
    """Decode the arguments of a method of the port. Raises `InvalidArgument` for another version's."""
    try:
        given = _arguments(method).model_validate_json(text or b"{}")
    except ValidationError as error:
        raise InvalidArgument(
            f"another broker calls {method} with a request that this version lacks: {error.errors()[0]['msg']}",
            field="arguments",
        ) from error
    return {name: getattr(given, name) for name in given.model_fields_set}


def answer_to_json(method: str, answer: Any) -> bytes:
    """Encode the return value of a method of the port, for `answer_of`."""
    return _answer(method).dump_json((answer,))


def answer_of(method: str, text: bytes) -> Any:
    """Decode the return value of a method of another broker's port."""
    return _answer(method).validate_json(text)[0]


@cache
def _arguments(method: str) -> type[BaseModel]:
    function = getattr(ClusterPort, method)
    hints = get_type_hints(function)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }
    return create_model(method, __config__=_BYTES, **fields)


@cache
def _answer(method: str) -> TypeAdapter[tuple[Any]]:
    answer = get_type_hints(getattr(ClusterPort, method))["return"]
    alone: Any = tuple.__class_getitem__(answer)  # pydantic takes no configuration for a bare dataclass
    return TypeAdapter(alone, config=_BYTES)


ASK: Final = "peers."  # prefix of the name of a method that is called at another broker
DEADLINE_S: Final = 5.0
FORWARD_S: Final = 600.0  # a replay or an export may take minutes
# A broker that sends nothing for so long, and for as long again after a PING, hangs: an assistant waits for that once
KEEPALIVE_S: Final = 1.0
CONNECT_S: Final = 2 * KEEPALIVE_S  # the same for a broker that accepts a connection and sends nothing
# The same for a call that changes something: one that is given up may have been carried out
CHANGES_KEEPALIVE_S: Final = 2.0
# Of a broker that hangs: how long its next connection may take, doubled up to `CONNECT_S` with each that fails, and how
# long calls fail without one
AGAIN_CONNECT_S: Final = 0.5
AGAIN_S: Final = 1.0
TOPICS_NAMED: Final = 100  # topics of a broker that a list names
SILENT_S: Final = 10.0  # how long a broker that did not answer is skipped: a task may make calls for hours

_not_seen: ContextVar[dict[str, Unseen] | None] = ContextVar("not_seen", default=None)
# id of a broker → when it last failed to answer in time
_silent: ContextVar[dict[str, float] | None] = ContextVar("silent", default=None)


class Peers:
    """Calls other brokers at the addresses that they registered. Single user: the loop.

    Args:
        allowed: methods of this broker's port that others may call.
    """

    def __init__(self, port: ClusterPort, allowed: Container[str]) -> None:
        self._port = port
        self._places = Places(port)
        self._allowed = allowed
        self._lines: dict[tuple[str, bool], _Line] = {}  # by address, and whether its calls only read

    async def aclose(self) -> None:
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            await line.channel.aclose()

    async def forwarded(self, call: Any) -> bytes | None:
        """Return the result of a `CallRequest` that another broker carries out, or None if this one does.

        Raises the other broker's error.
        """
        found = await self._places.elsewhere(call.operation, call.arguments)
        if found is None:
            return None
        sent = type(call).FromString(call.SerializeToString())
        # A client may set it, and its receiver would leave the record to this broker
        sent.ClearField("within")
        broker = f"broker {found.broker.broker_id}"
        why = f"{found.because} is at {broker}, which does not answer"
        if not found.because:  # the call is about the broker itself
            why = f"{broker} does not answer"
        return await self._carried(found.broker, sent, why, timeout_s=FORWARD_S)

    async def _carried(self, broker: BrokerAddress, call: Any, why: str, *, timeout_s: float) -> bytes:
        """Return another broker's answer to a sealed call. `why` begins the error if it does not answer."""
        if not broker.admin_url:
            raise Unavailable(
                f"broker {broker.broker_id} has not been seen since this one started",
                broker_id=broker.broker_id,
                retry_after_ms=1000,
            )
        request, reads = call.SerializeToString(), _reads(call.operation)
        line, sent = self._line(broker.admin_url, reads=reads), False
        began_s = anyio.current_time()
        if line.hangs_until_s > began_s:
            raise Unavailable(
                f"{why} at {broker.admin_url} (tried less than a second ago)",
                broker_id=broker.broker_id,
                retry_after_ms=1000,
            )

        async def carried(sealed: bytes) -> bytes:
            nonlocal sent
            sent = False
            await line.connect()
            sent = True
            try:
                answer = await line.channel.carry(
                    CARRIED_CALL, sealed, operation=call.operation, timeout_s=timeout_s, reads=reads
                )
            except ClusterError as error:
                if error.details.get("url") != broker.admin_url and "tls" not in error.details:
                    line.answered()  # with an error
                raise
            line.answered()
            return answer

        sealed = self._port.sealed(broker.broker_id, request)
        try:
            try:
                return await carried(sealed)
            except PermissionDenied as error:
                if not self._port.clock_differs(broker.broker_id, sealed, error.details):
                    raise
            return await carried(self._port.sealed(broker.broker_id, request))
        except Unavailable as error:
            if "tls" in error.details and self._lines.get((broker.admin_url, reads)) is line:
                del self._lines[broker.admin_url, reads]  # the next call reads the certificates again
                await line.channel.aclose()
            elif sent and error.details.get("url") != broker.admin_url:  # the error is the other broker's
                raise
            line.failed(anyio.current_time() - began_s)
            tls = error.details.get("tls")
            message = f"{why} at {broker.admin_url}{'' if tls is None else f': {error.message}'}"
            if sent and not reads:
                whole = call_under_way.get()  # of which a call of the port is a part
                facts = unknown_outcome(call.operation if whole is None else whole.operation.name)
                raise Unavailable(f"{message}. {UNCERTAIN}", broker_id=broker.broker_id, **facts) from error
            raise Unavailable(message, broker_id=broker.broker_id, retry_after_ms=1000) from error

    async def ask(
        self,
        broker: BrokerAddress,
        method: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float = DEADLINE_S,
    ) -> Any:
        """Call a method of another broker's port, and return its answer. Raises any `ClusterError`."""
        request = call_request(ASK + method, {}, principal="", face="")
        request.arguments = arguments_to_json(method, arguments)
        if self._port.locks is not None and (part_of := call_under_way.get()) is not None:
            whole = call_request(part_of.operation.name, part_of.arguments, principal="", face="")
            request.within.CopyFrom(whole)
        why = f"broker {broker.broker_id} does not answer"
        answer = await self._carried(broker, request, why, timeout_s=timeout_s)
        try:
            return answer_of(method, answer)
        except ValidationError as error:
            raise unreadable(broker.broker_id, method) from error

    async def call(self, broker: BrokerAddress, call: Any, *, timeout_s: float) -> dict[str, Any]:
        """Return the result of a `CallRequest` that another broker carries out. Raises any `ClusterError`.

        The result is a JSON object. Its fields are not checked.
        """
        why = f"broker {broker.broker_id} does not answer"
        answer = await self._carried(broker, call, why, timeout_s=timeout_s)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise unreadable(broker.broker_id, call.operation) from error
        if not isinstance(found, dict):
            raise unreadable(broker.broker_id, call.operation)
        return found

    async def answer(self, method: str, arguments: bytes) -> bytes:
        """Answer another broker's call of a method of the port, for an authorized caller.

        Raises `InvalidArgument`.
        """
        if method not in self._allowed:
            raise InvalidArgument(f"{method[:100]!r} is not sent to other brokers", field="operation")
        given = arguments_of(method, arguments)
        return answer_to_json(method, await getattr(self._port, method)(**given))

    def _line(self, url: str, *, reads: bool) -> _Line:
        line = self._lines.get((url, reads))
        if line is None:
            shown = self._port.peer_certificates
            tls = Tls(ca=shown.ca, cert=shown.cert, key=shown.key) if url.startswith("https") else None
            keepalive_s = KEEPALIVE_S if reads else CHANGES_KEEPALIVE_S
            line = self._lines[url, reads] = _Line(Http2Transport(url, tls=tls, keepalive_s=keepalive_s))
        return line


def _reads(operation: str) -> bool:
    """Return whether a call between brokers changes nothing."""
    if operation.startswith(ASK):
        return is_read(ClusterPort, operation.removeprefix(ASK))
    known = DECLARED.get(operation)
    return known is not None and known.reads


class _Line:
    """The connection to another broker. While that hangs, a call fails immediately, and one a second looks for it.

    So the silence of a broker costs one call `CONNECT_S`, the next `AGAIN_CONNECT_S`, and one a second more, up to `CONNECT_S`:
    a broker that is slow is reached again.
    """

    def __init__(self, transport: Http2Transport) -> None:
        self.channel = OpsChannel(transport.url, transport=transport)
        self.hangs_until_s = 0.0  # by the loop's clock
        self._transport = transport
        self._again_s = AGAIN_CONNECT_S  # how long a connection may take after the next failure
        self.answered()

    async def connect(self) -> None:
        """Connect, if no connection is open. Raises `Unavailable`, and then no call has been sent."""
        await self._transport.link()

    def answered(self) -> None:
        self.hangs_until_s, self._transport.connect_s, self._again_s = 0.0, CONNECT_S, AGAIN_CONNECT_S

    def failed(self, waited_s: float) -> None:
        """Note a failure. One that came at once, as of a broker that is stopped, costs nothing to repeat."""
        if waited_s >= AGAIN_CONNECT_S / 2:
            self.hangs_until_s = anyio.current_time() + AGAIN_S
            self._transport.connect_s = self._again_s
            self._again_s = min(CONNECT_S, 2 * self._again_s)


def unreadable(broker_id: str, operation: str) -> Unavailable:
    """Return the error for an answer of another broker that is none: it is damaged, or runs another version."""
    return Unavailable(
        f"broker {broker_id} answered {operation} with something that this broker cannot read: compare their versions",
        broker_id=broker_id,
        retry_after_ms=1000,
    )


@dataclass(slots=True, kw_only=True)
class Unseen:
    """A broker that did not answer.

    Attributes:
        gone: set if it is not registered.
        topics: topics that a list lacks, or has only in part, because of it.
    """

    why: str
    gone: GoneOwner | None = None
    topics: set[str] = field(default_factory=set)

    def item(self, broker_id: str) -> NotSeen:
        """Return it as results name it."""
        gone = self.gone
        return NotSeen(
            broker_id=broker_id,
            why=self.why,
            state=None if gone is None else GONE,
            **({} if gone is None else gone.times),
            topics=nsmallest(TOPICS_NAMED, self.topics) or None,
            topic_count=len(self.topics) or None,
        )


def unseen() -> Mapping[str, Unseen]:
    """Return the brokers that did not answer in the work of `noting`, by id."""
    return _not_seen.get() or {}


def unseen_whys() -> dict[str, str]:
    """Return why they did not answer, by id."""
    return {broker_id: each.why for broker_id, each in unseen().items()}


def not_seen(brokers: Mapping[str, Unseen]) -> list[NotSeen] | None:
    """Return these brokers as results name them, or None if all answered."""
    return [each.item(broker_id) for broker_id, each in sorted(brokers.items())] or None


def note_unseen(broker_id: str, why: str, *, gone: GoneOwner | None = None) -> None:
    """Note that this broker did not answer. A broker that is gone keeps that reason."""
    noted = _not_seen.get()
    if noted is None:
        return
    before = noted.get(broker_id)
    if before is None:
        noted[broker_id] = Unseen(why=why, gone=gone)
    elif before.gone is None:
        before.why, before.gone = why, gone


def note_topics(broker_id: str, topics: Iterable[str]) -> None:
    """Note topics that a list lacks because this broker did not answer."""
    if (noted := unseen().get(broker_id)) is not None:
        noted.topics.update(topics)


def is_silent(broker_id: str) -> bool:
    """Return whether a broker has just failed to answer in this call.

    A call tries it once, so that a face, which waits for ten seconds, gets the other brokers' answers.
    """
    since_s = (_silent.get() or {}).get(broker_id)
    return since_s is not None and anyio.current_time() - since_s < SILENT_S


def note_silent(broker_id: str, why: str) -> None:
    """Note that a broker did not answer within its time."""
    note_unseen(broker_id, why)
    silent = _silent.get()
    if silent is not None:
        silent[broker_id] = anyio.current_time()


async def noting(work: Callable[[], Awaitable[Any]]) -> tuple[Any, dict[str, Unseen]]:
    """Run `work`. Return its result, and the brokers that did not answer in it, by id."""
    noted: dict[str, Unseen] = {}
    before, silent_before = _not_seen.set(noted), _silent.set({})
    try:
        return await work(), noted
    finally:
        _not_seen.reset(before)
        _silent.reset(silent_before)


async def noting_whys(work: Callable[[], Awaitable[T]]) -> tuple[T, dict[str, str]]:
    """Run `work`. Return its result, and why brokers did not answer in it, by id."""
    result, brokers = await noting(work)
    return result, {broker_id: each.why for broker_id, each in brokers.items()}
