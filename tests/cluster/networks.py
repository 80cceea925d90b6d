"""Network namespaces of Linux on one bridge: one address for each broker, and pairs of them that cannot reach each other.

    with Networks(3) as networks:
        [*networks.command(1), "danube", "broker"]    # runs it in the first one; its address is networks.address(1)
        networks.cut(1, 2)                            # what 1 sends to 2 is lost; what 2 sends to 1 arrives
        networks.heal()

The test itself is at `networks.here`, and reaches all. `ETCD` and `STORE` are numbers of further addresses of the test, for servers that
brokers are cut off from alone: `networks.cut(1, ETCD)`. Packets that are cut leave for a hardware address that nobody has:
they are lost without a word, as in a network that is torn.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
from types import TracebackType
from typing import Final, Self

import pytest

_NOBODY: Final = "02:00:00:00:00:ff"
ETCD: Final = 253
STORE: Final = 252


class Networks:
    """See the module. Needs root, and iproute2."""

    def __init__(self, count: int) -> None:
        rng = random.SystemRandom()
        self._name = f"dn{rng.randrange(16**4):04x}"
        self._net = f"10.{rng.randrange(64, 128)}.{rng.randrange(256)}"
        self._count = count
        self._cut: set[tuple[int, int]] = set()
        self._undo = contextlib.ExitStack()
        self.here = f"{self._net}.254"

    def address(self, n: int) -> str:
        """Return the address of the n-th network, from 1."""
        return f"{self._net}.{n}"

    def command(self, n: int) -> list[str]:
        """Return the words that run a command in the n-th network."""
        return ["ip", "netns", "exec", f"{self._name}-{n}"]

    def cut(self, one: int, other: int) -> None:
        """Lose what `one` sends to `other`."""
        self._cut.add((one, other))
        self._neighbour(one, "replace", self.address(other), "lladdr", _NOBODY, "nud", "permanent")

    def heal(self) -> None:
        """Carry everything again."""
        for one, other in self._cut:
            self._neighbour(one, "del", self.address(other))
        self._cut.clear()

    def _neighbour(self, n: int, verb: str, address: str, *words: str) -> None:
        _ip("-n", f"{self._name}-{n}", "neigh", verb, address, *words, "dev", "eth0")

    def __enter__(self) -> Self:
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self._undo.close()
            pytest.skip(f"NOT RUN: this machine makes no network namespaces: {error}")
        except BaseException:
            self._undo.close()
            raise
        return self

    def _make(self) -> None:
        _ip("link", "add", self._name, "type", "bridge")
        self._undo.callback(_ip, "link", "del", self._name)
        for address in (self.here, self.address(ETCD), self.address(STORE)):
            _ip("addr", "add", f"{address}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for n in range(1, self._count + 1):
            space, ours = f"{self._name}-{n}", f"{self._name}v{n}"
            _ip("netns", "add", space)
            self._undo.callback(_ip, "netns", "del", space)
            _ip("link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", ours, "master", self._name, "up")
            _ip("-n", space, "addr", "add", f"{self.address(n)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
