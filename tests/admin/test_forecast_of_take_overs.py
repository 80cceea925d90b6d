"""Plans of `topics.take_over` and `brokers.remove` say where topics continue: without a gap only if nothing can be missing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydanube_admin.engine.forecast import Forecast, is_stale
from pydanube_admin.engine.models import TopicRequest
from pydanube_admin.operations.broker_removal import forecast_remove, remove_broker
from pydanube_admin.operations.brokers import BrokerChangeRequest
from pydanube_admin.operations.topic_take_over import forecast_take_over, lost_messages, take_over_topic
from pydanube_admin.registry import OPERATIONS
from pydanube_core.facts import RemovalFacts, TakeOverFacts


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("is_whole", "is_mirror", "continued", "later"),
    [
        (True, False, {"goes_on_at": 15}, "without a gap"),
        (False, False, {"goes_on_above": 18 + (1 << 32)}, "behind the end of the copy are missing"),
        (
            False,
            True,
            {"goes_on_at": 15},
            "copies missing messages again, as far as the source still has them",
        ),
    ],
)
async def test_topic_continues_without_a_gap_only_where_the_copy_is_whole(
    is_whole: bool, is_mirror: bool, continued: dict[str, int], later: str
) -> None:
    facts = TakeOverFacts(
        topic="/default/t",
        broker_id="7",
        copied_to=15,
        copied_at_ms=1,
        reported_to=18,
        reported_at_ms=2,
        missing_messages=0 if is_whole else 3,
        subscriptions=1,
        is_whole=is_whole,
        is_mirror=is_mirror,
    )
    context: Any = SimpleNamespace(port=SimpleNamespace(take_over_facts=AsyncMock(return_value=[facts])))
    found = await forecast_take_over(context, TopicRequest(topic="t"))
    assert found.diff[0]["after"] == {"owner": "another broker", **continued}
    assert found.later is not None
    assert later in found.later
    assert ("without a gap" in found.later) is is_whole


def left(
    topic: str, *, copied_to: int, reported_to: int | None, missing: int = 0, is_whole: bool = False
) -> TakeOverFacts:
    return TakeOverFacts(
        topic=topic,
        broker_id="7",
        copied_to=copied_to,
        copied_at_ms=None,
        reported_to=reported_to,
        reported_at_ms=None if reported_to is None else 2,
        missing_messages=missing,
        subscriptions=1,
        is_whole=is_whole,
    )


@pytest.mark.anyio
async def test_removal_counts_as_lost_only_what_neither_the_store_nor_the_copied_journal_has() -> None:
    topics = (
        left("/default/behind", copied_to=15, reported_to=18, missing=3),
        left("/default/ahead", copied_to=9, reported_to=5),
        left("/default/unreported", copied_to=4, reported_to=None),
        left("/default/whole", copied_to=7, reported_to=6, is_whole=True),
    )
    facts = RemovalFacts(broker_id="7", is_removed=False, said_at_ms=2, topics=topics, is_copied=True)
    context: Any = SimpleNamespace(port=SimpleNamespace(removal=AsyncMock(return_value=facts)))
    found = await forecast_remove(context, BrokerChangeRequest(broker_id="7"))
    assert found.blast_radius["messages"] is None, "one topic was never reported"
    assert found.pinned is not None
    assert found.pinned["lost"] == 3, "at least"
    plan = {each["path"]: (each["before"], each["after"]) for each in found.diff[1:]}
    after = {"owner": "another broker"}
    assert plan == {
        "topics/default/behind": (
            {"stored_to": 15, "known_to": 18},
            {**after, "goes_on_above": 18 + (1 << 32)},
        ),
        "topics/default/ahead": ({"stored_to": 9, "known_to": 9}, {**after, "goes_on_above": 9 + (1 << 32)}),
        "topics/default/unreported": (
            {"stored_to": 4, "known_to": None},
            {**after, "goes_on_above": 4 + (1 << 32)},
        ),
        "topics/default/whole": ({"stored_to": 7, "known_to": 7}, {**after, "goes_on_at": 7}),
    }
    assert found.later is not None
    assert "behind the object store and the copy of its journal there are lost" in found.later
    assert "Of 1 topic it reported nothing" in found.later
    assert "At least 3 messages would be lost" in found.later


async def removal_of(
    *topics: TakeOverFacts, said_at_ms: int | None, copy_error: str | None = None
) -> Forecast:
    """Return the plan of a removal of broker 7 with these topics."""
    facts = RemovalFacts(
        broker_id="7", is_removed=False, said_at_ms=said_at_ms, topics=topics, copy_error=copy_error
    )
    context: Any = SimpleNamespace(port=SimpleNamespace(removal=AsyncMock(return_value=facts)))
    return await forecast_remove(context, BrokerChangeRequest(broker_id="7"))


@pytest.mark.anyio
async def test_a_loss_that_cannot_be_counted_is_unknown_and_not_zero() -> None:
    topic = left("/default/t", copied_to=4, reported_to=None)
    found = await removal_of(topic, said_at_ms=None)
    assert found.blast_radius["messages"] is None
    assert found.later is not None
    assert "the loss cannot be counted" in found.later
    context: Any = SimpleNamespace(port=SimpleNamespace(take_over_facts=AsyncMock(return_value=[topic])))
    taken = await forecast_take_over(context, TopicRequest(topic="t"))
    assert taken.blast_radius["messages"] is None


@pytest.mark.anyio
async def test_messages_of_mirrors_are_not_lost_and_whole_topics_need_no_report() -> None:
    mirror = replace(left("/default/mirror", copied_to=4, reported_to=9, missing=5), is_mirror=True)
    unreported = replace(left("/default/new", copied_to=4, reported_to=None), is_mirror=True)
    whole = left("/default/whole", copied_to=4, reported_to=None, is_whole=True)
    found = await removal_of(mirror, unreported, whole, said_at_ms=2)
    assert found.blast_radius["messages"] == 0
    assert found.later is not None
    assert "it reported nothing" not in found.later
    found = await removal_of(whole, said_at_ms=None)
    assert found.blast_radius["messages"] == 0
    assert found.later is not None
    assert "cannot be counted" not in found.later


@pytest.mark.anyio
async def test_a_topic_that_was_reported_empty_is_known_to_the_end_of_its_stored_messages() -> None:
    found = await removal_of(left("/default/t", copied_to=9, reported_to=0), said_at_ms=2)
    assert found.diff[1]["before"] == {"stored_to": 9, "known_to": 9}


@pytest.mark.anyio
async def test_a_copy_that_cannot_be_read_is_named_with_its_error() -> None:
    topic = left("/default/t", copied_to=9, reported_to=12, missing=3)
    found = await removal_of(topic, said_at_ms=2, copy_error="piece 4 is damaged")
    assert found.later is not None
    assert "could not be read for this plan (piece 4 is damaged)" in found.later
    assert "and the copy of its journal" not in found.later


@pytest.mark.parametrize("operation", ["brokers.remove", "topics.take_over"])
def test_plans_of_losses_may_take_as_long_as_the_replay_of_a_chain(operation: str) -> None:
    """With the default of 10 s a call would end before its plan, and its repetition would begin again."""
    assert OPERATIONS[operation].long_running


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reported_to", "missing", "lost"), [(12, 3, 3), (None, 0, None)], ids=["reported", "never reported"]
)
async def test_a_take_over_names_a_damaged_copy_and_gives_up_only_the_planned_one(
    reported_to: int | None, missing: int, lost: int | None
) -> None:
    damage = "piece 4 is damaged"
    topic = left("/default/t", copied_to=9, reported_to=reported_to, missing=missing)
    facts = [replace(topic, copy_error=damage), left("/default/u", copied_to=3, reported_to=3, is_whole=True)]
    port = SimpleNamespace(take_over_facts=AsyncMock(return_value=facts), take_over=AsyncMock())
    context: Any = SimpleNamespace(port=port, pinned=None)
    plan = await forecast_take_over(context, TopicRequest(topic="t"))
    assert plan.later is not None
    assert f"is damaged ({damage}). 1 topic would continue without it" in plan.later
    assert plan.blast_radius["messages"] == lost
    assert plan.diff[0]["before"]["may_be_missing"]["messages"] == lost
    context.pinned = plan.pinned
    result = await take_over_topic(context, TopicRequest(topic="t"))
    assert result.may_be_missing["messages"] == lost
    port.take_over.assert_awaited_once_with("t", without_copy=["/default/t"])
    port.take_over_facts.return_value = [replace(each, copy_error=None) for each in facts]
    later = await forecast_take_over(context, TopicRequest(topic="t"))
    assert is_stale(plan.revision, later), "a copy that can be read now is not given up"


@pytest.mark.anyio
async def test_a_loss_of_which_a_part_was_never_reported_is_not_zero() -> None:
    facts = [
        left("/default/whole-as-reported", copied_to=9, reported_to=9),
        left("/default/unreported", copied_to=4, reported_to=None),
    ]
    assert lost_messages(facts) is None


@pytest.mark.anyio
async def test_a_removal_gives_a_copy_up_only_if_its_plan_has_found_it_damaged() -> None:
    topic = left("/default/t", copied_to=9, reported_to=12, missing=3)
    removed = AsyncMock()
    found = {}
    for is_damaged in (False, True):
        facts = RemovalFacts(
            broker_id="7",
            is_removed=False,
            said_at_ms=2,
            topics=(topic,),
            copy_error="e",
            is_damaged=is_damaged,
        )
        port = SimpleNamespace(removal=AsyncMock(return_value=facts), remove_broker=removed)
        context: Any = SimpleNamespace(port=port, pinned=None)
        found[is_damaged] = await forecast_remove(context, BrokerChangeRequest(broker_id="7"))
        context.pinned = found[is_damaged].pinned
        await remove_broker(context, BrokerChangeRequest(broker_id="7"))
        removed.assert_awaited_with("7", without_copy=is_damaged)
    assert is_stale(found[False].revision, found[True])
    assert "the removal gives it up" in (found[True].later or "")
    assert "the removal gives it up" not in (found[False].later or "")


@pytest.mark.anyio
async def test_a_loss_of_which_a_part_cannot_be_counted_passes_no_quota() -> None:
    unreported = [left(f"/default/{n}", copied_to=4, reported_to=None) for n in range(99)]
    one = left("/default/t", copied_to=9, reported_to=10, missing=1)
    found = await removal_of(one, *unreported, said_at_ms=2)
    assert found.blast_radius["messages"] is None
    facts = AsyncMock(return_value=[one, *unreported])
    context: Any = SimpleNamespace(port=SimpleNamespace(take_over_facts=facts))
    taken = await forecast_take_over(context, TopicRequest(topic="t"))
    assert taken.blast_radius["messages"] is None
    assert taken.pinned is not None
    assert taken.pinned["missing"]["messages"] == 1, "at least"
    for plan in (found, taken):
        assert plan.later is not None
        assert "At least 1 message would be lost" in plan.later
    counted = await removal_of(one, said_at_ms=2)
    assert counted.blast_radius["messages"] == 1
    assert "At least" not in (counted.later or "")
