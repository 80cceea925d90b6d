"""Take the pictures of the README and of docs/console.md from a running broker: the console at work, and an assistant that undoes what it did.

    python -m tools.pictures                      docs/first-hour.svg and docs/console-*.svg, from a broker and a shop of
                                                  their own (seven minutes)
    python -m tools.pictures --look FOLDER        each view at 80x24, 120x40 and 200x50, to be looked at

The moving picture is one SVG whose frames take turns by CSS, so that it moves wherever a page shows it as an image. Nothing
in it is drawn by hand: frames are screens of the console, and calls over MCP with their answers.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from pydanube_tui.cluster import Cluster, Options
from pydanube_tui.console import Console
from pydanube_tui.files import picture
from pydanube_tui.page import Target
from pydanube_tui.views import place
from rich.console import Console as Printer
from rich.text import Text
from textual.pilot import Pilot

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.broker_process import BrokerProcess, client_environment, danube_command  # noqa: E402

PICTURE: Final = ROOT / "docs" / "first-hour.svg"
#: those of docs/console.md besides the overview, by the last part of their names
PAGE_PICTURES: Final = {
    "subscriptions": "subscriptions",
    "subscription": "subscription /shop/orders fraud-check",
    "messages": "messages /shop/orders",
}
SIZE: Final = (110, 30)
SIZES: Final = ((80, 24), (120, 40), (200, 50))
VIEWS: Final = (
    "overview",
    "topics",
    "subscriptions",
    "topic /shop/orders",
    "brokers",
    "subscription /shop/orders fraud-check",
    "messages /shop/orders",
)
# A window of samples: statuses are known then, and the shop's first minute has left the charts
WATCHED_S: Final = 320.0
OPENED_S: Final = 60.0  # until the shop has its topics and sells, also on a busy machine
FRAME_S: Final = 5.0
FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


@contextmanager
def shop() -> Iterator[BrokerProcess]:
    """A broker with a shop at work."""
    with (
        tempfile.TemporaryDirectory(prefix="danube-pictures-") as folder,
        BrokerProcess(Path(folder)) as broker,
    ):
        words = [sys.executable, "-m", "tools.shop", "--broker", broker.url]
        trading = subprocess.Popen(words, cwd=ROOT)
        try:
            yield broker
        finally:
            trading.terminate()
            trading.wait()


def console(broker: BrokerProcess, words: str) -> Console:
    here = Cluster(name="shop", admin_url=broker.admin, broker_url=broker.url)
    return Console([here], Options(refresh_s=1.0), start=place(words.split()))


async def _seen(app: Console, pilot: Pilot[Any], times: int) -> str:
    """Return the screen after so many more refreshes."""
    for _ in range(times):
        app.settled.clear()
        await app.settled.wait()
    await pilot.pause()
    return picture(app, "svg")


async def screens(broker: BrokerProcess) -> list[str]:
    """Return the frames of the console: a look at everything, then down to the subscription that is behind."""
    app = console(broker, "overview")
    async with app.run_test(size=SIZE) as pilot:
        frames = [await _seen(app, pilot, round(WATCHED_S))]
        behind = {"topic": "/shop/orders", "subscription": "fraud-check"}
        for target in (Target(view="topics"), Target(view="subscription", arguments=behind)):
            app.go(target)
            frames.append(await _seen(app, pilot, 4))
        shown = {"overview": frames[0]}
        for name, words in PAGE_PICTURES.items():
            app.go(place(words.split()))
            shown[name] = await _seen(
                app, pilot, 60 if name == "messages" else 8
            )  # a tail is read four times a second
        for name, picture_of in shown.items():
            (ROOT / "docs" / f"console-{name}.svg").write_text(picture_of, encoding="utf-8")
        return frames


async def conversation(broker: BrokerProcess) -> list[str]:
    """Return the frames of an assistant that deletes a topic by a plan, and takes it back."""
    addresses = {"DANUBE_BROKER_URL": broker.url, "DANUBE_ADMIN_ENDPOINT": broker.admin}
    server = StdioServerParameters(
        command=danube_command()[0], args=["mcp"], env=client_environment(addresses)
    )
    told: list[Text] = []
    frames = []
    async with Client(stdio_client(server)) as assistant:

        async def call(tool: str, shown: Sequence[str], **arguments: Any) -> Mapping[str, Any]:
            answer: Mapping[str, Any] | None = (await assistant.call_tool(tool, arguments)).structured_content
            assert answer is not None
            given = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
            told.append(Text(f"→ {tool}({given})"[: SIZE[0] - 2], "bold cyan"))
            told.extend(Text(f"   {name}: {json.dumps(answer[name])}"[: SIZE[0] - 2]) for name in shown)
            told.append(Text())
            return answer

        def says(words: str, style: str) -> None:
            told.append(Text(words, style))

        says("You: Nobody writes to /warehouse/returns any more. Delete it.", "bold")
        plan = await call(
            "plan_operation",
            ("blast_radius", "reversible"),
            operation="topics.delete",
            arguments={"topic": "/warehouse/returns"},
        )
        radius = plan["blast_radius"]
        says(
            f"Assistant: that deletes {radius['messages']:,} messages and {radius['subscriptions']} subscription. Go on?",
            "green",
        )
        frames.append(_terminal(told))
        says("You: Yes.", "bold")
        done = await call("apply_plan", ("undo_until",), plan_token=plan["plan_token"])
        says("You: Stop, claims still reads it!", "bold")
        await call("undo_change", (), call_id=done["call_id"])
        await call("describe_topic", ("topic", "messages"), topic="/warehouse/returns")
        says("Assistant: it is back, with its messages, its subscription and its position.", "green")
        frames.append(_terminal(told))
    return frames


def _terminal(lines: Sequence[Text]) -> str:
    printer = Printer(width=SIZE[0], height=SIZE[1], file=io.StringIO(), record=True, force_terminal=True)
    for text in [*lines, *[Text()] * (SIZE[1] - len(lines))]:
        printer.print(text, no_wrap=True)
    return FONTS.sub("", printer.export_svg(title="an assistant, over MCP"))


def moving(frames: Sequence[str]) -> str:
    """Return one SVG in which the frames take turns."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', frames[0])
    assert found is not None
    total_s, share = FRAME_S * len(frames), 100 / len(frames)
    style = (
        f".frame + .frame {{ opacity: 0; animation: turn {total_s:g}s step-end infinite; }}\n"
        f"@keyframes turn {{ 0% {{ opacity: 1; }} {share:.3f}% {{ opacity: 0; }} }}\n"
    )
    parts = [
        f'<g class="frame" style="animation-delay: {FRAME_S * (number - len(frames)):g}s">'
        f"{_placed(frame, number)}</g>"
        for number, frame in enumerate(frames)
    ]
    size = f'viewBox="0 0 {found[1]} {found[2]}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>\n{style}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _placed(frame: str, number: int) -> str:
    """Return a frame whose names are its own: rich names classes and clips after the content alone."""
    for name in sorted(set(re.findall(r"terminal-\d+", frame))):
        frame = frame.replace(name, f"frame{number}")
    return frame.strip()


async def look(broker: BrokerProcess, folder: Path) -> None:
    """Write every view at every size, once the shop trades."""
    app = console(broker, "topics")
    async with app.run_test(size=SIZE) as pilot:
        await _seen(app, pilot, round(OPENED_S))
    for words in VIEWS:
        for width, height in SIZES:
            app = console(broker, words)
            async with app.run_test(size=(width, height)) as pilot:
                shown = await _seen(app, pilot, 5)
            name = words.replace(" /", "-").replace("/", "-")
            (folder / f"{name}-{width}x{height}.svg").write_text(shown, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Take pictures of a broker at work.")
    parser.add_argument("--look", type=Path, metavar="FOLDER", help="every view at every size, into a folder")
    given = parser.parse_args()
    with shop() as broker:
        if given.look is not None:
            given.look.mkdir(parents=True, exist_ok=True)
            asyncio.run(look(broker, given.look))
            return
        frames = asyncio.run(screens(broker)) + asyncio.run(conversation(broker))
    PICTURE.write_text(moving(frames), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}: {len(frames)} frames, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
