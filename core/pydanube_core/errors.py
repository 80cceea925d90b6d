"""The one error tree, shown by every face and caught by every client.

A code decides everything else: its class, whether a retry may help, the gRPC status it travels as and the exit code of
a command. A class with a status and an exit code is a row of that table, `CODES`
(docs/interface.md#5-errors-and-exit-codes), and its code is its name. Errors carry facts in `details` (`field` and
`value` for bad input) and, in `next`, the calls that would help.

On the wire between our own processes an error travels whole, as JSON (`to_json`, `from_json`), to foreign gRPC clients
as status and `CODE: message`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Self


class GrpcStatus(IntEnum):
    """All status codes of gRPC, defined here because core does not import grpc."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One row of the table: how a code is shown on each face."""

    name: str
    grpc: GrpcStatus
    exit: int
    retryable: bool


CODES: Final[dict[str, Code]] = {}
_CLASSES: Final[dict[str, type[ClusterError]]] = {}


MAX_TEXT: Final = 8_192  # of a message or a detail, because quoted values may be of any size


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 100]} … ({len(text)} characters)"


class ClusterError(Exception):
    """Base of everything this project raises on purpose.

    Args:
        message: what failed, where, and what to do next. Shown to people unchanged.
        next: calls that would help: objects with `operation`, `tool`, `command`, `arguments`, `why`.
        retry_after_ms: for retryable errors, the earliest sensible time to try again.
        retryable: False if this error does not pass although its code may (an undo after a later change).
        details: facts, JSON values only: `field`, `value`, `topic`, `offset`, `outcome` …
    """

    code: ClassVar[str] = "INTERNAL"
    _status: GrpcStatus | None = None  # instead of the code's, for one face

    def __init_subclass__(
        cls, *, grpc: GrpcStatus | None = None, exit: int = 1, code: str | None = None
    ) -> None:
        """Enter a class into the table. One without a status has the code of its base class."""
        if grpc is not None:
            cls.code = code or re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
            assert cls.code not in CODES, "two classes share a code"
            CODES[cls.code] = Code(name=cls.code, grpc=grpc, exit=exit, retryable=issubclass(cls, Retryable))
            _CLASSES[cls.code] = cls

    def __init__(
        self,
        message: str = "",
        /,
        *,
        next: Sequence[Mapping[str, Any]] = (),
        retry_after_ms: int | None = None,
        retryable: bool = True,
        **details: Any,
    ) -> None:
        self.message = _cut(message or type(self).code.replace("_", " ").lower())
        self.details: dict[str, Any] = {
            name: _cut(value) if isinstance(value, str) else value for name, value in details.items()
        }
        self.next: list[dict[str, Any]] = [dict(step) for step in next]
        self.retry_after_ms = retry_after_ms
        self._may_pass = retryable
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.code, self.message, self.details, self.next, self.retry_after_ms, self._may_pass)
        return (error_for, facts)

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self._may_pass and CODES[self.code].retryable

    @property
    def grpc_status(self) -> GrpcStatus:
        """The status a gRPC call ends with."""
        return CODES[self.code].grpc if self._status is None else self._status

    def with_status(self, status: GrpcStatus) -> Self:
        """Let a gRPC call end with another status, where clients act on it. Return the error."""
        self._status = status
        return self

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with it."""
        return CODES[self.code].exit

    def suggest(
        self, operation: str, *, tool: str, command: str, why: str, arguments: Mapping[str, Any] | None = None
    ) -> Self:
        """Add a next call and return the error, so that it can be raised in the same line."""
        self.next.append(
            {
                "operation": operation,
                "tool": tool,
                "command": command,
                "arguments": dict(arguments or {}),
                "why": why,
            }
        )
        return self

    def followed_by(self, *steps: Mapping[str, Any]) -> Self:
        """Add next calls that are already complete, and return the error."""
        self.next += [dict(step) for step in steps]
        return self

    def to_dict(self) -> dict[str, Any]:
        """The error object of docs/interface.md#5-errors-and-exit-codes."""
        body: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "details": self.details,
            "next": self.next,
        }
        if self.retry_after_ms is not None:
            body["retry_after_ms"] = self.retry_after_ms
        return body

    def to_json(self) -> str:
        """`to_dict` as text, for a gRPC trailer or a line of a program."""
        import json  # 2 ms of the client's import

        return json.dumps(self.to_dict(), ensure_ascii=False, default=str)

    @staticmethod
    def from_dict(body: Mapping[str, Any]) -> ClusterError:
        """Rebuild an error that came over the wire. An unknown code becomes INTERNAL and keeps its name."""
        details, steps, wait_ms = body.get("details"), body.get("next"), body.get("retry_after_ms")
        return error_for(
            str(body.get("code", "INTERNAL")),
            str(body.get("message", "")),
            details if isinstance(details, Mapping) else {},
            [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else [],
            wait_ms if isinstance(wait_ms, int) else None,
            body.get("retryable") is not False,
        )

    @staticmethod
    def from_json(text: str) -> ClusterError:
        """Rebuild an error. Other text becomes an `Internal` that quotes it, because an error path must not fail."""
        import json

        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, Mapping):
            return error_for("INTERNAL", f"the other side sent an error that cannot be read: {text[:200]!r}")
        return ClusterError.from_dict(body)


