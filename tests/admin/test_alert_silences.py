"""A silenced alert stays listed with who knows of it and until when; it is recorded, it ends, and one that does not cover it does nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.context import system_now_ms as now_ms
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Finding, Severity
from pydanube_core.diagnosis.silences import Silence, silence_of
from pydanube_core.errors import ClusterError, MetadataUnavailable

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

SUBJECT = {"topic": "/default/orders", "subscription": "billing"}
ALERT = Alert(
    alert_id="a",
    rule="no_consumers",
    subject=SUBJECT,
    severity=Severity.WARNING,
    opened_at_ms=1,
    closed_at_ms=None,
    finding=Finding(summary="", evidence={}, rule="no_consumers"),
)
WHY = "the team of orders deploys"


@pytest.fixture
async def cluster(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Administered]:
    async with administered() as cluster:

        async def shown(self: object) -> tuple[list[Alert], list[Alert]]:
            return [ALERT, replace(ALERT, alert_id="b", rule="consumer_dead")], []

        monkeypatch.setattr(type(cluster.broker.port), "alerts", shown)
        yield cluster


async def silenced(cluster: Administered) -> dict[str, Any]:
    return {each["alert_id"]: each["silenced"] for each in (await cluster("alerts.list"))["items"]}


async def test_a_silenced_alert_stays_listed_with_who_knows_of_it(cluster: Administered) -> None:
    assert await silenced(cluster) == {"a": None, "b": None}
    done = await cluster(
        "alerts.silence", rule="no_consumers", subject={"topic": "orders"}, until="2h", reason=WHY
    )
    assert done["subject"] == {"topic": "/default/orders"}
    shown = await silenced(cluster)
    assert shown["b"] is None
    assert (shown["a"]["until"], shown["a"]["by"]) == (done["silenced_until"], done["by"])
    assert shown["a"]["untrusted"] == {"reason": WHY}
    audited = (await cluster("audit.query", operation="alerts.silence"))["items"]
    assert {each["decision"] for each in audited} == {"allowed"}
    ended = await cluster(
        "alerts.silence", rule="no_consumers", subject={"topic": "orders"}, until="0s", reason=WHY
    )
    assert ended["silenced_until"] is None
    assert await silenced(cluster) == {"a": None, "b": None}


async def test_a_silence_of_a_length_can_be_planned_and_applied_later(cluster: Administered) -> None:
    """Its end moves with the clock, which is no reason to call the plan stale."""
    ahead_ms = 0
    core = AdminCore(cluster.broker.port, now_ms=lambda: now_ms() + ahead_ms)
    later = Administered(cluster.broker, core)
    try:
        asked = {"rule": "no_consumers", "subject": {"topic": "orders"}, "until": "2h", "reason": WHY}
        plan = await later("plans.create", operation="alerts.silence", arguments=asked)
        other = await later("plans.create", operation="alerts.silence", arguments=asked)
        ahead_ms = 60_000
        done = (await later("plans.apply", plan_token=plan["plan_token"]))["result"]
        assert done["silenced_until"] > plan["diff"][0]["after"]["silenced_until"]
        assert (await later.refused("plans.apply", plan_token=other["plan_token"])).code == "PLAN_STALE"
    finally:
        await core.aclose()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rule": "no_such_rule"}, "rule"),
        ({"until": "2020-01-01T00:00:00Z"}, "until"),
        ({"reason": "two\nlines"}, "reason"),
        ({"subject": {"topic": "/a/b/c/d"}}, "subject"),
    ],
)
async def test_what_cannot_be_silenced_is_refused_with_the_field(
    cluster: Administered, changes: dict[str, Any], field: str
) -> None:
    asked = {"rule": "no_consumers", "subject": {"topic": "orders"}, "until": "2h", "reason": WHY} | changes
    refused = await cluster.refused("alerts.silence", **asked)
    assert isinstance(refused, ClusterError)
    assert refused.details["field"] == field
    assert await silenced(cluster) == {"a": None, "b": None}


def test_a_silence_covers_what_has_all_that_it_names_until_its_time() -> None:
    silence = Silence(
        rule="no_consumers", subject={"topic": "/default/orders"}, until_ms=100, reason="", by="ann", at_ms=1
    )
    assert silence_of(ALERT, [silence], 99) == silence
    assert silence_of(ALERT, [silence], 100) is None
    assert silence_of(replace(ALERT, rule="consumer_dead"), [silence], 99) is None
    assert silence_of(ALERT, [replace(silence, subject={"topic": "/default/other"})], 99) is None
    longer = replace(silence, subject={}, until_ms=200)
    assert silence_of(ALERT, [silence, longer], 99) == longer, "every alert of the rule"
    assert Silence.from_bytes(silence.to_bytes()) == silence
    assert len({silence.key, longer.key, replace(silence, by="bob").key}) == 2
    assert now_ms() > 0


async def test_alerts_are_listed_while_the_metadata_store_does_not_answer(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise MetadataUnavailable("etcd does not answer")

    port = cluster.broker.port
    await cluster("alerts.silence", rule="no_consumers", subject=SUBJECT, until="2h", reason=WHY)
    before = await silenced(cluster)
    monkeypatch.setattr(cluster.broker.admin_state, "list", away)
    assert await silenced(cluster) == before, "as last read"

    monkeypatch.setattr(port, "_silences", None)  # the broker has just started
    items = (await cluster("alerts.list"))["items"]
    assert {each["silenced"] for each in items} == {None}
    assert {each["silenced_reason"] for each in items} == {"the metadata store does not answer"}

    refused = await cluster.refused(
        "alerts.silence", rule="no_consumers", subject=SUBJECT, until="0s", reason=WHY
    )
    assert refused.code == "METADATA_UNAVAILABLE", "a change is not made from what was read earlier"


@pytest.mark.parametrize("renewed", ["before it is read", "after it is read"])
async def test_a_silence_that_was_renewed_elsewhere_is_not_deleted_as_over(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch, renewed: str
) -> None:
    port = cluster.broker.port
    over = Silence(rule="consumer_dead", subject={}, until_ms=1, reason=WHY, by="ann", at_ms=0)
    again = replace(over, until_ms=now_ms() + 3_600_000)
    await port.write_state({over.key: over.to_bytes()})
    read = type(port).list_state

    async def as_last_read(self: object) -> list[Silence]:
        return [over]

    async def then_renewed(self: Any, *of: Any, **more: Any) -> Any:
        found = await read(self, *of, **more)
        await port.write_state({again.key: again.to_bytes()})
        return found

    monkeypatch.setattr(type(port), "silences", as_last_read)
    if renewed == "before it is read":
        await port.write_state({again.key: again.to_bytes()})
    else:
        monkeypatch.setattr(type(port), "list_state", then_renewed)
    await cluster("alerts.silence", rule="no_consumers", subject=SUBJECT, until="2h", reason=WHY)
    monkeypatch.undo()
    stored = {item.key: item.value for item in await port.list_state("silences/")}
    assert stored[again.key] == again.to_bytes()
    assert len(stored) == 2
