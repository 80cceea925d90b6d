"""The console in a browser: who is let in, how many, what the page asks for; and a person's hands in a real Chromium."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.test_utils
import aiohttp.web
import anyio
import pytest
from pydanube_tui.serving import COOKIE, MOST_CONNECTIONS, MOST_SESSIONS, Door

from tests.admin.real_broker import Administered

pytestmark = pytest.mark.anyio
HOST = "127.0.0.1:8766"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def door() -> tuple[Door, str]:
    it = Door(frozenset({HOST}))
    cookie = it.exchange(it.token)
    assert cookie is not None
    return it, cookie


def test_a_token_works_once_and_the_next_is_another() -> None:
    it = Door(frozenset({HOST}))
    token = it.token
    assert it.exchange("") is None
    assert it.exchange(token + "x") is None
    assert it.exchange(token) is not None
    assert it.exchange(token) is None
    assert it.token != token
    assert it.exchange("\ud800") is None


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, None),
        ({"origins": [f"http://{HOST}"], "socket": True}, None),
        ({"cookie": None}, "Each works once"),
        ({"cookie": "x" * 43}, "Each works once"),
        ({"cookie": "é"}, "Each works once"),
        ({"cookie": "\udcff"}, "Each works once"),  # a byte that is no UTF-8
        ({"host": "evil.example:8766"}, "its own address"),
        ({"host": "127.0.0.1"}, "its own address"),
        ({"origins": ["http://evil.example"]}, "another page"),
        ({"origins": [f"https://{HOST}"]}, "another page"),
        ({"origins": ["null"]}, "another page"),
        ({"origins": [f"http://{HOST}@evil.example"]}, "another page"),
        ({"origins": ["http://\udcff["]}, "another page"),
        ({"origins": [f"http://{HOST}", "http://evil.example"]}, "another page"),
        ({"socket": True}, "carries its origin"),
    ],
)
def test_cookie_host_and_origin_are_looked_at(facts: dict[str, Any], says: str | None) -> None:
    it, cookie = door()
    given: dict[str, Any] = {"host": HOST, "origins": [], "cookie": cookie, "socket": False, **facts}
    refusal = it.refusal(**given)
    assert refusal is None if says is None else says in str(refusal)


class Served:
    """`danube tui --serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, link: str) -> None:
        self.process = process
        self.link = link
        self.base = link.partition("/?")[0]

    async def next_link(self) -> str:
        """The link for another browser, which is told once the one before was used."""
        assert self.process.stderr is not None
        while True:
            words = (await self.process.stderr.readline()).decode().split()
            assert words, "it ended"
            if words[-1].startswith("http"):
                return words[-1]


@asynccontextmanager
async def served(cluster: Administered, *flags: str) -> AsyncIterator[Served]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pydanube_cli.main", "tui", "--serve", "--port", "0", "--admin", cluster.url),
        *("--broker", cluster.broker.broker_url, *flags),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        it = Served(process, "")
        it.link = await it.next_link()
        it.base = it.link.partition("/?")[0]
        yield it
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        with anyio.CancelScope(shield=True):
            assert await process.wait() == 0


async def test_the_link_lets_one_browser_in_and_leaves_no_token_behind(cluster: Administered) -> None:
    async with (
        served(cluster) as it,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        async with browser.get(it.base) as refused:
            assert refused.status == 403
        async with browser.get(it.link, allow_redirects=False) as entered:
            assert entered.status == 303
            place = entered.headers["Location"]
            assert len(place) > 16
            assert entered.headers["Referrer-Policy"] == "no-referrer"
            cookie = entered.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert f"Path={place}" in cookie
        async with browser.get(it.base + place) as page:
            text = await page.text()
            assert page.status == 200
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert "https://" not in text
        async with aiohttp.ClientSession() as another, another.get(it.link) as used:
            assert used.status == 403
        for path in ("", "static/js/textual.js", "ws"):
            async with aiohttp.ClientSession() as another, another.get(it.base + place + path) as refused:
                assert refused.status == 403
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            async with browser.get(it.base + place, headers=headers) as refused:
                assert refused.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await browser.ws_connect(it.base + place + "ws", origin="http://evil.example")
        assert [each.key for each in browser.cookie_jar] == [COOKIE]


async def test_four_consoles_at_most(cluster: Administered) -> None:
    async with (
        served(cluster) as it,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        async with browser.get(it.link) as entered:
            assert entered.status == 200
            address = f"{entered.url}ws"
        sockets = [await browser.ws_connect(address, origin=it.base) for _ in range(MOST_SESSIONS)]
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browser.ws_connect(address, origin=it.base)
        assert refused.value.status == 503
        for each in sockets:
            await each.close()


async def test_a_preview_of_the_link_does_not_use_it_up(cluster: Administered) -> None:
    async with (
        served(cluster) as it,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        for method in ("HEAD", "POST", "OPTIONS"):
            async with browser.request(method, it.link, allow_redirects=False) as refused:
                assert refused.status == 403
        async with browser.get(it.link) as entered:
            assert entered.status == 200


async def test_two_consoles_in_one_browser_keep_their_cookies_and_show_them_to_no_other_port(
    cluster: Administered,
) -> None:
    shown = []

    async def note(request: aiohttp.web.Request) -> aiohttp.web.Response:
        shown.append(request.headers.get("Cookie"))
        return aiohttp.web.Response()

    neighbour = aiohttp.test_utils.TestServer(aiohttp.web.Application(), host="127.0.0.1")
    neighbour.app.router.add_get("/", note)
    async with (
        served(cluster) as one,
        served(cluster) as two,
        neighbour,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        pages = []
        for it in (one, two):
            async with browser.get(it.link) as entered:
                assert entered.status == 200
                pages.append(entered.url)
        for page in pages:
            async with browser.get(page) as again:
                assert again.status == 200
        async with browser.get(neighbour.make_url("/")) as answer:
            assert answer.status == 200
    assert shown == [None]


async def test_connections_that_show_no_cookie_make_room_and_are_closed(cluster: Administered) -> None:
    async with (
        served(cluster) as it,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        port = int(it.base.rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        for _, writer in idle:
            writer.write(b"GET / HT")
        async with browser.get(it.link) as entered:
            assert entered.status == 200
        socket = await browser.ws_connect(f"{entered.url}ws", origin=it.base)
        for reader, writer in idle:
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        await socket.send_json(["ping", "7"])
        while (answer := await socket.receive()).type is not aiohttp.WSMsgType.TEXT:
            assert answer.type is aiohttp.WSMsgType.BINARY
        assert answer.json() == ["pong", "7"]
        await socket.close()


async def test_another_address_is_refused(cluster: Administered) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pydanube_cli.main", "tui", "--serve", "--host", "0.0.0.0", "--json"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert process.returncode == 1
    assert json.loads(told)["error"]["code"] == "INSECURE_BIND"


async def test_in_a_container_it_answers_to_the_address_that_its_port_is_published_on(
    cluster: Administered,
) -> None:
    async with (
        served(cluster, "--host", "0.0.0.0", "--insecure-bind") as it,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        assert it.base.startswith("http://127.0.0.1:")
        async with browser.get(it.base) as refused:
            assert refused.status == 403
        async with browser.get(it.link) as entered:
            assert entered.status == 200
        async with browser.get(entered.url, headers={"Host": "evil.example"}) as refused:
            assert refused.status == 403


async def test_an_ipv6_address_is_written_in_brackets(cluster: Administered) -> None:
    async with (
        served(cluster, "--host", "::1") as it,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
        browser.get(it.link) as entered,
    ):
        assert it.base.startswith("http://[::1]:")
        assert entered.status == 200


class Chromium:
    """A page of a real Chromium, by its debugging protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = iter(range(1, 1_000_000))
        self.requests: list[str] = []
        self.seen = bytearray()  # what the console wrote

    async def do(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while (message := await self._next()).get("id") != number:
            pass
        assert "error" not in message, message
        return message["result"]

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json()
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif message.get("method") == "Network.webSocketFrameReceived":
            frame = message["params"]["response"]
            data = frame["payloadData"]
            self.seen += base64.b64decode(data) if frame["opcode"] == 2 else data.encode()
        return message

    async def until(self, text: str) -> None:
        """Read what comes until the console has written the text."""
        while text.encode() not in self.seen:
            await self._next()

    async def type(self, text: str) -> None:
        for character in text:
            key = {"\r": "Enter"}.get(character, character)
            code = {"\r": 13, ":": 186}.get(character, ord(character.upper()))  # as a keyboard sends them
            await self.do(
                "Input.dispatchKeyEvent", type="keyDown", key=key, text=character, windowsVirtualKeyCode=code
            )
            await self.do("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


@asynccontextmanager
async def chromium(folder: Path, link: str) -> AsyncIterator[Chromium]:
    assert BROWSER is not None
    process = await asyncio.create_subprocess_exec(
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
        *("--window-size=1200,800", f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        line = b""
        while b"DevTools listening on" not in line:
            line = await process.stderr.readline()
            assert line, "the browser ended"
        port = line.decode().split("//")[1].split("/")[0].rpartition(":")[2]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = await answer.json()
            address = next(each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page")
            async with session.ws_connect(address, max_msg_size=1 << 26) as socket:
                page = Chromium(socket)
                for domain in ("Network", "Page", "Runtime"):
                    await page.do(f"{domain}.enable")
                await page.do("Emulation.setFocusEmulationEnabled", enabled=True)
                await page.do("Page.navigate", url=link)
                yield page
    finally:
        if process.returncode is None:
            process.terminate()
        with anyio.CancelScope(shield=True):
            await process.wait()


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_two_browsers_type_click_and_resize_and_ask_no_foreign_host(
    cluster: Administered, tmp_path: Path
) -> None:
    async with served(cluster) as it, chromium(tmp_path / "one", it.link) as page:
        await page.until("Overview")
        await page.type(":topics\r")
        await page.until("owner")  # a column of that view alone
        page.seen.clear()
        await page.do(
            "Emulation.setDeviceMetricsOverride", width=700, height=500, deviceScaleFactor=1, mobile=False
        )
        await page.until("Topics")
        for kind in ("mousePressed", "mouseReleased"):
            await page.do("Input.dispatchMouseEvent", type=kind, x=60, y=46, button="left", clickCount=1)
        page.seen.clear()
        await page.type("\r")
        await page.until("Topic ")
        async with chromium(tmp_path / "two", await it.next_link()) as other:
            await other.until("Overview")
            foreign = [
                url
                for url in page.requests + other.requests
                if not url.startswith((it.base, "data:", "about:", "ws://" + it.base[7:]))
            ]
            assert page.requests
            assert foreign == []
        picture = await page.do("Page.captureScreenshot", format="png")
        (tmp_path / "page.png").write_bytes(base64.b64decode(picture["data"]))