class Retryable(ClusterError):
    """The same call may succeed later. Wait `retry_after_ms` if it is given."""


class Fatal(ClusterError):
    """The same call will fail again until something else changes."""


class Misuse(ClusterError):
    """The call itself is wrong: bad input, or an object used against its contract."""


def error_for(
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    next: Sequence[Mapping[str, Any]] = (),
    retry_after_ms: int | None = None,
    retryable: bool = True,
) -> ClusterError:
    """Return an error of the class that belongs to `code`. An unknown code becomes `Internal`."""
    own = ("next", "retry_after_ms", "retryable")
    facts = {str(k): v for k, v in (details or {}).items() if k not in own}
    cls = _CLASSES.get(code)
    if cls is None:
        facts.setdefault("original_code", code)
        cls = _CLASSES["INTERNAL"]
    return cls(message, next=next, retry_after_ms=retry_after_ms, retryable=retryable, **facts)


# ClosedResource and WindowFull never leave the SDK. ConditionNotMet is a command's own.


class TopicNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """No topic of that name."""


class SubscriptionNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """The topic has no subscription of that name."""


class SchemaNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """No schema of that subject, id or version."""


class NamespaceNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """No namespace of that name."""


class GrantNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """No role, binding or token of that name."""


class ConnectorNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """No connector of that name."""


class LinkNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """There is no link of that name."""


class PlanNotFound(Fatal, grpc=GrpcStatus.NOT_FOUND, exit=1):
    """No plan of that id."""


class AlreadyExists(Fatal, grpc=GrpcStatus.ALREADY_EXISTS, exit=1):
    """The name of the thing to be created is taken."""


