"""The one error tree: what every face shows and every client catches.

A code decides everything else: its class, whether a retry may help, the gRPC status it travels as and the exit
code of a command. `CODES` is that table, in one place (docs/interface.md#5-errors-and-exit-codes). Errors carry facts
in `details` (`field` and `value` for bad input) and, in `next`, the calls that would help.

On the wire between our own processes an error travels whole, as JSON (`to_json`, `from_json`); to foreign gRPC
clients as status and `CODE: message`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Self


class GrpcStatus(IntEnum):
    """The gRPC status numbers we use; kept here because core does not import grpc."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
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


MAX_TEXT: Final = 8_192  # of a message or a detail: what it quotes may be of any size


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 100]} … ({len(text)} characters)"


class ClusterError(Exception):
    """Base of everything this project raises on purpose.

    Args:
        message: what failed, where, and what to do next; shown to people as it is.
        next: calls that would help: objects with `operation`, `tool`, `command`, `arguments`, `why`.
        retry_after_ms: for retryable errors, the earliest sensible time to try again.
        retryable: False where this one stays as it is though its code may pass (an undo after a later change).
        details: facts, JSON values only: `field`, `value`, `topic`, `offset`, `outcome` …
    """

    code: ClassVar[str] = "INTERNAL"

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
        return CODES[self.code].grpc

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
        """Add next calls that are made already and return the error."""
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
        return json.dumps(self.to_dict(), ensure_ascii=False, default=str)

    @staticmethod
    def from_dict(body: Mapping[str, Any]) -> ClusterError:
        """Rebuild an error that came over the wire; an unknown code becomes INTERNAL and keeps its name."""
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
        """Rebuild an error; text that holds none becomes `Internal` and says so: an error path must not fail."""
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, Mapping):
            return error_for("INTERNAL", f"the other side sent an error that cannot be read: {text[:200]!r}")
        return ClusterError.from_dict(body)


class Retryable(ClusterError):
    """The same call may succeed later; wait `retry_after_ms` if it is given."""


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
    """The error of the class that belongs to `code`; an unknown code becomes `Internal`."""
    own = ("next", "retry_after_ms", "retryable")
    facts = {str(k): v for k, v in (details or {}).items() if k not in own}
    cls = _CLASSES.get(code)
    if cls is None:
        facts.setdefault("original_code", code)
        cls = _CLASSES["INTERNAL"]
    return cls(message, next=next, retry_after_ms=retry_after_ms, retryable=retryable, **facts)


# Class, code, gRPC status and exit code: docs/interface.md#5-errors-and-exit-codes. CLOSED_RESOURCE and WINDOW_FULL
# never leave the SDK; CONDITION_NOT_MET is a command's own.


class TopicNotFound(Fatal):
    """No topic of that name."""

    code = "TOPIC_NOT_FOUND"


class SubscriptionNotFound(Fatal):
    """The topic has no subscription of that name."""

    code = "SUBSCRIPTION_NOT_FOUND"


class SchemaNotFound(Fatal):
    """No schema of that subject, id or version."""

    code = "SCHEMA_NOT_FOUND"


class NamespaceNotFound(Fatal):
    """No namespace of that name."""

    code = "NAMESPACE_NOT_FOUND"


class GrantNotFound(Fatal):
    """No role, binding or token of that name."""

    code = "GRANT_NOT_FOUND"


class PlanNotFound(Fatal):
    """No plan of that id."""

    code = "PLAN_NOT_FOUND"


class AlreadyExists(Fatal):
    """The name of what is to be made is taken."""

    code = "ALREADY_EXISTS"


class NamespaceNotEmpty(Fatal):
    """The namespace still holds topics."""

    code = "NAMESPACE_NOT_EMPTY"


class DispatchMismatch(Fatal):
    """The topic has the other dispatch strategy."""

    code = "DISPATCH_MISMATCH"


class SchemaMismatch(Fatal):
    """The topic is bound to another schema subject."""

    code = "SCHEMA_MISMATCH"


class SchemaIncompatible(Fatal):
    """The new version breaks the subject's compatibility mode."""

    code = "SCHEMA_INCOMPATIBLE"


class LastBroker(Fatal):
    """There is no other broker to take over."""

    code = "LAST_BROKER"


class NameReused(Fatal):
    """The name has been taken again since."""

    code = "NAME_REUSED"


