"""JSON-RPC 2.0: bytes in, bytes out, over any transport.

Operations are methods, arguments are named. The standard's codes are for the cases that the standard defines,
decided here from the registry: not JSON (-32700), not a request (-32600), no such method (-32601), parameters
that do not fit the method's schema (-32602). All errors of operations are -32000. `error.data` is our error
object in either case. The calls of a batch are made one after another, in order, so that a later one sees the
effects of earlier ones.

Source: the JSON-RPC 2.0 specification (2013-01-04). As it defines, an id of null counts as an id. A call is a
notification only if the member is absent.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NoReturn, Protocol

import anyio.lowlevel
from pydanube_core.calling_program import package_version
from pydanube_core.errors import ClusterError, Internal, InvalidArgument, LimitReached, NotImplementedYet
from pydanube_core.spelling import shown

from pydanube_admin.arguments import parse_call
from pydanube_admin.engine.operation import Operation
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.value_limit import check_values

OPENRPC_VERSION: Final = "1.3.2"

ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "retryable": {"type": "boolean"},
        "retry_after_ms": {"type": "integer"},
        "details": {"type": "object"},
        "next": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["code", "message", "retryable", "details", "next"],
}


@cache
def openrpc_document() -> dict[str, Any]:
    """The document, which the caller must not change."""
    return {
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "pydanube",
            "version": package_version(),
            "description": "Administer a pydanube cluster. Calls by HTTP are POST /rpc, and their status is always 200. "
            "Errors of operations have code -32000 and our error object in data.",
        },
        "methods": [_method(operation) for operation in OPERATIONS.values()],
        "components": {"schemas": {"ClusterError": ERROR_SCHEMA}},
    }


def _method(operation: Operation) -> dict[str, Any]:
    schema = operation.input_schema
    required = set(schema.get("required", ()))
    return {
        "name": operation.name,
        "summary": operation.summary,
        "tags": [{"name": operation.group}],
        "paramStructure": "by-name",
        "params": [
            {"name": name, "required": name in required, "schema": field}
            for name, field in schema["properties"].items()
        ],
        "result": {"name": "result", "schema": operation.output_schema},
        "errors": [{"code": -32000, "message": "an error of the operation: data.code names it"}],
        "examples": [
            {
                "name": example.note,
                "params": [{"name": name, "value": value} for name, value in example.arguments.items()],
            }
            for example in operation.examples
        ],
        "x-effect": operation.effect.value,
        "x-permission": operation.permission,
        "x-tool": operation.tool,
        "x-command": " ".join(("danube", *operation.words)),
    }


_log = logging.getLogger("pydanube.admin")

MAX_BATCH_CALLS: Final = 100
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024  # of the answers, after which no further call is made
DISCOVER: Final = "rpc.discover"
_OWN: Final = "rpc."
_POSITIONAL: Final = "positional"  # no argument of any operation

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
CLUSTER_ERROR: Final = -32000


class JsonCaller(Protocol):
    """How an operation is called. Implemented by `OpsClient`."""

    async def call_json(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, principal: str | None = None
    ) -> bytes: ...


class _Refused(Exception):
    """A call that was not made, as the standard's error."""

    def __init__(self, code: int, error: ClusterError) -> None:
        super().__init__(error.message)
        self.code = code
        self.error = error


class JsonRpc:
    """Answers JSON-RPC messages by calling operations. Has no state: one serves any number of connections."""

    def __init__(self, caller: JsonCaller) -> None:
        self._caller = caller

    async def handle(self, message: bytes, *, principal: str | None = None) -> bytes | None:
        """Answer one message, which may be a batch. None: it had only notifications.

        Never raises for the content of a message. After a cancellation, changes may have been made or not.
        """
        try:
            check_values(message, "message")
            request = json.loads(message, parse_constant=_refuse_constant, parse_float=_finite)
        except InvalidArgument as error:
            return _encode(_error(None, INVALID_REQUEST, error))
        except (ValueError, RecursionError):  # ValueError: also bad UTF-8 and absurdly long numbers
            return _encode(
                _error(None, PARSE_ERROR, InvalidArgument("the message is not JSON that can be read"))
            )
        if not isinstance(request, list):
            answer = await self._answer(request, principal)
            return answer
        if not 1 <= len(request) <= MAX_BATCH_CALLS:
            fault = InvalidArgument(
                f"a batch holds 1 to {MAX_BATCH_CALLS} calls, not {len(request)}. Split it",
                field="batch",
                value=len(request),
            )
            return _encode(_error(None, INVALID_REQUEST, fault))
        return await self._batch(request, principal)

    async def _batch(self, request: list[Any], principal: str | None) -> bytes | None:
        """Answer the calls of a batch one after another, yielding to the loop between them.

        Each answer is encoded on its own.
        """
        answers: list[bytes] = []
        size = 0
        for item in request:
            if size < MAX_BATCH_BYTES:
                answer = await self._answer(item, principal)
            else:
                answer = _not_made(item, size)
            if answer is not None:
                answers.append(answer)
                size += len(answers[-1])
            await anyio.lowlevel.checkpoint()
        return b"[" + b",".join(answers) + b"]" if answers else None

    async def _answer(self, request: Any, principal: str | None) -> bytes | None:
        """The response to one request, or None for a notification."""
        fault = _malformed(request)
        if fault is not None:
            return _encode(_error(_usable_id(request), INVALID_REQUEST, fault))
        wanted = "id" in request
        try:
            result = await self._call(request["method"], _params(request), principal)
        except _Refused as refused:
            return _encode(_error(request["id"], refused.code, refused.error)) if wanted else None
        except ClusterError as error:
            return _encode(_error(request["id"], CLUSTER_ERROR, error)) if wanted else None
        except Exception:
            _log.exception("json-rpc call failed", extra={"event": "jsonrpc.call_failed"})
            defect = Internal("the call failed by a defect on our side. The log has the details")
            return _encode(_error(request["id"], CLUSTER_ERROR, defect)) if wanted else None
        if not wanted:
            return None
        # The result is inserted as the admin core encoded it.
        return b'{"jsonrpc":"2.0","result":%b,"id":%b}' % (result, _encode(request["id"]))

    async def _call(self, method: str, params: Any, principal: str | None) -> bytes:
        if method.startswith(_OWN):
            if method != DISCOVER:
                raise _Refused(METHOD_NOT_FOUND, _no_method(method))
            if not isinstance(params, dict):
                raise _Refused(INVALID_PARAMS, _positional(method, params))
            return _encode(openrpc_document())
        named = isinstance(params, dict)
        try:
            # Bad calls are passed on as well, because the admin core refuses and records them.
            given = params if named else {_POSITIONAL: params}
            return await self._caller.call_json(method, given, principal=principal)
        except ClusterError as error:
            if method not in OPERATIONS:
                raise _Refused(METHOD_NOT_FOUND, _no_method(method)) from error
            if not named:
                raise _Refused(INVALID_PARAMS, _positional(method, params)) from error
            if (fault := _fault_of(method, params)) is not None:
                raise _Refused(INVALID_PARAMS, fault) from error
            raise