class NamespaceNotEmpty(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The namespace still holds topics."""


class DispatchMismatch(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The topic has the other dispatch strategy."""


class SchemaMismatch(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The topic is bound to another schema subject."""


class SchemaIncompatible(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The new version breaks the subject's compatibility mode."""


class LastBroker(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """There is no other broker to take over."""


class NameReused(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The name has been taken again since."""


class ConsumerBusy(Fatal, grpc=GrpcStatus.PERMISSION_DENIED, exit=1):
    """Another consumer holds the exclusive subscription."""


class ProducerFenced(Fatal, grpc=GrpcStatus.PERMISSION_DENIED, exit=1):
    """A newer session of this producer exists."""


class ProducerUnknown(Fatal, grpc=GrpcStatus.PERMISSION_DENIED, exit=1):
    """The broker has no such producer id."""


class OutOfSequence(Fatal, grpc=GrpcStatus.PERMISSION_DENIED, exit=1):
    """A batch before this one is missing."""


class PortInUse(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """Another process listens on the port."""


class DataDirLocked(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """Another broker uses the data directory."""


class Diverged(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """A mirror does not continue its source: the source was restored to an older state, or made again."""


class DataDirForeign(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The directory holds something that is not ours."""


class StoreOwned(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The object store belongs to another broker, or to a later state of this one."""


class ClusterMismatch(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """Data directory and metadata are not of one cluster, or not of one moment."""


class Fenced(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """Another broker has taken this one's place."""


class TierNotShared(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """A broker on etcd has an object store that no other broker sees."""


class StoreUnsuitable(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The object store overwrites objects that must only be created, so that topics cannot be stored there."""


class FormatTooNew(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The data was written by a newer version."""


class InsecureBind(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """A public address without TLS and authentication."""


class UnsupportedPlatform(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """The command does not run on this system."""


class MissingExtra(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=1):
    """An optional part is not installed."""


class NotImplementedYet(Fatal, grpc=GrpcStatus.UNIMPLEMENTED, exit=1, code="NOT_IMPLEMENTED"):
    """The operation is not built yet."""


class JournalReadOnly(Fatal, grpc=GrpcStatus.INTERNAL, exit=1):
    """The journal met an I/O error and is read-only until restart."""


class Internal(Fatal, grpc=GrpcStatus.INTERNAL, exit=1):
    """A defect on our side."""


class InvalidArgument(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """An argument is outside its domain."""


class InvalidName(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """A name breaks the naming rules."""


class MessageTooLarge(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """A message exceeds the topic's limit."""


class BatchTooLarge(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """A batch exceeds the frame limit."""


class ChecksumMismatch(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """Bytes changed on their way."""


class SchemaInvalid(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """The schema text does not parse."""


class PayloadInvalid(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """The payload does not conform to the schema."""


class NotDelivered(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """An acknowledgement of a message that was never delivered."""


class PageInvalid(Misuse, grpc=GrpcStatus.INVALID_ARGUMENT, exit=2):
    """A page token that this list did not give out."""


class ClosedResource(Misuse, grpc=GrpcStatus.FAILED_PRECONDITION, exit=2):
    """The object was used after it was closed."""


class WindowFull(Misuse, grpc=GrpcStatus.RESOURCE_EXHAUSTED, exit=2):
    """send_nowait was called while the producer's window is full."""


class Unavailable(Retryable, grpc=GrpcStatus.UNAVAILABLE, exit=3):
    """The other side cannot be reached now."""


class Draining(Retryable, grpc=GrpcStatus.UNAVAILABLE, exit=3):
    """The broker is shutting down."""


class NotOwner(Retryable, grpc=GrpcStatus.UNAVAILABLE, exit=3):
    """Another broker owns the topic."""


class NoOwner(Retryable, grpc=GrpcStatus.UNAVAILABLE, exit=3):
    """No broker serves the topic now."""


class FailedOver(Retryable, grpc=GrpcStatus.UNAVAILABLE, exit=3):
    """The topic was failed over to another cluster, which writes it now."""


class StoreUnavailable(Retryable, grpc=GrpcStatus.UNAVAILABLE, exit=3):
    """The metadata or object store does not answer."""


class MetadataUnavailable(StoreUnavailable, grpc=GrpcStatus.UNAVAILABLE, exit=3):
    """The metadata store, etcd or a file, does not answer or takes no writes."""


class Overloaded(Retryable, grpc=GrpcStatus.RESOURCE_EXHAUSTED, exit=3):
    """Too much is waiting already. The call was not begun."""


class RateLimited(Retryable, grpc=GrpcStatus.RESOURCE_EXHAUSTED, exit=3):
    """The topic's rate limit is reached."""


class LimitReached(Retryable, grpc=GrpcStatus.RESOURCE_EXHAUSTED, exit=3):
    """A policy's count limit is reached."""


class QuotaExceeded(Retryable, grpc=GrpcStatus.RESOURCE_EXHAUSTED, exit=3):
    """A namespace or a principal has taken all that its quota allows."""


class DiskFull(Retryable, grpc=GrpcStatus.INTERNAL, exit=3):
    """The disk has no room. Nothing was stored."""


class DeadlineExceeded(Retryable, grpc=GrpcStatus.DEADLINE_EXCEEDED, exit=3):
    """No answer within the time given."""


class Conflict(Retryable, grpc=GrpcStatus.ABORTED, exit=3):
    """Another change came first."""


class PlanRequired(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """A destructive call needs a plan that was shown."""


class PlanExpired(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """The plan is too old."""


class PlanUsed(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """The plan was applied already."""


class PlanStale(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """The cluster changed since the plan was made."""


class PlanMismatch(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """The call differs from the plan."""


class ReadOnly(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """This face may not change anything."""


class Frozen(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """The face or the principal is frozen and may only read."""


class AuditUnavailable(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """The audit record cannot be written."""


class MirrorReadOnly(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=4):
    """The topic is the mirror of another cluster's, and only its link writes it."""


class PermissionDenied(Fatal, grpc=GrpcStatus.PERMISSION_DENIED, exit=4):
    """The principal may not do that."""


class Unauthenticated(Fatal, grpc=GrpcStatus.UNAUTHENTICATED, exit=4):
    """The call has no valid credentials."""


class CorruptJournal(Fatal, grpc=GrpcStatus.DATA_LOSS, exit=5):
    """The journal is damaged, and nothing was changed in it."""


class CorruptObject(Fatal, grpc=GrpcStatus.DATA_LOSS, exit=5):
    """An object in the cold tier is damaged."""


class ObjectMissing(Fatal, grpc=GrpcStatus.DATA_LOSS, exit=5):
    """An object in the cold tier is gone."""


class AuditBroken(Fatal, grpc=GrpcStatus.DATA_LOSS, exit=5):
    """The audit chain is broken."""


class ConditionNotMet(Fatal, grpc=GrpcStatus.FAILED_PRECONDITION, exit=6):
    """The condition that the command checks is not met."""
