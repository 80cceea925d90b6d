"""Findings: evidence, causes that were ruled out, what could not be observed, and the next call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from pydanube_core.diagnosis.options import DiagnosisOptions

PROVISIONAL_CONFIDENCE: Final = 0.7  # at most, of a finding from a short history


class Severity(IntEnum):
    """How severe a finding is. Ordered, the worst is the largest."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Verdict(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILING = "failing"
    UNKNOWN = "unknown"  # nothing was found, and too little could be looked at


class RuleArea(StrEnum):
    """The kind of subject that a rule checks."""

    SUBSCRIPTION = "subscription"
    TOPIC = "topic"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class NextCall:
    """An operation that would help. The admin core adds its tool and command."""

    operation: str
    arguments: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    rule: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check. Fields not given (`rule`, `subject`, `unobservable`) come from its rule and its view.

    `untrusted` holds texts of others: keys of messages, reasons of consumers.
    """

    summary: str
    evidence: Mapping[str, Any]
    severity: Severity = Severity.WARNING
    confidence: float = 1.0  # 0 to 1: how far the evidence leaves room for another cause
    rule: str = ""
    subject: Mapping[str, Any] = field(default_factory=dict)
    untrusted: Mapping[str, Any] = field(default_factory=dict)
    ruled_out: tuple[RuledOut, ...] = ()
    unobservable: tuple[str, ...] | None = None
    next: tuple[NextCall, ...] = ()
    impact: int = 0  # messages that the subject keeps waiting, refuses or loses. Ranks equal severities
    provisional: bool = False  # from less than half a window of samples. It opens no alert
    settles_at_ms: int | None = None  # of a provisional one: when half of the window has been observed

    def __post_init__(self) -> None:
        assert 0 < self.confidence <= 1

    def until_settled(self, settles_at_ms: int) -> Finding:
        """Return the same finding as a provisional one: a warning at most, with less confidence."""
        return replace(
            self,
            severity=min(self.severity, Severity.WARNING),
            confidence=min(self.confidence, PROVISIONAL_CONFIDENCE),
            provisional=True,
            settles_at_ms=settles_at_ms,
        )


#: a finding, or why the rule does not apply: a sentence with the numbers
Outcome: TypeAlias = Finding | str


class Check(Protocol):
    """Check a view. Return a finding, or why there is none."""

    __name__: str

    def __call__(self, view: Any, options: DiagnosisOptions, /) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, for evaluation and for the documentation: `@partial(TopicRule, …)` above its check makes one."""

    area: ClassVar[RuleArea]

    check: Check = field(kw_only=False)
    severity: str = "warning"  # of its findings, in words
    holds: str  # when, in a sentence
    evidence: Mapping[str, str]  # field → meaning
    unobservable: tuple[str, ...]
    helps: str  # what to do
    many: str  # predicate for several subjects: "subscriptions have unread messages and no consumer"
    fallback: bool = False  # evaluated only if nothing else of warning or worse was found
    of_cluster: bool = False  # every broker of a cluster finds the same
    of_all_brokers: bool = False  # the cause is outside the brokers: one finding names those that meet it
    of_partitions: bool = False  # several partitions of one subscription are one finding
    of_rates: bool = False  # it reads the status of a window, so it is provisional while the window is short

    @property
    def name(self) -> str:
        """The name of its check."""
        return self.check.__name__

    def holds_for(self, view: Any, options: DiagnosisOptions) -> bool:
        """Whether its check finds something in a view."""
        return not isinstance(self.check(view, options), str)


class SubscriptionRule(Rule):
    area = RuleArea.SUBSCRIPTION


class TopicRule(Rule):
    area = RuleArea.TOPIC


class BrokerRule(Rule):
    area = RuleArea.BROKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer of `diagnose.*`, with findings worst first."""

    subject: Mapping[str, Any]
    verdict: Verdict
    findings: tuple[Finding, ...]
    as_of_ms: int
    unobservable: tuple[str, ...] = ()  # why something that could matter was not observed
    omitted: int = 0  # findings, or groups of equal ones, beyond the bound: the least bad
    counts: Mapping[str, int] = field(default_factory=dict)  # findings by rule, the omitted ones too


def verdict_of(findings: Sequence[Finding], *, seen: bool = True) -> Verdict:
    """Return the verdict on findings. `seen`: enough was observed to call their absence healthy."""
    worst = max((finding.severity for finding in findings), default=Severity.INFO)
    match worst:
        case Severity.CRITICAL:
            return Verdict.FAILING
        case Severity.WARNING:
            return Verdict.DEGRADED
        case Severity.INFO:
            return Verdict.HEALTHY if seen else Verdict.UNKNOWN
