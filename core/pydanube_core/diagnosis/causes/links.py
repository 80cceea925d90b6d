"""Causes in links: mirrors that are not copied, and messages that the source had deleted before they were."""

from __future__ import annotations

from functools import partial
from typing import Final

from pydanube_core.diagnosis.findings import BrokerRule, Finding, NextCall, Outcome, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import BrokerView
from pydanube_core.units import counted

SHOWN: Final = 10
APART: Final = frozenset({"diverged", "source_remade"})
#: by state: what removes the cause. For the others, a fail-over keeps what is here
_REMEDIES: Final = {
    "failed": NextCall("brokers.status", {}, "see the disk and the journal that copies are written to"),
    "schema_mismatch": NextCall("schemas.list", {}, "find the subject that has the name or the id"),
    "name_taken": NextCall("topics.list", {}, "find the topic that has the mirror's name"),
}


@partial(
    BrokerRule,
    severity="warning, or critical where a mirror is apart from its source",
    holds="logs of mirrors that this broker owns are not copied, or topics of a link have no mirror",
    evidence={
        "link": "the link with the most of them",
        "states": "state → how many of its logs and topics",
        "topics": "the first ten",
        "why": "of the first",
    },
    unobservable=("whether the source still takes messages",),
    helps="mend the cause that the reason names, and copying continues without help. Fail over where the source is lost",
    many="brokers do not copy topics of a link",
)
def link_not_copying(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if not view.links:
        return "every mirror of this broker is copied, or there is none"
    worst = max(view.links, key=lambda each: (not APART.isdisjoint(each.states), sum(each.states.values())))
    apart = not APART.isdisjoint(worst.states)
    count = sum(worst.states.values())
    remedy = next((_REMEDIES[state] for state in worst.states if state in _REMEDIES), None)
    fail_over = NextCall(
        "links.fail_over",
        {"link": worst.link},
        "its plan shows the mirrored messages. Only if the source is lost",
    )
    return Finding(
        severity=Severity.CRITICAL if apart else Severity.WARNING,
        summary=f"the link {worst.link} does not copy {counted(count, 'topic')}: {worst.why}",
        evidence={
            "link": worst.link,
            "states": dict(worst.states),
            "topics": list(worst.topics[:SHOWN]),
            "why": worst.why,
        },
        next=(
            NextCall("links.describe", {"link": worst.link}, "see each mirror, and why it waits"),
            fail_over if apart or remedy is None else remedy,
        ),
    )


@partial(
    BrokerRule,
    holds="the source of a mirror deleted messages before they were copied, since this broker began the copy",
    evidence={"gaps": "log → the offsets that are missing"},
    unobservable=("the contents of the messages",),
    helps="keep messages at the source longer than a link may be away",
    many="brokers have mirrors with a gap",
)
def mirror_has_a_gap(view: BrokerView, options: DiagnosisOptions) -> Outcome:
    if not view.mirror_gaps:
        return "no mirror of this broker has a gap"
    first = min(view.mirror_gaps)
    return Finding(
        summary=f"{counted(len(view.mirror_gaps), 'mirror lacks', 'mirrors lack')} messages that the source had deleted before "
        f"they were copied, {first} from {view.mirror_gaps[first][0]} to {view.mirror_gaps[first][1]}",
        evidence={"gaps": {log: list(view.mirror_gaps[log]) for log in sorted(view.mirror_gaps)[:SHOWN]}},
        next=(NextCall("links.list", {}, "see the links and their lag"),),
    )
