"""Plans as they are kept in the metadata store, and the tokens that apply them.

A token is the plan's id and a secret of which only the hash is kept: reading the store, or a list of plans, does not
let anybody apply one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import Conflict, LimitReached, PlanMismatch, PlanNotFound
from pydanube_core.facts import StateItem

__all__ = ["MAX_PLANS", "PREFIX", "PlanRecord", "Plans", "digest_of"]

PREFIX: Final = "plans/"
MAX_PLANS: Final = 1000
MAX_BYTES: Final = 200 * 1024
OPEN, USED, DISCARDED = "open", "used", "discarded"
KEPT_MS: Final = 3_600_000  # after its time a plan is kept this long, to say what became of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One plan. `arguments` are whole; `secret` is a hash."""

    plan_id: str
    operation: str
    arguments: Mapping[str, Any]
    principal: str
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]
    blast_radius: Mapping[str, int]
    revision: str
    created_ms: int
    expires_ms: int
    secret: str
    state: str = OPEN
    call_id: str | None = None

    def to_bytes(self) -> bytes:
        return json.dumps({"version": 1, **asdict(self)}, default=str).encode()

    @classmethod
    def from_item(cls, item: StateItem) -> PlanRecord:
        body = json.loads(item.value)
        body.pop("version")
        return cls(**body)

    def state_at(self, now_ms: int) -> str:
        """open, used, discarded or expired."""
        return "expired" if self.state == OPEN and now_ms >= self.expires_ms else self.state


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Plans:
    """The plans of the cluster, over the broker's port."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self._swept_ms = 0

    async def add(self, record: PlanRecord) -> str:
        """Keep a plan and return its token.

        Raises:
            LimitReached: too many plans are waiting, or it is too large to be kept.
        """
        secret = secrets.token_urlsafe(18)
        kept = replace(record, secret=digest_of(secret))
        value = kept.to_bytes()
        if len(value) > MAX_BYTES:
            raise LimitReached(
                f"a plan with these arguments is {len(value)} bytes, and {MAX_BYTES} can be kept: make the change in "
                "one step, without plan_only",
                field="arguments",
                limit=MAX_BYTES,
            )
        await self._sweep(record.created_ms)
        await self._port.write_state({PREFIX + kept.plan_id: value}, expected={PREFIX + kept.plan_id: None})
        return f"{kept.plan_id}.{secret}"

    async def get(self, plan_id: str) -> tuple[PlanRecord, int]:
        """A plan and its revision. Raises `PlanNotFound`."""
        item = None if "/" in plan_id else await self._port.read_state(PREFIX + plan_id)
        if item is None:
            raise PlanNotFound(
                f"there is no plan {plan_id[:64]!r}: it never was, or its time has been over for long",
                field="plan_id",
                value=plan_id[:64],
            )
        return PlanRecord.from_item(item), item.revision

    async def of_token(self, token: str) -> tuple[PlanRecord, int]:
        """The plan that a token applies, and its revision. Raises `PlanNotFound`, `PlanMismatch`."""
        plan_id, _, secret = token.partition(".")
        try:
            record, revision = await self.get(plan_id)
        except PlanNotFound as error:
            error.details |= {"field": "plan_token", "value": plan_id[:64]}
            raise
        if not hmac.compare_digest(record.secret, digest_of(secret)):
            raise PlanMismatch(
                f"this is not the token of the plan {plan_id}: pass plan_token as it was given",
                field="plan_token",
                plan_id=plan_id,
            )
        return record, revision

    async def list(self) -> list[PlanRecord]:
        """Every plan that is kept, by age."""
        return [PlanRecord.from_item(item) for item in await self._port.list_state(PREFIX)]

    async def end(self, record: PlanRecord, revision: int, state: str) -> PlanRecord:
        """Say what became of an open plan. Raises `Conflict` where somebody else has."""
        ended = replace(record, state=state)
        key = PREFIX + record.plan_id
        await self._port.write_state({key: ended.to_bytes()}, expected={key: revision})
        return ended

    async def _sweep(self, now_ms: int) -> None:
        """Let go of plans whose time is long over; of the oldest, where there are too many."""
        items = await self._port.list_state(PREFIX, limit=1000)
        old = [item for item in items if PlanRecord.from_item(item).expires_ms + KEPT_MS <= now_ms]
        if len(items) - len(old) >= MAX_PLANS:
            over = [item for item in items if PlanRecord.from_item(item).state_at(now_ms) != OPEN]
            old = [*old, *(item for item in over if item not in old)][: MAX_PLANS // 2]
            if not old:
                raise LimitReached(
                    f"{MAX_PLANS} plans are waiting to be applied: apply or discard some",
                    field="plan",
                    limit=MAX_PLANS,
                )
        for start in range(0, len(old), 90):
            try:
                await self._port.write_state({item.key: None for item in old[start : start + 90]})
            except Conflict:  # somebody else swept
                return
