"""Causes in a cluster: missing brokers, disagreement, moves that hang, uneven load.

Each broker reports its own view: a broker that it cannot reach may be reachable for another. Loads are judged by the
leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import Any, Final

from pydanube_core.balance import BalanceVerdict, Resource
from pydanube_core.diagnosis.findings import BrokerRule, Finding, NextCall, Outcome, Severity
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.views import BrokerView, ClusterView, ago_s
from pydanube_core.facts import DialFacts
from pydanube_core.names import TopicName
from pydanube_core.refusals import gone_remedy
from pydanube_core.units import counted

STILL_MS: Final = 60_000  # after it, the leader takes a step of a move itself
HANGS_MS: Final = 180_000  # three times the leader's wait before it takes a step itself
# A cancelled move is shown for an hour from its begin, unless its topic moves again
CANCELLED_MS: Final = 3_600_000
SHOWN: Final = 10
REMEDIES: Final = 3  # of brokers that are gone, in one sentence each
MILD_SHARE: Final = 0.2  # of its processors that the busiest broker uses: less needs no move
COPY_LATE_S: Final = 5.0  # many times the linger and a write to the store

_BROKERS: Final = NextCall("brokers.list", {}, "see the registered brokers and their states")

_Check = Callable[[BrokerView, ClusterView], Outcome]


def _of_several(check: _Check) -> Callable[[BrokerView, DiagnosisOptions], Outcome]:
    @wraps(check)
    def checked(view: BrokerView, options: DiagnosisOptions) -> Outcome:
        return "the broker is alone" if view.cluster is None else check(view, view.cluster)

    return checked


def _brokers(names: Iterable[str], one: str = ", which is", more: str = ", which are") -> str:
    """Return the brokers of these ids as the subject of a sentence, with its verb."""
    ids = sorted(names)
    shown = ", ".join(ids[:SHOWN]) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
    return f"broker {shown}{one}" if len(ids) == 1 else f"brokers {shown}{more}"


def tried_of(dials: Mapping[str, DialFacts | None]) -> dict[str, Any]:
    """Return the evidence of attempts to reach brokers."""
    known = sorted((each, dial) for each, dial in dials.items() if dial is not None)
    tried = {each: {"address": dial.address, "why": dial.failure} for each, dial in known[:SHOWN]}
    return {"tried": tried} if tried else {}


@partial(
    BrokerRule,
    severity="critical",
    holds="a broker that owns reliable topics is not registered",
    evidence={
        "brokers": "id → how many topics wait for it",
        "topics": "all of them",
        "tried": "id → {address, why}: the last attempt to reach it. why null: a server answers there",
    },
    unobservable=("whether it comes back, or is gone for good",),
    helps="look at its log if a server answers at its address, else start it again on its data directory, and nothing of "
    "its topics is lost. `brokers.remove` if that is gone for good",
    many="brokers miss another one",
    of_cluster=True,
)
@_of_several
def owner_down(view: BrokerView, cluster: ClusterView) -> Outcome:
    if not cluster.absent:
        return "every owner of a topic is registered"
    topics = sum(cluster.absent.values())
    first, *others = sorted(cluster.absent)[:REMEDIES]
    remedies = [gone_remedy(each, tried=cluster.tried.get(each)) for each in (first, *others)]
    if others:
        remedies = [f"Broker {each}: {told}" for each, told in zip((first, *others), remedies, strict=True)]
    return Finding(
        severity=Severity.CRITICAL,
        summary=f"{counted(topics, 'topic waits', 'topics wait')} for {_brokers(cluster.absent)} not registered. "
        + ". ".join(remedies),
        subject={"broker_id": first},
        evidence={
            "brokers": dict(sorted(cluster.absent.items())[:SHOWN]),
            "topics": topics,
            **tried_of(cluster.tried),
        },
        next=(
            _BROKERS,
            NextCall(
                "brokers.remove",
                {"broker_id": first},
                "its plan shows which topics wait and the loss. Apply it only if the data directory is gone for good",
            ),
        ),
    )


@partial(
    BrokerRule,
    holds="a broker is registered, and did not answer the load manager's last question",
    evidence={"brokers": "id → {why}"},
    unobservable=(
        "whether its clients reach it",
        "whether it reaches this broker",
    ),
    helps="look at the network between the two, and at `server.advertised_url` of the one",
    many="brokers do not reach another one",
)
@_of_several
def broker_unreachable(view: BrokerView, cluster: ClusterView) -> Outcome:
    if not cluster.silent:
        return "every broker that is registered answered its last request"
    return Finding(
        confidence=0.8,
        summary=f"{_brokers(cluster.silent, ' is', ' are')} registered and did not answer this one last time: topics of theirs "
        "cannot be administered from here",
        evidence={"brokers": {each: {"why": why} for each, why in sorted(cluster.silent.items())[:SHOWN]}},
        next=(_BROKERS,),
    )


@partial(
    BrokerRule,
    holds="no broker holds the lead",
    evidence={"since_s": "how long ago this broker noticed", "brokers": "that are registered"},
    unobservable=("why the one that led is gone",),
    helps="wait for the lease (10 s), then look at the brokers' logs",
    many="brokers have no leader",
    of_cluster=True,
)
@_of_several
def no_leader(view: BrokerView, cluster: ClusterView) -> Outcome:
    if cluster.leader is not None:
        return f"broker {cluster.leader} leads"
    if view.metadata_error is not None:
        return "metadata_unreachable explains it"
    return Finding(
        summary="no broker leads the cluster: moves stand still, and topics without an owner wait",
        evidence={"since_s": ago_s(view, cluster.leaderless_since_ms), "brokers": len(cluster.members)},
        next=(NextCall("brokers.leader", {}, "see whether one does by now"), _BROKERS),
    )


@partial(
    BrokerRule,
    severity="info",
    holds="registered brokers run different versions",
    evidence={"versions": "id → version"},
    unobservable=("whether a rolling upgrade is under way",),
    helps="end the upgrade",
    many="brokers run other versions",
    of_cluster=True,
)
@_of_several
def versions_differ(view: BrokerView, cluster: ClusterView) -> Outcome:
    found = {each.broker_id: each.software for each in cluster.members if each.software}
    if len(set(found.values())) < 2:
        return "all brokers with a reported version run the same"
    return Finding(
        severity=Severity.INFO,
        summary=f"brokers run {len(set(found.values()))} versions: {', '.join(sorted(set(found.values())))}",
        evidence={"versions": dict(sorted(found.items())[:SHOWN])},
        next=(_BROKERS,),
    )


@partial(
    BrokerRule,
    holds="a broker is more than 20 % above the mean and uses more than a fifth of its processors, or is beyond 80 % of "
    "its capacity",
    evidence={
        "verdict": "IMBALANCED or OVERLOADED",
        "score": "0 to 100",
        "bottleneck": "the resource",
        "highest, highest_after": "of the busiest broker, now and after the moves",
        "moves": "topic → broker, the first ten",
        "rejected": "why other moves, or any, are not made",
    },
    unobservable=("loads that come and go within an interval",),
    helps="`danube cluster rebalance`. A broker that is overloaded with nothing to move needs another broker",
    many="brokers are too busy beside others",
    of_cluster=True,
)
@_of_several
def cluster_imbalanced(view: BrokerView, cluster: ClusterView) -> Outcome:
    balance = cluster.balance
    if balance is None:
        return "loads are judged by the broker that leads, and not in the mode off"
    if balance.verdict not in (BalanceVerdict.IMBALANCED, BalanceVerdict.OVERLOADED):
        return f"{balance.verdict.value.lower()}: {balance.because}"
    help_there_is = NextCall("cluster.rebalance", {}, f"begin the {len(balance.moves)} moves that even it")
    highest = balance.highest_before
    busy = balance.verdict is BalanceVerdict.OVERLOADED or balance.bottleneck is not Resource.CPU
    if not busy and highest is not None and highest <= MILD_SHARE:
        return f"the busiest broker uses {highest:.0%} of its processors: uneven, and too little to matter"
    return Finding(
        confidence=0.9,
        summary=balance.because,
        evidence={
            "verdict": balance.verdict.value,
            "score": None if balance.score is None else round(balance.score, 1),
            "bottleneck": None if balance.bottleneck is None else balance.bottleneck.value,
            "highest": balance.highest_before,
            "highest_after": balance.highest_after if balance.moves else None,
            "moves": {move.topic: move.target for move in balance.moves[:SHOWN]},
            "rejected": {reason.value: count for reason, count in balance.rejected.items()},
        },
        next=(
            NextCall("cluster.balance", {}, "see loads, and why moves help or not"),
            *([help_there_is] if balance.moves else []),
        ),
    )


@partial(
    BrokerRule,
    holds="a partition carries far more than the other topics",
    evidence={"partitions": "the first ten"},
    unobservable=("which keys its messages have",),
    helps="spread the keys, or give the topic more partitions",
    many="partitions carry too much",
    of_cluster=True,
)
@_of_several
def hot_partition(view: BrokerView, cluster: ClusterView) -> Outcome:
    hot = [] if cluster.balance is None else list(cluster.balance.hot_topics)
    parts = [topic for topic in hot if TopicName.parse(topic).partition is not None]
    if not parts:
        return "no partition carries far more than the other topics, as far as it is judged here"
    return Finding(
        confidence=0.8,
        summary=f"partition {parts[0]} carries far more than other topics: no move makes it lighter, keys that spread do",
        evidence={"partitions": parts[:SHOWN]},
        next=(NextCall("topics.describe", {"topic": parts[0]}, "see its traffic"),),
    )


@partial(
    BrokerRule,
    holds="a topic has been on its way for three minutes",
    evidence={
        "topics": "topic → stage, the first ten",
        "source, target": "of the oldest",
        "since_s": "how long it is on its way",
    },
    unobservable=("the work of that broker: see its log",),
    helps="look at the log of the broker that it waits for. Before the seal the owner still serves it",
    many="brokers see moves that hang",
    of_cluster=True,
)
@_of_several
def move_hangs(view: BrokerView, cluster: ClusterView) -> Outcome:
    hanging = sorted(
        (move for move in cluster.moves if view.now_ms - move.begun_at_ms >= HANGS_MS),
        key=lambda move: (move.begun_at_ms, move.topic),
    )
    if not hanging:
        moving = counted(len(cluster.moves), "topic is on its way", "topics are on their way")
        return f"{moving}, none for longer than {HANGS_MS // 1000} s"
    first = hanging[0]
    waits_for = first.source if first.stage == "moving" else first.target
    return Finding(
        summary=counted(len(hanging), "topic is on its way", "topics are on their way")
        + f" for too long; the first, {first.topic}, is {first.stage} and waits "
        f"for broker {waits_for}",
        evidence={
            "topics": {move.topic: move.stage for move in hanging[:SHOWN]},
            "source": first.source,
            "target": first.target,
            "since_s": ago_s(view, first.begun_at_ms),
        },
        next=(
            _BROKERS,
            NextCall("brokers.logs", {"broker_id": waits_for, "level": "warning"}, "see the failures"),
        ),
    )


@partial(
    BrokerRule,
    holds="a move that began in the last hour was cancelled, and its topic has not moved since",
    evidence={
        "topics": "topic → why, the first ten",
        "target": "of the latest",
        "code": "of the latest's error",
        "since_s": "how long ago that one began",
    },
    unobservable=("whether the cause is gone by now",),
    helps="mend the cause in `why`, then move the topic again. Its owner serves it until then",
    many="brokers see cancelled moves",
    of_cluster=True,
)
@_of_several
def move_cancelled(view: BrokerView, cluster: ClusterView) -> Outcome:
    cancelled = sorted(
        (move for move in cluster.failed_moves if view.now_ms - move.begun_at_ms < CANCELLED_MS),
        key=lambda move: (-move.begun_at_ms, move.topic),
    )
    if not cancelled:
        return "no move of the last hour was cancelled"
    latest = cancelled[0]
    return Finding(
        summary=counted(len(cancelled), "topic was not moved", "topics were not moved")
        + f", and their owners serve them on; the latest, {latest.topic} to broker {latest.target}: {latest.why}",
        evidence={
            "topics": {move.topic: move.why for move in cancelled[:SHOWN]},
            "target": latest.target,
            "code": latest.code,
            "since_s": ago_s(view, latest.begun_at_ms),
        },
        next=(
            _BROKERS,
            NextCall(
                "brokers.logs", {"broker_id": latest.target, "level": "warning"}, "see the log of the target"
            ),
            NextCall("topics.move", {"topic": latest.topic}, "move it again, to another broker"),
        ),
    )


@partial(
    BrokerRule,
    severity="info",
    holds="other brokers take over topics of one that is lost",
    evidence={"brokers": "lost broker → topics that have no new owner yet"},
    unobservable=("how long it takes: a chain is replayed before its first topic",),
    helps="wait. `brokers.list` shows the members",
    many="brokers take topics over",
    of_cluster=True,
)
@_of_several
def taking_over(view: BrokerView, cluster: ClusterView) -> Outcome:
    under_way = {broker: each.topics for broker, each in cluster.taken_over.items() if each.why is None}
    if not under_way:
        return "no topics of a lost broker are taken over, as far as this broker leads"
    return Finding(
        severity=Severity.INFO,
        summary=f"others take over {counted(sum(under_way.values()), 'topic')} of {_brokers(under_way)} lost",
        evidence={"brokers": dict(sorted(under_way.items())[:SHOWN])},
        next=(_BROKERS,),
    )


@partial(
    BrokerRule,
    holds="the leader cannot take over topics of a lost broker that are to be taken over",
    evidence={"brokers": "lost broker → why", "topics": "of all of them"},
    unobservable=("whether the lost broker comes back",),
    helps="mend the cause in `why`: the leader tries again every second. Or start the lost broker on its data directory. If the "
    "copy of its journal is damaged, restore the object from a backup, or give the copy up: `topics.take_over` of a topic, or "
    "`brokers.remove`, whose plans show the loss",
    many="brokers cannot take topics over",
    of_cluster=True,
)
@_of_several
def take_over_impossible(view: BrokerView, cluster: ClusterView) -> Outcome:
    held_up = {broker: each for broker, each in cluster.taken_over.items() if each.why is not None}
    if not held_up:
        return "nothing holds up a take-over, as far as this broker leads"
    first = min(held_up)
    topics = sum(each.topics for each in held_up.values())
    damaged = next((each.damaged for _, each in sorted(held_up.items()) if each.damaged), None)
    return Finding(
        summary=f"{counted(topics, 'topic')} of {_brokers(held_up)} lost, cannot be taken over: "
        f"{held_up[first].why}",
        evidence={
            "brokers": {broker: held_up[broker].why for broker in sorted(held_up)[:SHOWN]},
            "topics": topics,
        },
        next=(_BROKERS,)
        if damaged is None
        else (
            NextCall("topics.take_over", {"topic": damaged, "plan_only": True}, "its plan shows the loss"),
            _BROKERS,
        ),
    )


@partial(
    BrokerRule,
    holds="the copy of the journal lacks records that are older than 5 s, or the store refused the last piece",
    evidence={
        "behind_s": "age of the oldest record that is not copied",
        "behind_bytes": "not copied",
        "error": "the store's last",
        "waiting": "stored topics that show nothing new since the broker started without the store",
    },
    unobservable=("whether the store recovers",),
    helps="bring the object store back: copying continues without help. If the broker is lost before that, these messages are "
    "missing where its topics are taken over",
    many="brokers do not copy their journal in time",
)
@_of_several
def copy_behind(view: BrokerView, cluster: ClusterView) -> Outcome:
    copy = cluster.copy
    if copy is None:
        return "the journal is not copied"
    if copy.behind_s < COPY_LATE_S and copy.error is None:
        return f"the copy of the journal lacks nothing that is {COPY_LATE_S:.0f} s old"
    lacks = f"{copy.behind_bytes} bytes of the journal are not in the object store, the oldest for {copy.behind_s:.0f} s"
    if copy.waiting:
        waiting = counted(copy.waiting, "stored topic waits", "stored topics wait")
        lacks = f"the broker started without the object store, and {waiting} for it"
    return Finding(
        summary=lacks
        if copy.error is None
        else f"the object store refused the last piece of the journal ({copy.error}); {lacks}",
        evidence={
            "behind_s": round(copy.behind_s, 1),
            "behind_bytes": copy.behind_bytes,
            "error": copy.error,
            "waiting": copy.waiting,
        },
        next=(_BROKERS,),
    )


@partial(
    BrokerRule,
    severity="critical",
    holds="other brokers took topics of this one over while it ran: it acknowledges nothing more, and ends",
    evidence={"error": "as it was met"},
    unobservable=("why its lease ended: it stood still, or did not reach the metadata store",),
    helps="start it again: it serves its remaining topics, and gives up the other topics",
    many="brokers were taken over while they ran",
)
@_of_several
def fence_met(view: BrokerView, cluster: ClusterView) -> Outcome:
    if cluster.copy is None or cluster.copy.fence is None:
        return "no other broker has continued the copy of the journal"
    return Finding(
        severity=Severity.CRITICAL,
        summary="other brokers took topics of this one over while it ran: it acknowledges nothing more, and ends",
        evidence={"error": cluster.copy.fence},
        next=(_BROKERS,),
    )


@partial(
    BrokerRule,
    holds="the broker is being unloaded, and no other takes topics, or it has taken three minutes, or one "
    "minute in which no topic made progress",
    evidence={"left": "topics", "takers": "other brokers that take topics", "since_s": "when it began"},
    unobservable=("when another broker takes topics again",),
    helps="start or activate another broker, or `brokers.activate` this one",
    many="brokers cannot end their drain",
)
@_of_several
def drain_stuck(view: BrokerView, cluster: ClusterView) -> Outcome:
    if cluster.draining_since_ms is None or not cluster.left:
        return "no drain with topics left is under way here"
    since_s = ago_s(view, cluster.draining_since_ms)
    moved_ms = max(cluster.draining_since_ms, cluster.drain_moved_ms or 0)
    is_still = view.now_ms - moved_ms >= STILL_MS
    if cluster.takers and not is_still and view.now_ms - cluster.draining_since_ms < HANGS_MS:
        left = counted(cluster.left, "topic is still to leave", "topics are still to leave")
        return f"{left}, and {counted(cluster.takers, 'broker takes', 'brokers take')} them"
    why = (
        "no other broker takes topics"
        if not cluster.takers
        else f"no topic has made progress for {STILL_MS // 1000} s and more"
        if is_still
        else f"it has gone on for {HANGS_MS // 1000} s and more"
    )
    return Finding(
        confidence=1.0 if not cluster.takers else 0.6,
        summary=f"the broker is to hand over {counted(cluster.left, 'topic')}, and {why}",
        evidence={"left": cluster.left, "takers": cluster.takers, "since_s": since_s},
        next=(
            _BROKERS,
            NextCall(
                "brokers.activate",
                {"broker_id": view.broker_id},
                "give the drain up: the broker takes topics again",
            ),
        ),
    )


@partial(
    BrokerRule,
    severity="critical",
    holds="the object store of this broker does not hold the cluster's name",
    evidence={"error": "the difference", "store": "its URL"},
    unobservable=("which of the two settings is meant",),
    helps="give all brokers the same `tier.url`",
    many="brokers have an object store of their own",
)
@_of_several
def store_not_shared(view: BrokerView, cluster: ClusterView) -> Outcome:
    if cluster.store_refused is None:
        return "the object store is that of the cluster"
    return Finding(
        severity=Severity.CRITICAL,
        summary="the broker's object store is not the cluster's: it tiers nothing, and no topic can come to it or leave it",
        evidence={"error": cluster.store_refused, "store": view.store_url},
        next=(
            NextCall("brokers.config", {"broker_id": view.broker_id}, "see tier.url, and where it was set"),
        ),
    )
