"""The order of a key with nacks, whatever is on its way: a broker, two directions, and an application, one step at a time."""

from __future__ import annotations

from bisect import insort
from collections import deque
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st
from pydanube.receiving.control import ControlQueue
from pydanube.receiving.withheld import Behind, Withheld
from pydanube_core.errors import ReadOnly, Unavailable

KEY = b"k"
MESSAGES = 12


class World:
    """One key. The broker sends in order what is ready, and nothing behind a message that waits for its retry."""

    def __init__(self, *, dropped: bool) -> None:
        self.ready = list(range(MESSAGES))
        self.retries: list[int] = []
        self.down: deque[int] = deque()  # messages, and confirmed barriers as negative numbers
        self.up: deque[tuple[str, list[int]]] = deque()
        self.withheld = Withheld()
        self.barrier = 0
        self.buffer: deque[int] = deque()
        self.settled: list[int] = []
        self.dropped = dropped  # by the broker as soon as it reads the nack, instead of a retry

    def broker_sends(self) -> None:
        if self.ready and not any(each < self.ready[0] for each in self.retries):
            self.down.append(self.ready.pop(0))

    def retry(self) -> None:
        if self.retries:
            insort(self.ready, self.retries.pop(0))

    def broker_reads(self) -> None:
        if not self.up:
            return
        kind, offsets = self.up.popleft()
        match kind:
            case "nack":
                if not self.dropped:
                    self.retries = sorted({*self.retries, *offsets})
            case "back":
                for offset in offsets:
                    insort(self.ready, offset)
            case _:
                self.down.append(-offsets[0])

    def arrives(self) -> None:
        if not self.down:
            return
        item = self.down.popleft()
        if item < 0:
            self.withheld.confirmed(-item)
            return
        self.barrier += 1
        early = self.withheld.arrived([(item, KEY)], self.barrier)
        if early:
            self.up += [("back", early), ("confirm", [self.barrier])]
        else:
            self.buffer.append(item)

    def handles(self, *, nacks: bool) -> None:
        if not self.buffer:
            return
        offset = self.buffer.popleft()
        assert offset == len(self.settled), f"{offset} was handed out after {self.settled}"
        if not nacks:
            self.settled.append(offset)
            return
        if self.dropped:
            self.settled.append(offset)
        returned, self.buffer = list(self.buffer), deque()
        self.barrier += 1
        self.withheld.nacked(Behind([], {KEY: offset}, [(KEY, each) for each in returned]), self.barrier)
        self.up += [("nack", [offset]), ("back", returned), ("confirm", [self.barrier])]


@given(seed=st.integers(0, 1 << 32), dropped=st.booleans(), nack_share=st.sampled_from([0.1, 0.3, 0.5]))
@example(seed=1, dropped=True, nack_share=0.5)
def test_a_key_is_handed_out_in_order_whatever_is_on_its_way(
    seed: int, dropped: bool, nack_share: float
) -> None:
    random, world = Random(seed), World(dropped=dropped)
    for step in range(4000):
        random.choice((world.broker_sends, world.retry, world.broker_reads, world.arrives, lambda: None))()
        if random.random() < 0.3:
            world.handles(nacks=step < 2000 and random.random() < nack_share)
        if len(world.settled) == MESSAGES:
            break
    assert world.settled == list(range(MESSAGES)), "nothing is given back for ever"
    while world.down or world.up:
        world.broker_reads()
        world.arrives()
    assert not world.withheld, "nothing is remembered for ever"


def test_a_key_whose_messages_go_to_another_consumer_is_forgotten_at_the_confirmation() -> None:
    withheld = Withheld()
    withheld.nacked(Behind([], {KEY: 3}, [(KEY, 4), (KEY, 5)]), 1)
    assert withheld.arrived([(6, KEY), (6, b"other")], 2) == [6]
    withheld.confirmed(1)
    assert withheld.arrived([(7, KEY)], 3) == [7], "6 has to come before it"
    withheld.confirmed(3)
    assert not withheld
    assert withheld.arrived([(9, KEY)], 4) == []


def test_a_refused_barrier_ends_the_withholding_too_since_the_broker_has_read_it() -> None:
    """Acks are refused while a journal is read-only. A key was given back for ever, as fast as it came."""
    control, read = ControlQueue(), list[str]()
    control.when_answered(1, lambda: read.append("refused"))
    control.when_answered(2, lambda: read.append("lost"))
    control.answered(1, ReadOnly("the journal is read-only"))
    control.lost(Unavailable("the stream is lost"))
    control.answered(2, None)
    assert read == ["refused"]
