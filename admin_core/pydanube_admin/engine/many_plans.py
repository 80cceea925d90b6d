"""One plan for the same change of many topics: one diff to read, and one token, valid once.

It contains an ordinary plan for each topic, with its own records and undo. A later change of one topic makes
only that topic's plan stale. The members' tokens are derived from the shown token, so nothing that is stored
can apply them.
"""

from __future__ import annotations

import asyncio
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydanube_core.errors import ClusterError, LimitReached
from pydanube_core.names import TopicName

from pydanube_admin.engine.change_records import APPLIED, ChangeRecord
from pydanube_admin.engine.context import Context
from pydanube_admin.engine.forecast import bounded
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import APPLY, Call
from pydanube_admin.engine.paging import chosen, glob
from pydanube_admin.engine.permission import Sight
from pydanube_admin.engine.plan_records import USED, AppliedPlan, Plan, PlanRecord, refusal_of, shown_plan
from pydanube_admin.engine.stored_records import CALL, PLAN, new_id
from pydanube_admin.wording.radius import sums_of

MEMBERS: Final = "members"  # of a whole's image: the call ids of its changes
MOST: Final = 100  # of one plan: each is kept until it expires, and a principal may have 250


async def topics_named(context: Context, globs: str, permission: str) -> list[str]:
    """Return the topics that match any of some globs, separated by commas, in order.

    Args:
        permission: of the change. A topic on which the caller lacks it counts as one that does not exist.

    Raises `LimitReached`: there are too many.
    """
    patterns = {each.strip() for each in globs.split(",") if each.strip()}
    if len(patterns) > MOST:
        raise LimitReached(
            f"topics: {len(patterns)} globs, and one plan is for {MOST} topics at the most: write one that names several",
            retryable=False,
            field="topics",
            value=globs[:200],
            limit=MOST,
        )
    index = await context.port.topic_index()
    listed = sorted(key.topic for key in index if not TopicName.parse(key.topic).is_system)
    found: set[str] = set()
    matches = [glob(pattern) for pattern in patterns]
    found.update(await chosen(listed, lambda name: any(match(name) for match in matches)))
    sight = Sight(context.port, permission)
    found = {name for name in found if sight.topic(name)}
    if len(found) > MOST:
        raise LimitReached(
            f"{globs} names {len(found)} topics, and one plan is for {MOST} at the most: narrow the glob",
            retryable=False,
            field="topics",
            value=globs[:200],
            limit=MOST,
        )
    return sorted(found)


async def plan_many(context: Context, calls: Sequence[Call]) -> Plan:
    """Plan each call, and join the plans.

    Raises `ClusterError`: one of them cannot be planned, and none is kept.
    """
    plans = context.executor.plans
    members: list[Plan] = []
    try:
        for call in calls:
            members.append(await context.executor.plan(context, call))
            await asyncio.sleep(0)
        now = context.now_ms()
        first = members[0]
        whole = PlanRecord(
            plan_id=new_id(PLAN, now),
            operation=first.operation,
            arguments={"topics": [member.arguments["topic"] for member in members], **_shared(first)},
            **context.owner,
            effect=max(
                (member.effect for member in members), key=lambda effect: effect == Effect.DESTROY.value
            ),
            reversible=all(member.reversible for member in members),
            diff=bounded([each for member in members for each in member.diff], most=2 * MOST),
            blast_radius=sums_of([plan.blast_radius for plan in members]),
            revision=first.revision,
            was_live=_any([member.was_live for member in members]),
            later=next((member.later for member in members if member.later), None),
            created_ms=now,
            expires_ms=(await plans.get(first.plan_id))[0].expires_ms,  # the others have longer
            secret="",
            members=[member.plan_id for member in members],
        )
        token = await plans.add(whole)
        for member in members:
            await plans.lock(member.plan_id, _secret(token, member.plan_id))
    except ClusterError:
        for member in members:
            await context.executor.discard(context, member.plan_id)
        raise
    return Plan(**shown_plan(whole, now).model_dump(), plan_token=token)


async def apply_many(context: Context, record: PlanRecord, revision: int, token: str) -> AppliedPlan:
    """Make the changes one after another. A refused one is reported and does not stop the others.

    Raises `PlanUsed`, `PlanExpired`, `PlanNotFound`: by the state of the plan.
    """
    refusal = refusal_of(record, context.now_ms())
    if refusal is not None:
        raise refusal
    await context.executor.plans.end(record, revision, USED)
    until: list[str] = []
    changed: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for topic, plan_id in zip(record.arguments["topics"], record.members, strict=True):
        own = replace(context, call_id=new_id(CALL, context.now_ms()))
        try:
            applied = await context.executor.apply(own, f"{plan_id}.{_secret(token, plan_id)}", plan_id)
        except ClusterError as error:
            failed.append({"topic": topic, "error": error.to_dict()})
        else:
            changed.append({"topic": topic, "call_id": applied.call_id, "undo_until": applied.undo_until})
            if applied.undo_until is not None:
                until.append(applied.undo_until)
    if until:
        await _keep_whole(context, record, changed)
    return AppliedPlan(
        operation=record.operation,
        result={"changed": changed, "failed": failed},
        call_id=context.call_id,
        plan_id=record.plan_id,
        undo_until=min(until, default=None),
    )


async def _keep_whole(context: Context, record: PlanRecord, changed: Sequence[Mapping[str, Any]]) -> None:
    """Store the changes as one that can be undone as a whole. Each can be undone alone as well."""
    found = [await context.executor.changes.get(each["call_id"]) for each in changed]
    members = [each[0] for each in found if each is not None]
    whole = ChangeRecord(
        call_id=context.call_id,
        plan_id=record.plan_id,
        operation=APPLY,
        arguments={"plan_id": record.plan_id},
        **context.owner,
        at_ms=context.now_ms(),
        undo_until_ms=min(each.undo_until_ms for each in members),
        diff=[],
        image={MEMBERS: [each.call_id for each in members]},
        state=APPLIED,
        destroys=any(each.destroys for each in members),
        life=context.port.life,
    )
    await context.executor.changes.put(whole)
    context.executor.changes.added(whole)


def _secret(token: str, plan_id: str) -> str:
    """Return the secret of a member's token, derived from the token of the whole."""
    return urlsafe_b64encode(hmac.digest(token.encode(), plan_id.encode(), "sha256")[:18]).decode()


def _shared(plan: Plan) -> dict[str, Any]:
    return {name: value for name, value in plan.arguments.items() if name != "topic"}


def _any(found: Sequence[bool | None]) -> bool | None:
    known = [each for each in found if each is not None]
    return any(known) if known else None
