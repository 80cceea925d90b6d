"""The operations on the audit."""

from __future__ import annotations

from typing import Final

from pydanube_admin.audit.handlers import query_audit, verify_audit
from pydanube_admin.audit.models import AuditRecord, QueryAuditRequest, VerifiedAudit, VerifyAuditRequest
from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation

AUDIT_OPERATIONS: Final = (
    Operation(
        name="audit.query",
        tool="query_audit",
        title="Ask the audit",
        effect=Effect.READ,
        permission="audit:read",
        reversible=None,
        summary="List audit records, the newest first: who called what, when, by which face, and what came of it.",
        request=QueryAuditRequest,
        result=Page[AuditRecord],
        handler=query_audit,
        examples=(
            Example(arguments={"topic": "orders"}, note="what was done to a topic"),
            Example(arguments={"operation": "topics.delete", "since": "time:-24h"}, note="who deleted what"),
        ),
        default_profile=True,
    ),
    Operation(
        name="audit.verify",
        tool="verify_audit",
        title="Verify the audit",
        effect=Effect.READ,
        permission="audit:read",
        reversible=None,
        summary="Check the hash chain and the MACs of the audit from its first record to its last; says the first that is "
        "not what was written, and how many are verified, known by the chain only, or forged.",
        request=VerifyAuditRequest,
        result=VerifiedAudit,
        handler=verify_audit,
        examples=(Example(arguments={}, note="the whole chain"),),
        default_profile=False,
    ),
)
