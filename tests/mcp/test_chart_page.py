"""The chart's page in a real browser, in a frame whose host speaks MCP Apps: light and dark, and with hostile names."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pydanube_mcp.charts
import pytest
from PIL import Image

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.long,  # a browser is started
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
]
PAGE = Path(pydanube_mcp.charts.__file__).with_name("chart_page.html").read_text(encoding="utf-8")
HOSTILE = '<img src=x onerror="window.parent.pwned=1"></script><script>window.parent.pwned=1</script>'
LINES = ["#0072b2", "#d55e00"]


def result(*, name: str = "billing", lag: int = 40) -> dict[str, Any]:
    one: dict[str, Any] = {
        "subscription": name,
        "lag_messages": [None, *(lag * i for i in range(1, 10))],
        "acknowledge_rate": [None, *(5.0 + i for i in range(1, 10))],
    }
    if name == HOSTILE:
        one |= {"subscription": "see untrusted", "untrusted": {"subscription": name}}
    return {
        "content": [],
        "structuredContent": {
            "topic": "/default/orders",
            "as_of": "2026-01-01T00:00:00.000Z",
            "age_s": [float(90 - 10 * i) for i in range(10)],
            "publish_rate": [None, *(10.0 + i for i in range(1, 10))],
            "subscriptions": [one],
            "more_subscriptions": 2,
        },
    }


# What a host does: it frames the page, answers ui/initialize, and tells input and result once it hears `initialized`.
# It ends with what it saw as the title; the frame has our origin here so that its content can be looked at.
HOST = """<!doctype html><body style="margin:0"><script>
const results = RESULTS, heard = [], frame = document.createElement("iframe");
frame.style = "border:0;width:100%;height:700px";
const tell = (message) => frame.contentWindow.postMessage({ jsonrpc: "2.0", ...message }, "*");
window.addEventListener("message", ({ data }) => {
  heard.push(data.method || "answer");
  if (data.method === "ui/initialize") tell({ id: data.id, result: { protocolVersion: "2026-01-26",
    hostCapabilities: { serverTools: {} }, hostInfo: { name: "test", version: "1" }, hostContext: { theme: "THEME" } } });
  if (data.method === "ui/notifications/initialized") {
    tell({ method: "ui/notifications/tool-input", params: { arguments: { topic: "orders" } } });
    tell({ method: "ui/notifications/tool-result", params: results[0] });
    setTimeout(() => { if (results[1]) frame.contentDocument.getElementById("again").click(); }, 50);
    setTimeout(report, 300);
  }
  if (data.method === "tools/call") { heard.push(data.params); tell({ id: data.id, result: results[1] }); }
});
function report() {
  const page = frame.contentDocument;
  document.title = encodeURIComponent(JSON.stringify({
    heard, pwned: window.pwned === 1, text: page.body.innerText, images: page.querySelectorAll("img").length,
    scripts: page.scripts.length, lines: [...page.querySelectorAll("path")].map((line) => line.getAttribute("d")),
    over: page.documentElement.scrollWidth - page.documentElement.clientWidth, theme: page.documentElement.dataset.theme,
  }));
}
frame.srcdoc = PAGE;
document.body.append(frame);
</script></body>"""


def browse(folder: Path, *results: dict[str, Any], theme: str = "light", arguments: tuple[str, ...]) -> bytes:
    assert BROWSER is not None

    def script(value: Any) -> str:
        return json.dumps(value).replace("</", "<\\/")

    host = HOST.replace("THEME", theme).replace("RESULTS", script(results)).replace("PAGE", script(PAGE))
    path = folder / "host.html"
    path.write_text(host, encoding="utf-8")
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=4000",
        *arguments,
        path.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, timeout=100, check=True).stdout


def seen(folder: Path, *results: dict[str, Any], width: int = 900) -> dict[str, Any]:
    dumped = browse(folder, *results, arguments=(f"--window-size={width},800", "--dump-dom")).decode()
    title = re.search(r"<title>(.*?)</title>", dumped)
    assert title is not None, dumped[-500:]
    from urllib.parse import unquote

    found: dict[str, Any] = json.loads(unquote(html.unescape(title[1])))
    return found


def test_the_result_is_drawn_and_refreshed_through_the_host(tmp_path: Path) -> None:
    found = seen(tmp_path, result(), result(name="fraud", lag=7))
    assert found["heard"][0] == "ui/initialize"
    assert "ui/notifications/size-changed" in found["heard"]
    assert {"name": "chart_topic", "arguments": {"topic": "orders"}} in found["heard"]
    assert "fraud" in found["text"]
    assert "billing" not in found["text"], "the refreshed result replaces the first"
    assert "/default/orders" in found["text"]
    assert "2 more subscriptions" in found["text"]
    assert len(found["lines"]) == 3
    assert all(line.startswith("M") and line.count("L") == 8 for line in found["lines"])


@pytest.mark.parametrize("width", [900, 360])
def test_hostile_names_are_text_and_nothing_runs_over(tmp_path: Path, width: int) -> None:
    found = seen(tmp_path, result(name=HOSTILE), width=width)
    assert HOSTILE in found["text"]
    assert not found["pwned"]
    assert (found["images"], found["scripts"]) == (0, 1)
    assert found["over"] <= 0


def test_an_error_is_said(tmp_path: Path) -> None:
    error = {
        "isError": True,
        "content": [],
        "structuredContent": {"error": {"message": "there is no topic x"}},
    }
    assert "there is no topic x" in seen(tmp_path, error)["text"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_host_chooses_light_or_dark(tmp_path: Path, theme: str) -> None:
    picture = tmp_path / f"{theme}.png"
    browse(tmp_path, result(), theme=theme, arguments=("--window-size=900,700", f"--screenshot={picture}"))
    image = Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")
    counts = sorted(image.getcolors(1 << 24) or [], reverse=True)
    paper = counts[0][1]
    assert (min(paper) > 240) if theme == "light" else (max(paper) < 40)
    drawn = {tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in LINES}
    assert drawn <= {colour for count, colour in counts if count > 40}
