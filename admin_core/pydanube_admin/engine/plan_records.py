"""Plans in the metadata store, the tokens that apply them, and plans as shown.

A token is the plan's id and a secret of which only the hash is kept: reading the store, or a list of plans,
is not enough to apply one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import Field
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import (
    ClusterError,
    Conflict,
    LimitReached,
    PlanExpired,
    PlanMismatch,
    PlanNotFound,
    PlanUsed,
)
from pydanube_core.stored_json import VersionedJson
from pydanube_core.units import format_time

from pydanube_admin.engine.models import Result
from pydanube_admin.engine.permission import Sight
from pydanube_admin.engine.stored_records import is_id, readable

PREFIX: Final = "plans/"
MAX_PLANS: Final = 1000
MAX_PLANS_OF_ONE: Final = 250  # a principal that makes plans in a loop leaves room for others
SWEEP_MS: Final = 60_000
MAX_BYTES: Final = 200 * 1024
OPEN, USED, DISCARDED = "open", "used", "discarded"
KEPT_MS: Final = 3_600_000  # after its expiry a plan is kept this long, so that its state can be shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord(VersionedJson):
    """A stored plan. `arguments` are complete. `secret` is a hash."""

    plan_id: str
    operation: str
    arguments: Mapping[str, Any]
    principal: str
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]
    blast_radius: Mapping[str, int | None]
    revision: str
    created_ms: int
    expires_ms: int
    secret: str
    state: str = OPEN
    call_id: str | None = None
    later: str | None = None
    pinned: Mapping[str, Any] | None = None
    was_live: bool | None = None
    members: list[str] = field(default_factory=list)  # plans that are applied with this one
    principal_type: str = ""  # as of its call
    why: str = ""  # in the words of its maker

    def state_at(self, now_ms: int) -> str:
        """open, used, discarded or expired."""
        return "expired" if self.state == OPEN and now_ms >= self.expires_ms else self.state

    def standing(self, now_ms: int) -> dict[str, str]:
        """Return the fields of a shown plan with its state and times."""
        times = {"as_of": format_time(self.created_ms), "expires_at": format_time(self.expires_ms)}
        return {"state": self.state_at(now_ms), **times}


def _owner(record: PlanRecord) -> tuple[str, str]:
    return record.principal, record.principal_type


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def no_plan(plan_id: str, *, field: str = "plan_id") -> PlanNotFound:
    return PlanNotFound(
        f"the plan {plan_id[:64]!r} does not exist, or has expired: make another one",
        field=field,
        value=plan_id[:64],
    )


class Plans:
    """The plans of the cluster, stored through the broker's port."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self._adding = asyncio.Lock()
        self._swept_ms = -SWEEP_MS
        # As of the last full read, plus those added since: never too few
        self._count = 0
        self._waiting: Counter[tuple[str, str]] = Counter()  # by principal, with its type

    async def add(self, record: PlanRecord) -> str:
        """Keep a plan and return its token.

        Raises `LimitReached`: too many plans are waiting, or it is too large to be kept.
        """
        secret = secrets.token_urlsafe(18)
        kept = replace(record, secret=digest_of(secret))
        value = kept.to_bytes()
        if len(value) > MAX_BYTES:
            raise LimitReached(
                f"a plan with these arguments is {len(value)} bytes, and {MAX_BYTES} can be kept: make the change in "
                "one step, without plan_only",
                retryable=False,
                field="arguments",
                limit=MAX_BYTES,
            )
        async with self._adding:
            await self._make_room(record)
            await self._port.write_state(
                {PREFIX + kept.plan_id: value}, expected={PREFIX + kept.plan_id: None}
            )
            self._count += 1
            self._waiting[_owner(record)] += 1
        return f"{kept.plan_id}.{secret}"

    async def lock(self, plan_id: str, secret: str) -> None:
        """Let another secret, and no other, apply a plan. Raises `PlanNotFound`, `Conflict`."""
        record, revision = await self.get(plan_id)
        key = PREFIX + plan_id
        locked = replace(record, secret=digest_of(secret))
        await self._port.write_state({key: locked.to_bytes()}, expected={key: revision})

    async def get(self, plan_id: str) -> tuple[PlanRecord, int]:
        """Return a plan and its revision. Raises `PlanNotFound`."""
        sound = is_id(plan_id)
        item = await self._port.read_state(PREFIX + plan_id) if sound else None
        if item is None:
            raise no_plan(plan_id)
        return PlanRecord.from_bytes(item.value), item.revision

    async def of_token(self, token: str) -> tuple[PlanRecord, int]:
        """Return the plan that a token applies, and its revision. Raises `PlanNotFound`, `PlanMismatch`."""
        plan_id, _, secret = token.partition(".")
        try:
            record, revision = await self.get(plan_id)
        except PlanNotFound as error:
            raise no_plan(plan_id, field="plan_token") from error
        if not hmac.compare_digest(record.secret, digest_of(secret)):
            if not Sight(self._port, "plans:read").made_by(record):
                raise no_plan(plan_id, field="plan_token")
            raise PlanMismatch(
                f"this is not the token of the plan {plan_id}: pass plan_token as it was given",
                field="plan_token",
                plan_id=plan_id,
            )
        return record, revision

    async def many(self, token: str) -> tuple[PlanRecord, int] | None:
        """Return the plan of a token, and its revision, if it has members."""
        try:
            record, revision = await self.of_token(token)
        except (PlanNotFound, PlanMismatch):  # applying it raises and records the same error
            return None
        return (record, revision) if record.members else None

    async def list(self) -> list[PlanRecord]:
        """Return every stored plan, by age."""
        items = await self._port.list_state(PREFIX)
        return [record for _, record in readable(items, PlanRecord.from_bytes)]

    async def end(self, record: PlanRecord, revision: int, state: str) -> PlanRecord:
        """Record the end of an open plan. Raises `Conflict` if another call has ended it."""
        ended = replace(record, state=state)
        key = PREFIX + record.plan_id
        await self._port.write_state({key: ended.to_bytes()}, expected={key: revision})
        return ended

    async def _make_room(self, new: PlanRecord) -> None:
        """Delete plans that expired long ago, and the oldest if there are too many.

        All are read once a minute, and whenever the count since then suggests that there is no room.

        Raises `LimitReached`: too many plans are waiting, of one principal or of all.
        """
        owner, now_ms = _owner(new), new.created_ms
        recent = 0 <= now_ms - self._swept_ms < SWEEP_MS
        if recent and self._count < MAX_PLANS and self._waiting[owner] < MAX_PLANS_OF_ONE:
            return
        await self.sweep(now_ms)
        if self._waiting[owner] >= MAX_PLANS_OF_ONE:
            raise LimitReached(
                f"{MAX_PLANS_OF_ONE} plans of {new.principal[:80]} are waiting to be applied: apply or discard some",
                field="plan",
                limit=MAX_PLANS_OF_ONE,
            )
        if self._count >= MAX_PLANS:
            raise LimitReached(
                f"{MAX_PLANS} plans are waiting to be applied: apply or discard some",
                field="plan",
                limit=MAX_PLANS,
            )

    async def sweep(self, now_ms: int) -> None:
        items = await self._port.list_state(PREFIX, limit=MAX_PLANS)
        old_ms = now_ms - self._port.clock_apart_ms()[0]
        waiting: Counter[tuple[str, str]] = Counter()
        old: list[str] = []
        over: list[str] = []
        for number, (item, record) in enumerate(readable(items, PlanRecord.from_bytes)):
            if number % 32 == 0:
                await asyncio.sleep(0)
            if record.expires_ms + KEPT_MS <= old_ms:
                old.append(item.key)
            elif record.state_at(now_ms) == OPEN:
                waiting[_owner(record)] += 1
            else:
                over.append(item.key)
        if len(items) - len(old) >= MAX_PLANS:
            old += over[: MAX_PLANS // 2]
        for start in range(0, len(old), 90):
            try:
                await self._port.write_state(dict.fromkeys(old[start : start + 90]))
            except Conflict:  # another broker has swept
                break
        self._swept_ms, self._count, self._waiting = now_ms, len(items) - len(old), waiting


def refusal_of(record: PlanRecord, now_ms: int) -> ClusterError | None:
    """Return why a plan cannot be applied any more, or None for an open one. The plan is in its details."""
    plan_id, plan = record.plan_id, shown_plan(record, now_ms).model_dump(mode="json")
    match record.state_at(now_ms):
        case "used":
            return PlanUsed(
                f"the plan {plan_id} was applied already, once, as its token allows. To do it again, make another plan",
                plan=plan,
            )
        case "discarded":
            return PlanNotFound(f"the plan {plan_id} was discarded. Make another", plan=plan)
        case "expired":
            return PlanExpired(
                f"the plan {plan_id} could be applied until {format_time(record.expires_ms)}: make another and look at it",
                plan=plan,
            )
        case _:
            return None


class ShownPlan(Result):
    """A plan as it is shown: what a change would do."""

    plan_id: str
    operation: str
    arguments: dict[str, Any]
    principal: str
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]  # {path, before, after}
    # Topics, subscriptions, consumers, and the messages and bytes of the immediate loss. null: unknown
    blast_radius: dict[str, int | None]
    later: str | None = None  # later losses
    pinned: dict[str, Any] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )  # the objects that applying it acts on, even if others exist by then
    # Whether clients changed the counts in the five minutes before: if not, their next change makes the plan stale
    was_live: bool | None = Field(default=None, exclude_if=lambda value: value is None)
    state: str
    as_of: str  # when it was made
    expires_at: str
    revision: str  # of the state that the plan depends on: if it differs, the plan is stale
    call_id: str | None = None  # of the change it became
    untrusted: dict[str, Any] | None = None  # why: in the words of its maker


class Plan(ShownPlan):
    """A plan for its maker, once: with the token that applies it."""

    plan_token: str


class AppliedPlan(Result):
    operation: str
    result: dict[str, Any]
    call_id: str
    plan_id: str
    undo_until: str | None


def shown_plan(record: PlanRecord, now_ms: int) -> ShownPlan:
    """Return a plan without its secret, for any reader."""
    said = {"why": record.why} if record.why else None
    return ShownPlan.of(record, untrusted=said, **record.standing(now_ms))