class ConsumerBusy(Fatal):
    """Another consumer holds the exclusive subscription."""

    code = "CONSUMER_BUSY"


class ProducerFenced(Fatal):
    """A newer session of this producer exists."""

    code = "PRODUCER_FENCED"


class ProducerUnknown(Fatal):
    """The broker does not know this producer id."""

    code = "PRODUCER_UNKNOWN"


class OutOfSequence(Fatal):
    """A batch before this one is missing."""

    code = "OUT_OF_SEQUENCE"


class PortInUse(Fatal):
    """Another process listens on the port."""

    code = "PORT_IN_USE"


class DataDirLocked(Fatal):
    """Another broker uses the data directory."""

    code = "DATA_DIR_LOCKED"


class DataDirForeign(Fatal):
    """The directory holds something that is not ours."""

    code = "DATA_DIR_FOREIGN"


class ClusterMismatch(Fatal):
    """Data directory and metadata are not of one cluster, or not of one moment."""

    code = "CLUSTER_MISMATCH"


class Fenced(Fatal):
    """Another broker has taken this one's place."""

    code = "FENCED"


class TierNotShared(Fatal):
    """A broker on etcd has an object store that no other broker sees."""

    code = "TIER_NOT_SHARED"


class FormatTooNew(Fatal):
    """The data was written by a newer version."""

    code = "FORMAT_TOO_NEW"


class InsecureBind(Fatal):
    """A public address without TLS and authentication."""

    code = "INSECURE_BIND"


class UnsupportedPlatform(Fatal):
    """The command does not run on this system."""

    code = "UNSUPPORTED_PLATFORM"


class MissingExtra(Fatal):
    """An optional part is not installed."""

    code = "MISSING_EXTRA"


class NotImplementedYet(Fatal):
    """The operation is not built yet."""

    code = "NOT_IMPLEMENTED"


class JournalReadOnly(Fatal):
    """The journal met an I/O error and is read-only until restart."""

    code = "JOURNAL_READ_ONLY"


class Internal(Fatal):
    """A defect on our side."""

    code = "INTERNAL"


class InvalidArgument(Misuse):
    """An argument is outside its domain."""

    code = "INVALID_ARGUMENT"


class InvalidName(Misuse):
    """A name breaks the naming rules."""

    code = "INVALID_NAME"


class MessageTooLarge(Misuse):
    """A message exceeds the topic's limit."""

    code = "MESSAGE_TOO_LARGE"


class BatchTooLarge(Misuse):
    """A batch exceeds the frame limit."""

    code = "BATCH_TOO_LARGE"


class ChecksumMismatch(Misuse):
    """Bytes changed on their way."""

    code = "CHECKSUM_MISMATCH"


class SchemaInvalid(Misuse):
    """The schema text does not parse."""

    code = "SCHEMA_INVALID"


class PayloadInvalid(Misuse):
    """The payload does not conform to the schema."""

    code = "PAYLOAD_INVALID"


class NotDelivered(Misuse):
    """An acknowledgement of what was never delivered."""

    code = "NOT_DELIVERED"


class PageInvalid(Misuse):
    """A page token that this list did not give out."""

    code = "PAGE_INVALID"


class ClosedResource(Misuse):
    """The object was used after it was closed."""

    code = "CLOSED_RESOURCE"


class WindowFull(Misuse):
    """send_nowait was called while the producer's window is full."""

    code = "WINDOW_FULL"


class Unavailable(Retryable):
    """The other side cannot be reached now."""

    code = "UNAVAILABLE"


class Draining(Retryable):
    """The broker is shutting down."""

    code = "DRAINING"


class NotOwner(Retryable):
    """Another broker owns the topic."""

    code = "NOT_OWNER"


class NoOwner(Retryable):
    """No broker serves the topic now."""

    code = "NO_OWNER"


class StoreUnavailable(Retryable):
    """The metadata or object store does not answer."""

    code = "STORE_UNAVAILABLE"


class MetadataUnavailable(StoreUnavailable):
    """The cluster's metadata store (etcd) does not answer, or takes no writes."""

    code = "METADATA_UNAVAILABLE"


class StoreOwned(Fatal):
    """The object store belongs to another broker, or to a later state of this one."""

    code = "STORE_OWNED"


class Overloaded(Retryable):
    """Too much is waiting already; the call was not begun."""

    code = "OVERLOADED"