def _fault_of(method: str, params: Mapping[str, Any]) -> ClusterError | None:
    """Return the fault in the parameters of a method, or None."""
    try:
        parse_call(method, params)
    except NotImplementedYet:
        return None
    except ClusterError as error:
        return error
    return None


def _not_made(request: Any, size: int) -> bytes | None:
    """Return the answer to a call of a batch whose answers are already too large, or None for a notification."""
    if isinstance(request, dict) and "id" not in request:
        return None
    fault = LimitReached(
        f"the answers of this batch are {size} bytes already, of at most {MAX_BATCH_BYTES}: this call was not made. "
        "Make it in another batch",
        field="batch",
        limit=MAX_BATCH_BYTES,
    )
    return _encode(_error(_usable_id(request), CLUSTER_ERROR, fault))


def too_long(limit: int) -> bytes:
    """Return the answer to a message of more than `limit` bytes, which was not read."""
    fault = LimitReached(
        f"the message is longer than {limit} bytes, and was not read. Make several calls",
        field="message",
        limit=limit,
    )
    return _encode(_error(None, INVALID_REQUEST, fault))


def _malformed(request: Any) -> InvalidArgument | None:
    """Return why `request` is not a request object of the standard, or None if it is."""
    if not isinstance(request, dict):
        return InvalidArgument('a call is an object: {"jsonrpc": "2.0", "id": 1, "method": …, "params": {…}}')
    if request.get("jsonrpc") != "2.0":
        return InvalidArgument(
            'the member "jsonrpc" must be "2.0"', field="jsonrpc", value=shown(request.get("jsonrpc"))
        )
    if not isinstance(request.get("method"), str):
        return InvalidArgument(
            'the member "method" must be a string', field="method", value=shown(request.get("method"))
        )
    if not _is_id(request.get("id")):
        return InvalidArgument(
            'the member "id" must be a string, a number or null', field="id", value=shown(request["id"])
        )
    if not isinstance(_params(request), (dict, list)):
        return InvalidArgument(
            'the member "params" must be an object', field="params", value=shown(request["params"])
        )
    return None


def _params(request: Mapping[str, Any]) -> Any:
    """Return the parameters. Null counts as none."""
    params = request.get("params")
    return {} if params is None else params


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool))


def _usable_id(request: Any) -> Any:
    """Return the id of a malformed request if it has a valid one, else null, as the standard requires."""
    value = request.get("id") if isinstance(request, dict) else None
    return value if _is_id(value) else None


def _no_method(method: str) -> ClusterError:
    if method.startswith("rpc."):
        return InvalidArgument(
            f"there is no method {shown(method)!r}. Of rpc.*, only rpc.discover exists",
            field="method",
            value=shown(method),
        )
    try:
        parse_call(method, {})
    except ClusterError as error:
        return error
    raise AssertionError("only called for methods that do not exist")


def _positional(method: str, params: list[Any]) -> InvalidArgument:
    names = [argument.name for argument in OPERATIONS[method].arguments] if method in OPERATIONS else []
    example = dict(zip(names, params, strict=False))
    hint = f", such as {json.dumps(example)}" if example else ""
    return InvalidArgument(
        f"{method}: params are named: pass an object{hint}", field="params", value=shown(params), names=names
    )


def _error(id: Any, code: int, error: ClusterError) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "error": {"code": code, "message": error.message, "data": error.to_dict()},
        "id": id,
    }


def _encode(answer: Any) -> bytes:
    # A lone surrogate can arrive as an escape and must leave as one: backslashreplace writes exactly that.
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    """Refuse JSON's 1e999: as an infinity it could not be sent back as JSON."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond a double")
    return value
