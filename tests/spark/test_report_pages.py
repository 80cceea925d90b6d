"""The pages in a real browser, light and dark, wide and narrow: nothing runs over, text can be read."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydanube_core.telemetry.files import HOUR_MS
from pydanube_core.units import format_time
from pydanube_spark.reports.balance.report import run_balance
from pydanube_spark.reports.lag.report import run_lag
from pydanube_spark.reports.pages.style import COLOURS
from pydanube_spark.reports.run import ReportRequest
from pydanube_storage.objects import StoreOptions
from pydanube_storage.objects.local import LocalStore

from tests.support.telemetry_generator import Plan, generate

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
]
PLAN = Plan(start_ms=472_222 * HOUR_MS, hours=6, subscriptions=24)
SCHEMES = {"light": 1, "dark": 0}  # of Blink's preferredColorScheme
MEASURE = (
    "<script>const d=document.documentElement;document.title='over='+(d.scrollWidth-d.clientWidth)+"
    "' texts='+[...document.querySelectorAll('svg text')].filter(t=>{const b=t.getBBox(),v=t.ownerSVGElement."
    "viewBox.baseVal;return b.x<-1||b.x+b.width>v.width+1||b.y<-1||b.y+b.height>v.height+1}).length</script>"
)


@pytest.fixture(scope="module")
def pages(sessions: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sessions.answering()
    folder = tmp_path_factory.mktemp("pages")
    generate(LocalStore(folder / "store"), PLAN)
    asked = ReportRequest(
        store=StoreOptions(url=str(folder / "store")),
        since=format_time(PLAN.start_ms),
        until=format_time(PLAN.start_ms + PLAN.hours * HOUR_MS),
        out=folder,
    )
    run_lag(asked)
    run_balance(asked)
    for name in ("lag", "balance"):
        text = (folder / f"{name}.html").read_text()
        (folder / f"{name}-measured.html").write_text(text.replace("</body>", f"{MEASURE}</body>"))
    return folder


def browse(page: Path, scheme: str, *arguments: str) -> bytes:
    assert BROWSER is not None
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        f"--user-data-dir={page.parent / 'profile'}",
        *arguments,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout


def luminance(colour: tuple[int, int, int]) -> float:
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("width", [1280, 1047, 500])  # 1047: A4 across, without its margins
@pytest.mark.parametrize("name", ["lag", "balance"])
def test_nothing_runs_over_and_no_label_is_cut(pages: Path, name: str, width: int) -> None:
    found = browse(
        pages / f"{name}-measured.html", "light", f"--window-size={width},900", "--dump-dom"
    ).decode()
    title = re.search(r"<title>over=(-?\d+) texts=(\d+)</title>", found)
    assert title is not None, found[:300]
    assert (int(title[1]) <= 0, int(title[2])) == (True, 0)


USE = """<script>
const rows = [...document.querySelectorAll('table.live tbody tr')], shown = () => rows.filter(row => !row.hidden);
const all = shown().length, parts = rows.filter(row => row.classList.contains('part')).length;
document.querySelector('.open').click();
const opened = shown().length, input = document.querySelector('input');
input.value = 'PARTED'; input.dispatchEvent(new Event('input'));
const filtered = shown().length;
input.value = ''; input.dispatchEvent(new Event('input'));
const button = [...document.querySelectorAll('table.live th button')].find(each => each.textContent === 'unread');
button.click(); button.click();
const first = document.querySelector('table.live tbody tr').cells[2].dataset.sort;
const most = Math.max(...rows.map(row => Number(row.cells[2].dataset.sort)));
document.title = [rows.length, all, parts, opened, filtered, Number(first) === most].join(' ');
</script>"""


def test_a_partitioned_topic_opens_rows_are_filtered_and_sorted(tmp_path: Path) -> None:
    plan = Plan(start_ms=PLAN.start_ms, hours=1, subscriptions=6, brokers=1, partitioned=3)
    generate(LocalStore(tmp_path / "store"), plan)
    run_lag(
        ReportRequest(
            store=StoreOptions(url=str(tmp_path / "store")),
            since=format_time(plan.start_ms),
            until=format_time(plan.start_ms + HOUR_MS),
            out=tmp_path,
        )
    )
    page = tmp_path / "lag.html"
    page.write_text(page.read_text().replace("</body>", f"{USE}</body>"))
    found = re.search(r"<title>([^<]*)</title>", browse(page, "light", "--dump-dom").decode())
    assert found is not None
    # Three topics, and one of three partitions: seven rows, of which four are seen until it opens.
    assert found[1] == "7 4 3 7 4 true"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["lag", "balance"])
def test_pictures_are_light_or_dark_and_have_colours(pages: Path, name: str, scheme: str) -> None:
    picture = pages / f"{name}-{scheme}.png"
    browse(pages / f"{name}.html", scheme, "--window-size=1280,2400", f"--screenshot={picture}")
    image = Image.open(io.BytesIO(picture.read_bytes())).convert("RGB")
    counts = sorted(image.getcolors(1 << 24) or [], reverse=True)
    paper = counts[0][1]
    assert (luminance(paper) > 0.8) if scheme == "light" else (luminance(paper) < 0.05)
    drawn = {
        tuple(int(pair[scheme == "dark"][i : i + 2], 16) for i in (1, 3, 5)) for pair in COLOURS.values()
    }
    assert len(drawn & {colour for count, colour in counts if count > 40}) >= 2


@pytest.mark.parametrize("which", [0, 1])
def test_every_colour_stands_out_from_the_paper(which: int) -> None:
    paper = ((255, 255, 255), (0x14, 0x18, 0x1C))[which]
    for name, pair in COLOURS.items():
        colour = tuple(int(pair[which][i : i + 2], 16) for i in (1, 3, 5))
        assert contrast(colour, paper) > 2.2, name  # type: ignore[arg-type]