class RateLimited(Retryable):
    """The topic's rate limit is reached."""

    code = "RATE_LIMITED"


class LimitReached(Retryable):
    """A policy's count limit is reached."""

    code = "LIMIT_REACHED"


class QuotaExceeded(Retryable):
    """A namespace or a principal has taken all that its quota allows."""

    code = "QUOTA_EXCEEDED"


class DiskFull(Retryable):
    """The disk has no room; nothing was stored."""

    code = "DISK_FULL"


class DeadlineExceeded(Retryable):
    """No answer within the time given."""

    code = "DEADLINE_EXCEEDED"


class Conflict(Retryable):
    """Somebody else changed it first."""

    code = "CONFLICT"


class PlanRequired(Fatal):
    """A destructive call needs a plan that was shown."""

    code = "PLAN_REQUIRED"


class PlanExpired(Fatal):
    """The plan is too old."""

    code = "PLAN_EXPIRED"


class PlanUsed(Fatal):
    """The plan was applied already."""

    code = "PLAN_USED"


class PlanStale(Fatal):
    """The cluster changed since the plan was made."""

    code = "PLAN_STALE"


class PlanMismatch(Fatal):
    """The call differs from the plan."""

    code = "PLAN_MISMATCH"


class ReadOnly(Fatal):
    """This face may not change anything."""

    code = "READ_ONLY"


class AuditUnavailable(Fatal):
    """The audit record cannot be written."""

    code = "AUDIT_UNAVAILABLE"


class PermissionDenied(Fatal):
    """The principal may not do that."""

    code = "PERMISSION_DENIED"


class Unauthenticated(Fatal):
    """The call has no valid credentials."""

    code = "UNAUTHENTICATED"


class CorruptJournal(Fatal):
    """The journal is damaged, and nothing was changed in it."""

    code = "CORRUPT_JOURNAL"


class CorruptObject(Fatal):
    """An object in the cold tier is damaged."""

    code = "CORRUPT_OBJECT"


class ObjectMissing(Fatal):
    """An object in the cold tier is gone."""

    code = "OBJECT_MISSING"


class AuditBroken(Fatal):
    """The audit chain is broken."""

    code = "AUDIT_BROKEN"


class ConditionNotMet(Fatal):
    """A condition that the command was asked to check is not met."""

    code = "CONDITION_NOT_MET"


