"""Record when an API token was last used, with the token: to within ten minutes, and a few tokens at a time.

A busy token costs one small write every `WITHIN_S`, however often it is shown. The write is guarded by the token's
record, so that it never restores a token that was revoked in between, or its former expiry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Final

from pydanube_core.security.records import decode_token, encode_token, token_key

from pydanube_broker.admin_state import AdminState
from pydanube_broker.security.access_records import AccessRecords

log = logging.getLogger("pydanube.security")

ROUND_S: Final = 60.0
WITHIN_S: Final = 600.0
AT_ONCE: Final = 100  # writes per round. The others are due in the next


class LastUsed:
    """The task that records when tokens were last used. One for each broker."""

    def __init__(self, state: AdminState, access_records: AccessRecords) -> None:
        self._state = state
        self._access_records = access_records

    async def run(self) -> None:
        """Write in rounds of `ROUND_S`, until cancelled. A round that fails is logged, and its tokens are due again."""
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.write()
            except Exception as error:  # its tokens are due again in the next round
                log.warning("last_use_not_written", extra={"error": str(error)})

    async def write(self) -> None:
        """Write the last use of the tokens that are due, at most `AT_ONCE` of them."""
        now_ms = int(time.time() * 1000)
        for token_id in self._due(now_ms)[:AT_ONCE]:
            await self._note(token_id, now_ms)
            self._access_records.used.discard(token_id)

    def _due(self, now_ms: int) -> list[str]:
        """Return the used tokens whose record is due. Those recorded recently are forgotten until they are used again.

        A record in the future is due, because a clock was wrong when it was made, or is wrong now.
        """
        known = self._access_records.tokens
        due = [
            token_id
            for token_id in self._access_records.used
            if token_id in known and abs(now_ms - (known[token_id].used_ms or 0)) >= WITHIN_S * 1000
        ]
        self._access_records.used.intersection_update(due)
        return due

    async def _note(self, token_id: str, now_ms: int) -> None:
        key = token_key(token_id)
        found = await self._state.read(key)
        if found is None:
            return  # revoked
        record = replace(decode_token(found.value), used_ms=now_ms)
        await self._state.write({key: encode_token(record)}, {key: found.revision})
        if token_id in self._access_records.tokens:  # still there after a concurrent change
            self._access_records.tokens[token_id] = record
