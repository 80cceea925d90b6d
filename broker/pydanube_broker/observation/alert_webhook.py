"""Alerts are sent to the addresses in `alerts.webhook`, for operators without Prometheus.

Each address has a task of its own: one request at a time, signed as Standard Webhooks are, repeated with a growing
delay until the address takes it. Redirects are not followed, and no client can name an address.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from pydanube_core.diagnosis.alerts import Alerts
from pydanube_core.diagnosis.silences import Silence, silence_of
from pydanube_core.errors import ClusterError, Unavailable

from pydanube_broker.observation.alert_news import AlertNews, body_of
from pydanube_broker.outgoing import OutgoingRequest, answer_to

log = logging.getLogger("pydanube.observation")

LOOK_S: Final = 1.0
SILENCES_S: Final = 5.0  # between two looks at the silences, while an alert is open
SHORTEST_S, LONGEST_S = 1.0, 60.0  # between two tries
_MOST_BYTES: Final = 64 << 10  # of an answer, which is not read otherwise


class AlertWebhook:
    """Sends the alerts of this broker to one address, until cancelled.

    Args:
        secret: the key of the signature. None: requests are not signed.
        cluster, broker: the labels of its alerts.
        leads: returns whether this broker sends the alerts of the whole cluster.
        sent: counts requests by outcome.
        silences: returns the silences that were written, of the whole cluster.
    """

    def __init__(
        self,
        url: str,
        secret: bytes | None,
        alerts: Alerts,
        *,
        cluster: str,
        broker: str,
        leads: Callable[[], bool],
        sent: Counter[str],
        silences: Callable[[], Awaitable[Sequence[Silence]]],
    ) -> None:
        self._url, self._secret, self._alerts = url, secret, alerts
        self._cluster, self._broker, self._leads = cluster, broker, leads
        self._sent = sent
        self._silences = silences
        self._news = AlertNews()

    async def run(self) -> None:
        delay_s = SHORTEST_S
        failing = False
        # (changes, leads, silenced) for which everything is sent
        settled: tuple[int, bool, frozenset[str]] | None = None
        silenced, looked_s = frozenset[str](), 0.0
        while True:
            leads = self._leads()
            if self._alerts.open() and time.monotonic() - looked_s >= SILENCES_S:
                silenced, looked_s = await self._silenced(silenced), time.monotonic()
            state = (self._alerts.changes, leads, silenced)
            if state == settled:
                await asyncio.sleep(LOOK_S)
                continue
            now_ms = int(time.time() * 1000)
            news = self._news.due(
                self._alerts.open(), self._alerts.closed(), leads=leads, now_ms=now_ms, silenced=silenced
            )
            if not news:
                settled = state
                continue
            try:
                await self._send(body_of(news, cluster=self._cluster, broker=self._broker))
            except Unavailable as error:
                self._sent["failed"] += 1
                if not failing:
                    log.warning("alerts_not_sent", extra={"host": self._host, "error": error.message})
                failing = True
                await asyncio.sleep(delay_s * random.uniform(0.8, 1.2))
                delay_s = min(LONGEST_S, 2 * delay_s)
                continue
            self._news.taken(news)
            self._sent["taken"] += 1
            if failing:
                log.info("alerts_sent_again", extra={"host": self._host})
            failing, delay_s = False, SHORTEST_S

    async def _silenced(self, before: frozenset[str]) -> frozenset[str]:
        """Return the ids of open alerts that are silenced. `before`, while the metadata store does not answer."""
        try:
            silences = await self._silences()
        except ClusterError:
            return before
        now_ms = int(time.time() * 1000)
        return frozenset(
            one.alert_id for one in self._alerts.open() if silence_of(one, silences, now_ms) is not None
        )

    @property
    def _host(self) -> str:
        """The part for logs, since a path may hold a secret."""
        return urlsplit(self._url).netloc

    async def _send(self, body: bytes) -> None:
        headers = {"content-type": "application/json", "user-agent": "pydanube"}
        if self._secret is not None:
            headers |= signature(self._secret, f"msg_{uuid.uuid4().hex}", int(time.time()), body)
        await answer_to(
            OutgoingRequest(
                setting="alerts.webhook",
                url=self._url,
                method="POST",
                headers=headers,
                body=body,
                most_bytes=_MOST_BYTES,
            )
        )


def signature(secret: bytes, message_id: str, sent_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks (standardwebhooks.com, symmetric keys)."""
    digest = hmac.digest(secret, f"{message_id}.{sent_s}.".encode() + body, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
