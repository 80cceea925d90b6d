"""The connections to the other brokers: made when a call wants one, a few to each, closed with the broker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pydanube_broker.relay.link import Link

#: to one broker; each carries as many calls as that one allows on a connection, 10 000
_LINKS: Final = 8


class Links:
    """By address. Single user: the loop.

    Args:
        tls: for brokers whose address is `https`.
    """

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, None]], None], tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        self._spawn = spawn
        self._tls = tls
        self._links: dict[str, list[Link]] = {}
        self._waiting: dict[str, list[Callable[[Link | str], None]]] = {}

    def reach(self, url: str, then: Callable[[Link | str], None]) -> None:
        """Call `then` with a usable link that has room, at once where there is one; or with why there is none."""
        links = self._links.get(url)
        if links is not None:
            for link in links:
                if link.usable and not link.http.full and not link.http.out.overdue:
                    then(link)
                    return
            links[:] = [link for link in links if link.usable]
            if len(links) >= _LINKS:
                then(f"all {_LINKS} connections are full")
                return
        waiting = self._waiting.get(url)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[url] = [then]
        self._spawn(self._connect(url))

    async def _connect(self, url: str) -> None:
        link = Link(url, asyncio.get_running_loop())
        try:
            await link.connect(self._tls)
        finally:
            waiting = self._waiting.pop(url)
            if link.usable:
                self._links.setdefault(url, []).append(link)
            for then in waiting:
                if link.usable and link.http.full:
                    self.reach(url, then)
                else:
                    then(link if link.usable else link.reason)

    def keep_only(self, urls: set[str]) -> None:
        """Close what leads to brokers that are gone."""
        for url in self._links.keys() - urls:
            for link in self._links.pop(url):
                link.abort("the broker has left the cluster")

    def close(self) -> None:
        """Close all."""
        self.keep_only(set())
