"""Read whether a broker may stop, and what becomes of its topics if it does."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field
from pydanube_core.facts import StopFacts, TopicAtStop
from pydanube_core.units import counted

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.models import Effect, Place, Result
from pydanube_admin.engine.operation import operation
from pydanube_admin.operations.brokers import BrokerRequest, this_broker

MOST_NAMED: Final = 100  # topics in each list: ten thousand names help no reader


class MayStop(Result):
    """The effect of a stop of the broker now."""

    broker_id: str
    may_stop: bool
    because: str
    would_wait: list[str]  # topics without an owner until the broker is back: the first hundred
    would_be_taken_over: list[str]  # topics that another broker would serve: the first hundred
    not_named: Annotated[int, Field(description="Topics behind the first hundred of each list")]
    # Messages that the broker's disk alone has: lost if it does not come back with it. null: there are none
    would_lose: (
        dict[str, int | None] | None
    )  # {topics, messages, ms}: ms is the age of the oldest, null if unknown


@operation(
    "brokers.may_stop",
    effect=Effect.READ,
    at=Place.BROKER,
    tool="may_stop_broker",
    title="May a broker stop",
    summary="Show what happens to a broker's topics if it stops now.",
    examples=(Example({}, "the one that answers"),),
)
async def may_stop_broker(context: Context, request: BrokerRequest) -> MayStop:
    await this_broker(context, request.broker_id)
    facts = await context.port.at_stop()
    return _answer(facts, context.now_ms())


def _answer(facts: StopFacts, now_ms: int) -> MayStop:
    waiting = sorted(each.topic for each in facts.topics if each.waits)
    taken = sorted(each.topic for each in facts.topics if not each.waits)
    lost = [each for each in facts.topics if each.waits and each.messages]
    return MayStop(
        broker_id=facts.broker_id,
        may_stop=not waiting,
        because=_because(facts, len(waiting), len(taken)),
        would_wait=waiting[:MOST_NAMED],
        would_be_taken_over=taken[:MOST_NAMED],
        not_named=sum(max(0, len(each) - MOST_NAMED) for each in (waiting, taken)),
        would_lose=_would_lose(lost, now_ms) if lost else None,
    )


def _would_lose(lost: list[TopicAtStop], now_ms: int) -> dict[str, int | None]:
    times = [each.oldest_ms for each in lost if each.oldest_ms is not None]
    return {
        "topics": len(lost),
        "messages": sum(each.messages for each in lost),
        "ms": max(0, now_ms - min(times)) if times else None,
    }


def _because(facts: StopFacts, waiting: int, taken: int) -> str:
    if not waiting:
        if not taken:
            return "it serves no topics"
        return f"another broker serves its {counted(taken, 'topic')} within seconds"
    wait = f"{counted(waiting, 'topic')} would wait until it is back"
    if not facts.keeps_disk:
        wait = f"{counted(waiting, 'topic')} would end with its process, because it keeps them in memory"
    if facts.state == "draining":
        return f"{wait}: it is handing its topics over. Try again when brokers.list shows drained"
    if not facts.others:
        return f"{wait}: no other broker takes topics"
    return f"{wait}: brokers.unload hands them to other brokers first"
