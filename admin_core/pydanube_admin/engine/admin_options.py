"""The section `[admin]` of the settings."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube_admin.engine.audit.audit_sampling import AuditReads


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """The section `[admin]` of the settings."""

    plan_ttl_ms: int = 600_000
    undo_grace_ms: int = 86_400_000
    compat_destructive: bool = True
    audit_reads: AuditReads = AuditReads.SAMPLED