_TABLE: Final[tuple[tuple[type[ClusterError], GrpcStatus, int], ...]] = (
    (TopicNotFound, GrpcStatus.NOT_FOUND, 1),
    (SubscriptionNotFound, GrpcStatus.NOT_FOUND, 1),
    (SchemaNotFound, GrpcStatus.NOT_FOUND, 1),
    (NamespaceNotFound, GrpcStatus.NOT_FOUND, 1),
    (GrantNotFound, GrpcStatus.NOT_FOUND, 1),
    (PlanNotFound, GrpcStatus.NOT_FOUND, 1),
    (AlreadyExists, GrpcStatus.ALREADY_EXISTS, 1),
    (NamespaceNotEmpty, GrpcStatus.FAILED_PRECONDITION, 1),
    (DispatchMismatch, GrpcStatus.FAILED_PRECONDITION, 1),
    (SchemaMismatch, GrpcStatus.FAILED_PRECONDITION, 1),
    (SchemaIncompatible, GrpcStatus.FAILED_PRECONDITION, 1),
    (LastBroker, GrpcStatus.FAILED_PRECONDITION, 1),
    (NameReused, GrpcStatus.FAILED_PRECONDITION, 1),
    (ConsumerBusy, GrpcStatus.PERMISSION_DENIED, 1),
    (ProducerFenced, GrpcStatus.PERMISSION_DENIED, 1),
    (ProducerUnknown, GrpcStatus.PERMISSION_DENIED, 1),
    (OutOfSequence, GrpcStatus.PERMISSION_DENIED, 1),
    (PortInUse, GrpcStatus.FAILED_PRECONDITION, 1),
    (DataDirLocked, GrpcStatus.FAILED_PRECONDITION, 1),
    (DataDirForeign, GrpcStatus.FAILED_PRECONDITION, 1),
    (StoreOwned, GrpcStatus.FAILED_PRECONDITION, 1),
    (ClusterMismatch, GrpcStatus.FAILED_PRECONDITION, 1),
    (Fenced, GrpcStatus.FAILED_PRECONDITION, 1),
    (TierNotShared, GrpcStatus.FAILED_PRECONDITION, 1),
    (FormatTooNew, GrpcStatus.FAILED_PRECONDITION, 1),
    (InsecureBind, GrpcStatus.FAILED_PRECONDITION, 1),
    (UnsupportedPlatform, GrpcStatus.FAILED_PRECONDITION, 1),
    (MissingExtra, GrpcStatus.FAILED_PRECONDITION, 1),
    (NotImplementedYet, GrpcStatus.UNIMPLEMENTED, 1),
    (JournalReadOnly, GrpcStatus.INTERNAL, 1),
    (Internal, GrpcStatus.INTERNAL, 1),
    (InvalidArgument, GrpcStatus.INVALID_ARGUMENT, 2),
    (InvalidName, GrpcStatus.INVALID_ARGUMENT, 2),
    (MessageTooLarge, GrpcStatus.INVALID_ARGUMENT, 2),
    (BatchTooLarge, GrpcStatus.INVALID_ARGUMENT, 2),
    (ChecksumMismatch, GrpcStatus.INVALID_ARGUMENT, 2),
    (SchemaInvalid, GrpcStatus.INVALID_ARGUMENT, 2),
    (PayloadInvalid, GrpcStatus.INVALID_ARGUMENT, 2),
    (NotDelivered, GrpcStatus.INVALID_ARGUMENT, 2),
    (PageInvalid, GrpcStatus.INVALID_ARGUMENT, 2),
    (ClosedResource, GrpcStatus.FAILED_PRECONDITION, 2),
    (WindowFull, GrpcStatus.RESOURCE_EXHAUSTED, 2),
    (Unavailable, GrpcStatus.UNAVAILABLE, 3),
    (Draining, GrpcStatus.UNAVAILABLE, 3),
    (NotOwner, GrpcStatus.UNAVAILABLE, 3),
    (NoOwner, GrpcStatus.UNAVAILABLE, 3),
    (StoreUnavailable, GrpcStatus.UNAVAILABLE, 3),
    (MetadataUnavailable, GrpcStatus.UNAVAILABLE, 3),
    (Overloaded, GrpcStatus.RESOURCE_EXHAUSTED, 3),
    (RateLimited, GrpcStatus.RESOURCE_EXHAUSTED, 3),
    (LimitReached, GrpcStatus.RESOURCE_EXHAUSTED, 3),
    (QuotaExceeded, GrpcStatus.RESOURCE_EXHAUSTED, 3),
    (DiskFull, GrpcStatus.INTERNAL, 3),
    (DeadlineExceeded, GrpcStatus.DEADLINE_EXCEEDED, 3),
    (Conflict, GrpcStatus.ABORTED, 3),
    (PlanRequired, GrpcStatus.FAILED_PRECONDITION, 4),
    (PlanExpired, GrpcStatus.FAILED_PRECONDITION, 4),
    (PlanUsed, GrpcStatus.FAILED_PRECONDITION, 4),
    (PlanStale, GrpcStatus.FAILED_PRECONDITION, 4),
    (PlanMismatch, GrpcStatus.FAILED_PRECONDITION, 4),
    (ReadOnly, GrpcStatus.FAILED_PRECONDITION, 4),
    (AuditUnavailable, GrpcStatus.FAILED_PRECONDITION, 4),
    (PermissionDenied, GrpcStatus.PERMISSION_DENIED, 4),
    (Unauthenticated, GrpcStatus.UNAUTHENTICATED, 4),
    (CorruptJournal, GrpcStatus.DATA_LOSS, 5),
    (CorruptObject, GrpcStatus.DATA_LOSS, 5),
    (ObjectMissing, GrpcStatus.DATA_LOSS, 5),
    (AuditBroken, GrpcStatus.DATA_LOSS, 5),
    (ConditionNotMet, GrpcStatus.FAILED_PRECONDITION, 6),
)
for _cls, _grpc, _exit in _TABLE:
    CODES[_cls.code] = Code(name=_cls.code, grpc=_grpc, exit=_exit, retryable=issubclass(_cls, Retryable))
    _CLASSES[_cls.code] = _cls
assert len(CODES) == len(_TABLE), "two classes share a code"
