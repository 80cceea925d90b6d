"""A consumer's stream while its topic goes to another broker; both brokers are played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from pydanube.message import Lane
from pydanube.options import ReceiverOptions
from pydanube.receiving.consume_lane import ConsumeLane
from pydanube.receiving.consume_options import ConsumeOptions
from pydanube.retry import Retry
from pydanube_core.errors import NotOwner
from pydanube_core.generated import danube_stream_pb2 as pb

CREDIT = 100


class Played:
    """A broker's side of one stream: it says these messages, the first as the answer to the open, then nothing more."""

    url = "http://test"

    def __init__(self, *said: pb.ConsumeResponse) -> None:
        self._said = [message.SerializeToString() for message in said]
        self.heard: list[pb.ConsumeRequest] = []
        self.more = asyncio.Event()

    async def write(self, message: bytes) -> None:
        self.heard.append(pb.ConsumeRequest.FromString(message))
        self.more.set()

    async def read(self) -> bytes:
        return self._said.pop(0)

    async def listen(self, take: Callable[[bytes], bool]) -> bool:
        for message in self._said:
            take(message)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...

    async def consume(self) -> Played:
        return self

    async def until_heard(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                self.more.clear()
                await self.more.wait()


def lane(brokers: Sequence[Played], *, subscription: str = "s") -> ConsumeLane:
    """A lane that finds these brokers one after the other, and gives back whatever it is asked for."""
    left = list(brokers)

    async def locate(_: str) -> Any:
        return left.pop(0)

    def give_back(_: Lane, ranges: Sequence[int]) -> list[int]:
        return list(ranges)

    nothing = cast(Any, None)
    return ConsumeLane(
        ConsumeOptions(
            topic="/default/t",
            partition=None,
            concrete_topic="/default/t",
            receiver=ReceiverOptions(
                topic="/default/t",
                subscription=subscription,
                type="key-shared" if subscription else "",
                start="latest",
                start_given=False,
                credit_messages=CREDIT,
                credit_bytes=CREDIT,
            ),
            may_leave=(),
            credit_messages=CREDIT,
            credit_bytes=CREDIT,
            retry=Retry(initial_s=0.001),
            locate=locate,
            ready=nothing,
            handed_out=lambda _: 0,
            position=lambda: (0, 0),
            give_back=give_back,
            reply=nothing,
            decode=nothing,
            changed=lambda: None,
            emit=lambda *_: None,
        )
    )


def left_by_its_owner() -> pb.ConsumeResponse:
    error = NotOwner("the topic is on its way", topic="/default/t")
    return pb.ConsumeResponse(failure=pb.Failure(error=error.to_json().encode(), carried_out=0))


@pytest.mark.parametrize("resumed", [True, False])
async def test_what_was_given_back_reaches_the_next_owner_before_any_credit(resumed: bool) -> None:
    """Else it sends what follows of a key first."""
    former = Played(
        pb.ConsumeResponse(opened=pb.ConsumerOpened(session=1)),
        pb.ConsumeResponse(recall=pb.Recall(session=1, ranges=[3, 4])),
        left_by_its_owner(),
    )
    following = Played(pb.ConsumeResponse(opened=pb.ConsumerOpened(session=2, resumed=resumed)))
    running = asyncio.create_task(lane([former, following]).run())
    answers = [pb.GivenBack(session=2, ranges=[3, 4])] if resumed else []
    await following.until_heard(2 + len(answers))
    running.cancel()
    opening, *given_back, credit = following.heard
    assert opening.open.resume_session == 1
    assert (opening.open.credit_messages, opening.open.credit_bytes) == (0, 0)
    assert [each.given_back for each in given_back] == answers
    assert (credit.credit.messages, credit.credit.bytes) == (CREDIT, CREDIT)


async def test_who_gave_nothing_back_opens_with_its_credit() -> None:
    former = Played(pb.ConsumeResponse(opened=pb.ConsumerOpened(session=1)), left_by_its_owner())
    following = Played(pb.ConsumeResponse(opened=pb.ConsumerOpened(session=2, resumed=True)))
    running = asyncio.create_task(lane([former, following]).run())
    await following.until_heard(1)
    running.cancel()
    assert following.heard[0].open.credit_messages == CREDIT


async def test_a_reader_continues_at_the_next_owner_without_a_session() -> None:
    """It leaves no answers behind, and brokers refuse the field."""
    former = Played(
        pb.ConsumeResponse(opened=pb.ConsumerOpened(session=1, start_offset=4)), left_by_its_owner()
    )
    following = Played(pb.ConsumeResponse(opened=pb.ConsumerOpened(session=2)))
    running = asyncio.create_task(lane([former, following], subscription="").run())
    await following.until_heard(1)
    running.cancel()
    opening = following.heard[0].open
    assert not opening.resume_session
    assert opening.start == "offset:4"
