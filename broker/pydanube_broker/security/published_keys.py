"""The keys that an identity provider publishes at a URL: https, no redirects, bounded in bytes, keys and time.

They are read again every `refresh_s`, and sooner if a token names a missing key, but not before `SOONEST_S` have
passed, so that made-up tokens do not cause constant requests. If a read fails, the last keys stay in effect.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from pydanube_core.errors import ClusterError

from pydanube_broker.outgoing import OutgoingRequest, answer_to
from pydanube_broker.security.jwt_keys import JwtVerifier, Key, read_published_keys

log = logging.getLogger("pydanube.security")

MOST_BYTES: Final = 256 << 10
SOONEST_S: Final = 10.0
WHERE: Final = "auth.jwks_url"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """The source of the keys. `ca`: a file with the authority of that server. None: the system's."""

    url: str
    ca: Path | None
    refresh_s: float


class PublishedKeys:
    """See the module. `verifier` gets the keys."""

    def __init__(self, source: KeySource, verifier: JwtVerifier, changed: asyncio.Event) -> None:
        self._source = source
        self._verifier = verifier
        self._changed = changed  # set if streams may have to end
        self._failing = False

    async def run(self) -> None:
        """Read the keys periodically, until cancelled."""
        refresh_s = self._source.refresh_s
        soonest_s = min(SOONEST_S, refresh_s)
        while True:
            await asyncio.sleep(soonest_s)
            with anyio.move_on_after(0.0 if self._failing else refresh_s - soonest_s):
                await self._verifier.wanted.wait()
            await self.read()

    async def read(self) -> None:
        """Read once. A failure is logged, the first in a row only."""
        self._verifier.wanted.clear()
        try:
            keys = await self._fetched()
        except ClusterError as error:
            if not self._failing:
                log.warning("published_keys_not_read", extra={"error": str(error)})
            self._failing = True
            return
        self._failing = False
        if self._verifier.publish(keys):
            own = sorted(self._verifier.own_ids.intersection(key.kid for key in keys))
            facts = {"keys": len(keys), "hidden_by_keys_of_the_file": own}
            log.info("published_keys_read", extra={**facts})
            self._changed.set()

    async def _fetched(self) -> tuple[Key, ...]:
        request = OutgoingRequest(
            setting=WHERE,
            url=self._source.url,
            headers={"accept": "application/json"},
            ca=self._source.ca,
            most_bytes=MOST_BYTES,
        )
        body = await answer_to(request)
        return await anyio.to_thread.run_sync(partial(read_published_keys, body, where=WHERE))
