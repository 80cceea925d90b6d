"""Whose connection is closed when what is held for peers is too much: pure, with a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydanube_broker.rpc.caller import Peer
from pydanube_broker.rpc.peer_memory import PATIENCE_S, PeerBuffer, PeerMemory


class World:
    """A budget of 1000 bytes, and connections that are named."""

    def __init__(self) -> None:
        self.now = 100.0
        self.memory = PeerMemory(1000, clock=lambda: self.now)
        self.holds: dict[str, int] = {}
        self.gone: list[str] = []
        self.buffers: dict[str, PeerBuffer] = {}

    def connect(self, name: str, address: str = "ipv4:10.0.0.1:1", principal: str | None = None) -> None:
        self.holds[name] = 0
        certificate = None if principal is None else {"subject": ((("commonName", principal),),)}
        self.buffers[name] = PeerBuffer(
            Peer(address=address, certificate=certificate),
            self.now,
            holds=lambda: self.holds[name],
            give_up=self._give_up(name),
        )

    def _give_up(self, name: str) -> Callable[[], None]:
        def give_up() -> None:
            self.gone.append(name)
            self.holds[name] = 0

        return give_up

    def note(self, name: str, count: int) -> None:
        self.holds[name] = count
        self.memory.note(self.buffers[name], count)


def run(scenario: Callable[[World], None]) -> World:
    async def inside() -> World:
        world = World()
        scenario(world)
        for _ in range(5):
            await asyncio.sleep(0)
        return world

    return asyncio.run(inside())


def test_the_group_that_holds_most_gives_back_and_of_it_what_has_waited_for_longest() -> None:
    def scenario(world: World) -> None:
        world.connect("alone", "ipv4:10.0.0.2:7")
        world.note("alone", 290)
        for number in range(4):
            world.connect(f"many-{number}", f"ipv4:10.0.0.1:{number}")
            world.note(f"many-{number}", 150)
            world.now += 1
        world.note("many-3", 290)

    world = run(scenario)
    # 1030 of 1000 are held: down to seven eighths, beginning with the oldest of those that hold an average part
    assert world.gone == ["many-3"], "the one that holds more than its part"
    assert world.memory.held_bytes == 290 + 450

    def equal(world: World) -> None:
        for number in range(4):
            world.connect(f"many-{number}", f"ipv4:10.0.0.1:{number}")
            world.note(f"many-{number}", 260)
            world.now += 1

    world = run(equal)
    assert world.gone == ["many-0"], "the oldest"
    assert world.memory.statistics().connections_closed == 1


def test_principals_of_one_address_are_groups_of_their_own() -> None:
    def scenario(world: World) -> None:
        for number in range(3):
            world.connect(f"ann-{number}", principal="ann")
            world.note(f"ann-{number}", 200)
        world.connect("bob", principal="bob")
        world.note("bob", 450)

    assert run(scenario).gone[0].startswith("ann")


def test_moving_bytes_may_take_half_the_budget_and_idle_holders_are_closed() -> None:
    def scenario(world: World) -> None:
        for name in ("moving", "stuck"):
            world.connect(name)
            world.note(name, 350)
        world.now += PATIENCE_S + 1
        world.buffers["moving"].passed = 350_000
        world.buffers["moving"].look(world.now)
        world.buffers["stuck"].look(world.now)
        world.memory.make_room()

    world = run(scenario)
    assert world.gone == ["stuck"]
    reason = world.memory.reason()
    assert reason is not None
    assert reason.code == "PEER_MEMORY"
    assert "10.0.0.1" in reason.message
    world.now += 61
    assert world.memory.reason() is None


def test_nothing_is_left_in_the_books_when_all_are_gone() -> None:
    def scenario(world: World) -> None:
        world.connect("one")
        for count in (10, 400, 0, 0, 20, 0):
            world.note("one", count)

    world = run(scenario)
    assert world.memory.held_bytes == 0
    assert not world.memory._bytes
    assert not world.memory._groups
