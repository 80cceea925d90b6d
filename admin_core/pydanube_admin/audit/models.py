"""Requests and results of the operations on the audit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pydanube_admin.models import ListRequest, OptionalTopic, Request, Result


class QueryAuditRequest(ListRequest):
    principal: Annotated[str | None, Field(max_length=256, description="Only of this principal")] = None
    operation: Annotated[str | None, Field(max_length=100, description="Only of this operation")] = None
    topic: OptionalTopic = None
    since: Annotated[
        str | None,
        Field(max_length=64, description="Only from a time on: time:2026-01-31T12:00:00Z or time:-15m"),
    ] = None
    call_id: Annotated[str | None, Field(max_length=64, description="Only of this call")] = None


class AuditRecord(Result):
    """One record, as it is stored."""

    seq: int
    call_id: str
    phase: str  # call | outcome
    time: str
    principal: str
    authenticated: bool
    face: str
    operation: str
    arguments: dict[str, Any]
    plan_id: str | None
    decision: str  # allowed | refused | planned | failed | interrupted
    code: str | None  # of the error
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    prev_hash: str
    hash: str
    mac: str | None = (
        None  # of the hash, by the key of `key_id`; none of a record from before there were MACs
    )
    key_id: str | None = None


class VerifyAuditRequest(Request):
    pass


class VerifiedAudit(Result):
    records: int  # that are sound, before the first that is not
    intact: bool
    first_bad_seq: int | None
    reason: str | None  # why that one is not what was written; none while it is intact
    verified: int  # whose MAC is right: a broker with this one's key wrote them
    chain_only: int  # in the chain, but without a MAC, or by a key that this broker has not
    forged: int  # altered, or written by nobody who has the key; whatever follows was looked at all the same
    first_seq: int  # older ones were given up by retention
    as_of: str
