"""Errors of the metadata store: failed guards, lost leases, compacted history, damaged files."""

from __future__ import annotations

from typing import ClassVar

from pydanube_core.errors import Conflict, Fatal, Retryable

from pydanube_storage.metadata.model import Absent, Guard, LeaseId, ModRevision, Revision


class GuardFailed(Conflict):
    """A guard of a transaction did not hold. Nothing was changed.

    `guard` is the first that failed. `actual_revision` is the key's modification revision, None if it is absent.
    """

    def __init__(self, guard: Guard, actual_revision: Revision | None) -> None:
        match guard:
            case Absent(key):
                wanted = "be absent"
                expected = None
            case ModRevision(key, revision):
                wanted = f"be at revision {revision}"
                expected = int(revision)
        found = "absent" if actual_revision is None else f"at revision {actual_revision}"
        super().__init__(
            f"{key} should {wanted} and is {found}: it was changed meanwhile. Read it again, and decide by the new value",
            guard=type(guard).__name__,
            key=key,
            expected_revision=expected,
            actual_revision=actual_revision,
        )
        self.guard = guard
        self.actual_revision = actual_revision


class LeaseLost(Retryable):
    """The lease expired, was revoked or never existed. Its keys are deleted."""

    code: ClassVar[str] = "CONFLICT"

    def __init__(self, lease_id: LeaseId) -> None:
        super().__init__(
            f"lease {lease_id} is gone: take a new one and register again", lease_id=str(lease_id)
        )
        self.lease_id = lease_id


class Compacted(Retryable):
    """The history before `oldest_revision` was compacted. Read the range again and watch from its revision + 1."""

    code: ClassVar[str] = "CONFLICT"

    def __init__(self, from_revision: Revision, oldest_revision: Revision) -> None:
        super().__init__(
            f"the changes from revision {from_revision} on are wanted, and those from {oldest_revision} on are kept: "
            "range again and watch from there",
            from_revision=from_revision,
            oldest_revision=oldest_revision,
        )
        self.from_revision = from_revision
        self.oldest_revision = oldest_revision


class CorruptMetadata(Fatal):
    """The metadata is damaged. Restore it from a copy."""

    # The table of codes has none for metadata. The exit code 5 (DATA_LOSS) of this one is right
    code: ClassVar[str] = "CORRUPT_JOURNAL"
