"""Facts from the metadata about a topic whose owner is gone: not registered, and therefore not answering. Or it is silent:
registered, and not answering, as in the seconds after it was killed.

The broker that received a call about such a topic answers it. A diagnosis is a finding. Every other call is
refused with the same facts: the owner, the time of its last report, the number of waiting topics, and a
remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.diagnosis.causes.cluster import tried_of
from pydanube_core.diagnosis.findings import Diagnosis, Finding, NextCall, Severity, Verdict
from pydanube_core.errors import ClusterError, Unavailable
from pydanube_core.facts import LEASE_S, DialFacts
from pydanube_core.refusals import gone_remedy
from pydanube_core.units import counted, format_time, known_time

from pydanube_admin.engine.context import system_now_ms
from pydanube_admin.engine.operation import next_call

GONE: Final = "gone"
SILENT: Final = "silent"
STORES_S: Final = 1.0  # how long metadata and object store are waited for. Without them, the rest is answered
_SILENT_RULE: Final = "broker_unreachable"
_COUNTS_AS_GONE: Final = (
    f"If it does not come back, it counts as gone when its lease ends ({LEASE_S} s). Ask again then"
)
_REMOVE: Final = "its plan shows the loss. Apply it only if the data directory is gone for good"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneOwner:
    """A broker that is not registered, and that topics or its audit wait for."""

    broker_id: str
    topics: int = 0  # that wait for it, without its audit
    reported_at_ms: int | None = None  # when it last reported the offsets of its topics, or None
    gone_since_ms: int | None = None  # when the answering broker saw its registration end, or None
    taken_over: bool = False  # whether others take over its topics without a plan (`cluster.on_loss`)
    copies: bool = False  # whether its journal is copied into the object store
    silent: str | None = None  # it is registered, and why it does not answer
    unread: bool = False  # whether its last report or its journal record could not be read
    tried: DialFacts | None = None  # the last attempt to reach it, None before the first one ended

    @property
    def why(self) -> str:
        """Return why it does not answer, as lists say it."""
        return f"it is not registered, and {self._waiting}"

    @property
    def _waiting(self) -> str:
        if not self.topics:
            return "only its audit waits for it"
        return f"{counted(self.topics, 'topic waits', 'topics wait')} for it"

    @property
    def state(self) -> str:
        return GONE if self.silent is None else SILENT

    @property
    def _state(self) -> str:
        reported = "It never reported how far its topics go"
        if self.unread:
            reported = "Its last report of how far its topics go could not be read"
        if self.reported_at_ms is not None:
            reported = f"It reported last at {format_time(self.reported_at_ms)} how far its topics go"
        since = "" if self.gone_since_ms is None else f" since {format_time(self.gone_since_ms)}"
        return f"{GONE}: it is not registered{since}, and does not answer. {reported}. {self._waiting.capitalize()}"

    @property
    def times(self) -> dict[str, Any]:
        """Return since when it is gone, and when it reported last."""
        return {
            "gone_since": known_time(self.gone_since_ms),
            "reported_at": known_time(self.reported_at_ms),
        }

    @property
    def _remedy(self) -> str:
        return gone_remedy(self.broker_id, copied=self.copies, taken_over=self.taken_over, tried=self.tried)

    def sentence(self, topic: str) -> str:
        """Return the state of the topic, and the remedy."""
        if self.silent is not None:
            return (
                f"{topic} is at broker {self.broker_id}, which is {SILENT}: it is registered, and does not answer ({self.silent}). "
                f"{_COUNTS_AS_GONE}"
            )
        return f"{topic} is at broker {self.broker_id}, which is {self._state}. {self._remedy}"

    def error(self, topic: str) -> Unavailable:
        """Return the refusal of a call about the topic."""
        return self._refusal(self.sentence(topic), topic=topic)

    def own_error(self) -> Unavailable:
        """Return the refusal of a call that the broker itself has to answer."""
        return self._refusal(f"broker {self.broker_id} is {self._state}. {self._remedy}")

    def _refusal(self, message: str, **details: Any) -> Unavailable:
        if self.silent is None:
            details["topics"] = self.topics
        error = Unavailable(
            message,
            broker_id=self.broker_id,
            state=self.state,
            **self.times,
            retry_after_ms=5000,
            **details,
        )
        return error.followed_by(
            *(next_call(call.operation, call.arguments, call.why) for call in self.steps)
        )

    @property
    def steps(self) -> tuple[NextCall, ...]:
        listed = NextCall("brokers.list", {}, "see the registered brokers and their states")
        if self.silent is not None:
            return (listed,)
        return listed, NextCall("brokers.remove", {"broker_id": self.broker_id, "plan_only": True}, _REMOVE)

    def diagnosis(self, topic: str, subject: Mapping[str, Any]) -> Diagnosis:
        """Return the diagnosis of a topic, or of something in it."""
        finding = Finding(
            rule="owner_down" if self.silent is None else _SILENT_RULE,
            severity=Severity.CRITICAL,
            subject=subject,
            summary=self.sentence(topic),
            evidence={
                "brokers": {self.broker_id: self.topics},
                "topics": self.topics,
                **self.times,
                **tried_of({self.broker_id: self.tried}),
            }
            if self.silent is None
            else {"brokers": {self.broker_id: {"why": self.silent}}},
            unobservable=("whether it comes back, or is gone for good",),
            next=self.steps,
        )
        return Diagnosis(
            subject=subject,
            verdict=Verdict.FAILING,
            findings=(finding,),
            as_of_ms=system_now_ms(),
            unobservable=(f"all data that only broker {self.broker_id} has of {topic}",),
            counts={finding.rule: 1},
        )


def with_silent(found: Diagnosis, silent: Mapping[str, str]) -> Diagnosis:
    """Add a finding for each broker that did not answer the diagnosis of the cluster. `silent`: broker id → why."""
    known = {each for one in found.findings if one.rule == _SILENT_RULE for each in one.evidence["brokers"]}
    more = [
        Finding(
            rule=_SILENT_RULE,
            severity=Severity.WARNING,
            subject={"broker_id": broker_id},
            summary=f"broker {broker_id} is registered and did not answer: its topics are not diagnosed. {_COUNTS_AS_GONE}",
            evidence={"brokers": {broker_id: {"why": why}}},
            next=GoneOwner(broker_id=broker_id, silent=why).steps,
        )
        for broker_id, why in sorted(silent.items())
        if broker_id not in known
    ]
    if not more:
        return found
    findings = sorted((*found.findings, *more), key=lambda one: -one.severity)
    return replace(
        found,
        findings=tuple(findings),
        verdict=Verdict.FAILING if found.verdict is Verdict.FAILING else Verdict.DEGRADED,
        counts={**found.counts, _SILENT_RULE: found.counts.get(_SILENT_RULE, 0) + len(more)},
    )


async def gone_owner(port: ClusterPort, broker_id: str) -> GoneOwner | None:
    """Return an owner that is gone, or None if it is registered or neither a topic nor its audit waits for it."""
    waiting = (await port.missed()).get(broker_id)
    if waiting is None:
        return None
    reported_ms: int | None = None
    tried: DialFacts | None = None
    journals: dict[str, Mapping[str, Any]] = {}
    read = 0

    async def read_report() -> None:
        nonlocal reported_ms, read
        with suppress(ClusterError):
            reported_ms = await port.reported_at_ms(broker_id)
            read += 1

    async def read_journals() -> None:
        nonlocal read
        with suppress(ClusterError):
            journals.update(await port.journals())
            read += 1

    async def dial() -> None:
        nonlocal tried
        tried = await port.dialed(broker_id)

    with anyio.move_on_after(STORES_S):
        async with anyio.create_task_group() as group:
            group.start_soon(dial)
            group.start_soon(read_report)
            group.start_soon(read_journals)
    journal = journals.get(broker_id, {})
    return GoneOwner(
        broker_id=broker_id,
        topics=waiting,
        reported_at_ms=reported_ms,
        gone_since_ms=port.gone_since_ms(broker_id),
        taken_over=journal.get("on_loss") == "take_over",
        copies=bool(journal.get("copies")),
        unread=read < 2,
        tried=tried,
    )
