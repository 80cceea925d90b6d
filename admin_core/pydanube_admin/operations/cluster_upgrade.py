"""Read whether the brokers can be replaced by a newer build now, one after another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydanube_core.calling_program import package_version
from pydanube_core.diagnosis.findings import Severity
from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import BrokerFacts, StopFacts
from pydanube_core.spelling import shown
from pydanube_core.units import counted

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Request, Result
from pydanube_admin.engine.operation import next_call, operation

ROOM: Final = 2  # times the guard: an upgrade may write the metadata anew, and messages go on coming
NAMED: Final = 10  # brokers or rules in a sentence
_VERSION: Final = re.compile(
    r"(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5}))?(?:(?:[a-z+-]|\.dev|\.post)[0-9A-Za-z.+-]{0,40})?\Z"
)


class CheckUpgradeRequest(Request):
    to_version: Annotated[
        str | None, Field(max_length=64, description="Such as 0.2.0. Default: any newer one")
    ] = None


class UpgradeCheck(Result):
    check: str
    ok: bool
    blocks: bool  # do not begin before it is ok. false: begin, and mind the sentence
    because: str
    next: list[dict[str, Any]]


class UpgradeChecks(Result):
    verdict: Literal["go", "no_go", "conditional"]
    checks: list[UpgradeCheck]


@operation(
    "cluster.upgrade_check",
    effect=Effect.READ,
    tool="check_upgrade",
    title="Check before an upgrade",
    summary="Check whether brokers can be upgraded now, one by one: go, no-go, or go with advice.",
    examples=(Example({}, "before a newer build"), Example({"to_version": "9.0.0"}, "one of them")),
)
async def check_upgrade(context: Context, request: CheckUpgradeRequest) -> UpgradeChecks:
    wanted = None if request.to_version is None else _parsed(request.to_version)
    statuses = sorted(await context.port.statuses(), key=lambda one: one.broker_id)
    members = {each.broker_id for each in await context.port.members()}
    missed = await context.port.missed()
    stops = await context.port.stops()
    diagnosis = await context.port.diagnose_cluster()
    silent = sorted((members | missed.keys()) - {each.broker_id for each in statuses})
    critical = sorted({each.rule for each in diagnosis.findings if each.severity is Severity.CRITICAL})
    warned = sorted({each.rule for each in diagnosis.findings if each.severity is Severity.WARNING})
    checks = [
        _check(
            "brokers_answer",
            f"brokers {_names(silent)} do not answer: bring them back, or remove them" if silent else None,
            f"{counted(len(statuses), 'broker')} answered",
            next_call("brokers.list", {}, "shows which are gone"),
        ),
        _check(
            "brokers_ready",
            _unready(statuses),
            "all of them are ready and take publishes",
            next_call("brokers.status", {}, "has the reason if one is not"),
        ),
        *_versions(statuses, request.to_version, wanted),
        _check(
            "no_critical_finding",
            f"critical findings are open: {_names(critical)}" if critical else None,
            "no critical finding is open",
            next_call("diagnose.cluster", {}, "shows each with its remedy"),
        ),
        _check(
            "no_warning",
            f"warnings are open: {_names(warned)}. Look at them first, so that they are not attributed to the upgrade"
            if warned
            else None,
            "no warning is open",
            next_call("diagnose.cluster", {}, "shows each with its remedy"),
            blocks=False,
        ),
        _check(
            "disk_room",
            _narrow(statuses),
            f"every data disk has {ROOM} times its guard free",
            next_call("topics.list", {"sort": "-bytes", "top": 10}, "shows the topics that hold most"),
        ),
        _may_stop(stops),
    ]
    failed = [each for each in checks if not each.ok]
    blocked = any(each.blocks for each in failed)
    return UpgradeChecks(verdict="no_go" if blocked else "conditional" if failed else "go", checks=checks)


def _check(
    check: str, fault: str | None, fine: str, remedy: dict[str, Any], *, blocks: bool = True
) -> UpgradeCheck:
    if fault is None:
        return UpgradeCheck(check=check, ok=True, blocks=blocks, because=fine, next=[])
    return UpgradeCheck(check=check, ok=False, blocks=blocks, because=fault, next=[remedy])


def _versions(
    statuses: Sequence[BrokerFacts], named: str | None, wanted: tuple[int, ...] | None
) -> tuple[UpgradeCheck, UpgradeCheck]:
    """Check that all run one build, and that the wanted one is newer.

    Formats of metadata and objects are raised once every broker runs a build that knows the newer one, and then there
    is no way back. So an upgrade under way is finished before the next one begins.
    """
    versions = sorted({each.version for each in statuses})
    shows = next_call("brokers.list", {}, "shows the version of each")
    one_build = _check(
        "one_version",
        f"brokers run {_names(versions)}: finish that upgrade first, because formats are raised only after it"
        if len(versions) > 1
        else None,
        f"all brokers run {versions[0]}, so no format waits for an older build",
        shows,
    )
    older = [each for each in versions if wanted is not None and _known(each) >= wanted]
    newer = _check(
        "newer_version",
        f"{named} is not newer than {_names(older)}: an older build does not read the records of a newer one"
        if older
        else None,
        "to_version was not given: a build must not be older than the one before"
        if named is None
        else f"{named} is newer",
        shows,
    )
    return one_build, newer


def _known(version: str) -> tuple[int, ...]:
    try:
        return _parsed(version)
    except InvalidArgument:
        return (0, 0, 0)  # a source tree that is not installed


def _parsed(version: str) -> tuple[int, ...]:
    match = _VERSION.match(version.removeprefix("v"))
    if match is None:
        raise InvalidArgument(
            f"to_version {shown(version)!r} is no version: write numbers with dots, such as {package_version()}",
            field="to_version",
            value=shown(version),
        )
    return tuple(int(part or 0) for part in match.groups())


def _unready(statuses: Sequence[BrokerFacts]) -> str | None:
    bad = [each.broker_id for each in statuses if each.read_only or not each.ready]
    return f"brokers {_names(bad)} are not ready, or take no publishes" if bad else None


def _narrow(statuses: Sequence[BrokerFacts]) -> str | None:
    bad = []
    for each in statuses:
        free, guard = each.disk.get("free_bytes"), each.disk.get("guard_bytes")
        if free is not None and guard is not None and free < ROOM * guard:
            bad.append(each.broker_id)
    return (
        f"the data disk of brokers {_names(bad)} has less than {ROOM} times its guard free" if bad else None
    )


def _may_stop(stops: Sequence[StopFacts]) -> UpgradeCheck:
    waiting = {each.broker_id: sum(topic.waits for topic in each.topics) for each in stops}
    bad = sorted(broker for broker, topics in waiting.items() if topics)
    alone = len(stops) == 1
    how = (
        "publishes and deliveries pause during its restart"
        if alone
        else "unload each before its restart, and activate it after"
    )
    remedy = (
        next_call("brokers.may_stop", {}, "names the topics")
        if alone or not bad
        else next_call("brokers.unload", {"broker_id": bad[0]}, "hands its topics to others first")
    )
    fault = f"topics of brokers {_names(bad)} would wait for a restart: {how}" if bad else None
    return _check("may_stop", fault, "no topic waits while a broker restarts", remedy, blocks=False)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
