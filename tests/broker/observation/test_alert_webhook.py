"""Alerts that leave the broker, against a real HTTP server that refuses, redirects, drips and takes."""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydanube import connect
from pydanube_broker import outgoing
from pydanube_broker.observation import alert_webhook
from pydanube_broker.observation.alert_news import MOST_AT_ONCE, AlertNews
from pydanube_broker.observation.alert_webhook import AlertWebhook
from pydanube_broker.settings.load import load_settings
from pydanube_connect.webhook.signatures import key_of, signed
from pydanube_core.diagnosis.alerts import Alerts
from pydanube_core.diagnosis.findings import Finding, NextCall
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.silences import Silence
from pydanube_core.errors import InvalidArgument

from tests.broker.delivery.conftest import Opener

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
ONCE = DiagnosisOptions(sample_interval_s=1.0, window_s=60.0, stuck_after_s=60.0, open_after=1, close_after=1)


async def none_silenced() -> list[Silence]:
    return []


class Receiver:
    """What a server was sent, and what it answers: a status, or `drip` for an answer without an end."""

    def __init__(self) -> None:
        self.requests: queue.Queue[tuple[dict[bytes, bytes], bytes]] = queue.Queue()
        self.answers: list[int | str] = []
        self.url = ""

    async def next(self) -> tuple[dict[bytes, bytes], bytes]:
        return await asyncio.to_thread(self.requests.get, timeout=60)

    async def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((await self.next())[1])["alerts"]
        return found


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver, over = Receiver(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = receiver.answers.pop(0) if receiver.answers else 200
            headers = {name.lower().encode(): value.encode() for name, value in self.headers.items()}
            receiver.requests.put((headers, body))
            if answer == "drip":
                with suppress(OSError):
                    while not over.wait(0.05):
                        self.wfile.write(b"x")
                return
            assert isinstance(answer, int)
            self.send_response(answer)
            self.send_header("location", receiver.url + "elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?room=1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield receiver
        finally:
            over.set()
            server.shutdown()


def finding(rule: str = "no_consumers", topic: str = "/default/a") -> Finding:
    return Finding(
        summary="nobody reads",
        evidence={},
        rule=rule,
        subject={"topic": topic, "subscription": "s"},
        next=(NextCall("topics.describe", {"topic": topic}, "look"),),
    )


@asynccontextmanager
async def sending(receiver: Receiver, alerts: Alerts, sent: Counter[str], secret: bytes | None = None) -> Any:
    webhook = AlertWebhook(
        receiver.url,
        secret,
        alerts,
        cluster="c",
        broker="7",
        leads=lambda: True,
        sent=sent,
        silences=none_silenced,
    )
    task = asyncio.create_task(webhook.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_an_alert_is_sent_when_it_opens_and_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_webhook, "LOOK_S", 0.02)
    alerts, sent = Alerts(ONCE), Counter[str]()
    key = key_of("standard_webhooks", SECRET)
    with receiving() as receiver:
        async with sending(receiver, alerts, sent, key):
            alerts.look("a", [finding()], 1_700_000_000_000)
            headers, body = await receiver.next()
            assert signed("standard_webhooks", [key], headers, body, now_s=time.time(), tolerance_s=60)
            assert not signed(
                "standard_webhooks", [key], headers, body + b" ", now_s=time.time(), tolerance_s=60
            )
            told = json.loads(body)
            assert (told["version"], told["status"], told["groupLabels"]["cluster"]) == ("4", "firing", "c")
            (alert,) = told["alerts"]
            assert alert["labels"] == {
                "alertname": "no_consumers", "severity": "warning", "cluster": "c", "broker": "7",
                "topic": "/default/a", "subscription": "s",
            }  # fmt: skip
            assert alert["annotations"]["next"] == 'topics.describe {"topic": "/default/a"}: look'
            assert alert["startsAt"] == "2023-11-14T22:13:20.000Z"
            assert alert["endsAt"].startswith("0001-01-01")
            alerts.look("a", [], 1_700_000_060_000)
            (ended,) = await receiver.alerts()
            assert (ended["status"], ended["endsAt"]) == ("resolved", "2023-11-14T22:14:20.000Z")
            assert ended["fingerprint"] == alert["fingerprint"]
    assert receiver.requests.empty()


@pytest.mark.parametrize("answer", [500, 302, 404, "drip"])
async def test_a_refusal_is_repeated_until_the_receiver_takes_it(
    monkeypatch: pytest.MonkeyPatch, answer: int | str
) -> None:
    monkeypatch.setattr(alert_webhook, "LOOK_S", 0.02)
    monkeypatch.setattr(alert_webhook, "SHORTEST_S", 0.02)
    monkeypatch.setattr(outgoing, "MOST_S", 0.5)
    alerts, sent = Alerts(ONCE), Counter[str]()
    with receiving() as receiver:
        receiver.answers += [answer, answer]
        async with sending(receiver, alerts, sent):
            alerts.look("a", [finding()], 1)
            got = [await receiver.alerts() for _ in range(3)]
            assert [each[0]["status"] for each in got] == ["firing"] * 3
            alerts.look("a", [], 2)
            assert (await receiver.alerts())[0]["status"] == "resolved"  # and no redirect was followed
    assert sent["failed"] == 2


def test_what_came_and_went_while_the_receiver_was_away_is_not_sent() -> None:
    alerts, news = Alerts(ONCE), AlertNews()
    alerts.look("a", [finding()], 1)
    assert news.due(alerts.open(), alerts.closed(), leads=True, now_ms=2).opened
    alerts.look("a", [], 2)
    assert not news.due(alerts.open(), alerts.closed(), leads=True, now_ms=3)


def test_a_silenced_alert_is_sent_once_its_silence_is_over_and_one_that_was_sent_before_as_it_closes() -> (
    None
):
    alerts, news = Alerts(ONCE), AlertNews()
    alerts.look("a", [finding()], 1)
    [alert] = alerts.open()
    assert not news.due(alerts.open(), (), leads=True, now_ms=2, silenced={alert.alert_id})
    later = news.due(alerts.open(), (), leads=True, now_ms=3)
    assert later.opened == (alert,)
    news.taken(later)
    assert not news.due(alerts.open(), (), leads=True, now_ms=4, silenced={alert.alert_id})
    alerts.look("a", [], 5)
    assert len(news.due(alerts.open(), alerts.closed(), leads=True, now_ms=6).closed) == 1


def test_many_alerts_are_sent_in_bounded_requests() -> None:
    alerts, news = Alerts(ONCE), AlertNews()
    for number in range(2 * MOST_AT_ONCE + 5):
        alerts.look(str(number), [finding(topic=f"/default/{number}")], 1)
    sizes = []
    while due := news.due(alerts.open(), alerts.closed(), leads=True, now_ms=2):
        sizes.append(len(due.opened))
        news.taken(due)
    assert sizes == [MOST_AT_ONCE, MOST_AT_ONCE, 5]
    for number in range(2 * MOST_AT_ONCE + 5):
        alerts.look(str(number), [], 2)  # more than are kept of closed ones
    ended = 0
    while due := news.due(alerts.open(), alerts.closed(), leads=True, now_ms=3):
        assert all(one.closed_at_ms is not None for one in due.closed)
        ended += len(due.closed)
        news.taken(due)
    assert ended == 2 * MOST_AT_ONCE + 5


def test_the_leader_tells_of_the_cluster() -> None:
    alerts, news = Alerts(ONCE), AlertNews()
    alerts.look("broker", [finding("owner_down")], 1)

    def due(leads: bool) -> tuple[int, int]:
        found = news.due(alerts.open(), alerts.closed(), leads=leads, now_ms=2)
        news.taken(found)
        return len(found.opened), len(found.closed)

    assert [due(False), due(True), due(True)] == [(0, 0), (1, 0), (0, 0)]
    assert due(False) == (0, 0)  # another leads now: no news that it is over
    assert due(True) == (1, 0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("webhook", ["https://user:secret@h/x"]),
        ("webhook", "ftp://secret/x"),
        ("webhook", ["http://secret/x y"]),
        ("webhook", [f"http://secret/{n}" for n in range(11)]),
        ("webhook_secret", "whsec_c2VjcmV0"),
        ("webhook_secret", "secret"),
    ],
)
def test_wrong_settings_are_refused_without_showing_them(setting: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"alerts\.{setting}") as caught:
        load_settings(None, {}, {f"alerts.{setting}": value})
    assert "secret/" not in str(caught.value.to_dict())
    assert "c2VjcmV0" not in str(caught.value.to_dict())


def test_addresses_of_the_environment_stand_with_commas() -> None:
    env = {"DANUBE_ALERTS__WEBHOOK": "http://a/1, https://b:9/2", "DANUBE_ALERTS__WEBHOOK_SECRET": SECRET}
    settings = load_settings(None, env)
    assert settings.alerts.webhook == ("http://a/1", "https://b:9/2")
    assert settings.alerts.webhook_secret == b"k" * 32
    shown = {entry.name: entry.value for entry in settings.entries()}
    assert shown["alerts.webhook"] == shown["alerts.webhook_secret"] == "…"


async def test_a_broker_sends_what_its_diagnosis_finds(opened: Opener) -> None:
    with receiving() as receiver:
        quick = {
            "diagnosis__sample_interval": "100ms", "diagnosis__stuck_after": "200ms", "diagnosis__window": "1s",
            "alerts__webhook": [receiver.url],
        }  # fmt: skip
        async with opened(**quick) as broker, connect(broker.broker_url) as client:
            async with client.producer("bills") as producer:
                async with client.consumer("bills", "billing"):
                    pass
                await producer.send(b"x")
            found: set[str] = set()
            while "no_consumers" not in found:
                for alert in await receiver.alerts():
                    labels = alert["labels"]
                    assert labels["broker"] == str(broker.data_dir.broker_id)
                    if labels.get("topic") == "/default/bills":
                        found.add(labels["alertname"])
