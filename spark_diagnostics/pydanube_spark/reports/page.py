"""A report as one HTML file that needs nothing else, light or dark as its reader's machine is; and as a PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydanube_spark.reports.charts import (
    HEIGHT,
    MARGIN,
    WIDTH,
    Chart,
    labels_shown,
    runs,
    short,
    svg,
    ticks,
    top_of,
)
from pydanube_spark.reports.markup import escaped, seen

#: name → (light, dark): good, bad and so on are told apart by lightness too, for those who see few colours
COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    "good": ("#2e9e6b", "#3fbf86"),
    "going": ("#4a90d9", "#6cb0f5"),
    "slow": ("#c9a227", "#e3bf4b"),
    "risk": ("#e07b39", "#f2955a"),
    "bad": ("#c8374f", "#f0627a"),
    "lost": ("#6b1d3a", "#b04a74"),
    "none": ("#9aa3ad", "#6d7782"),
    "one": ("#4a63c9", "#8299f5"),
    "two": ("#c8374f", "#f0627a"),
    "three": ("#2e9e6b", "#3fbf86"),
    "four": ("#c9a227", "#e3bf4b"),
    "five": ("#8a4fbf", "#b685e8"),
    "six": ("#178a9e", "#3fbcd1"),
    "seven": ("#7a5c3e", "#b8926b"),
    "eight": ("#5d6670", "#a3adb8"),
}
_INK, _PAPER, _GRID, _SOFT = (
    ("#1c2127", "#e6e9ec"),
    ("#ffffff", "#14181c"),
    ("#e3e6ea", "#2a3138"),
    ("#5d6670", "#9aa3ad"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A table of texts; `marks`: for a column, cell text → colour of a dot before it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    subtitle: str
    figures: Sequence[tuple[str, str]]  # (value, what it is)
    charts: Sequence[Chart]
    tables: Sequence[TableView]
    remarks: Sequence[str] = ()


def _style() -> str:
    def theme(which: int) -> str:
        names = "".join(f"--{name}:{pair[which]};" for name, pair in COLOURS.items())
        return (
            f"--ink:{_INK[which]};--paper:{_PAPER[which]};--grid:{_GRID[which]};--soft:{_SOFT[which]};{names}"
        )

    colours = "".join(
        f"rect.{name},i.{name},circle.{name}{{fill:var(--{name});background:var(--{name})}}"
        f"polyline.{name}{{stroke:var(--{name})}}"
        for name in COLOURS
    )
    return f"""
:root{{color-scheme:light dark;{theme(0)}}}
@media (prefers-color-scheme:dark){{:root{{{theme(1)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:1080px;padding:28px 24px 60px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
h1{{font-size:26px;margin:0}} h2{{font-size:17px;margin:36px 0 10px}} p{{margin:4px 0;color:var(--soft)}}
.figures{{display:flex;flex-wrap:wrap;gap:12px;margin:22px 0 0;padding:0;list-style:none}}
.figures li{{border:1px solid var(--grid);border-radius:10px;padding:10px 16px;min-width:120px}}
.figures b{{display:block;font-size:24px;line-height:1.2}} .figures span{{color:var(--soft);font-size:13px}}
svg{{width:100%;height:auto;display:block}} .grid{{stroke:var(--grid)}}
.axis{{fill:var(--soft);font-size:11px}} polyline{{fill:none;stroke-width:2}}
.legend{{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0;margin:6px 0;font-size:13px}}
i{{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}}
.wide{{overflow-x:auto}} table{{border-collapse:collapse;width:100%;font-size:13.5px;white-space:nowrap}}
th{{text-align:left;color:var(--soft);font-weight:600}} th,td{{padding:6px 12px 6px 0;border-bottom:1px solid var(--grid)}}
.number+:not(.number){{padding-left:12px}}
@media (max-width:640px){{body{{padding:20px 16px 40px}} svg{{min-width:560px}} .axis{{font-size:17px}} svg circle{{r:4}}}}
td.number,th.number{{text-align:right;font-variant-numeric:tabular-nums}}
{colours}"""


def html(page: Page) -> str:
    """The page; everything that was said by others is escaped."""
    figures = "".join(
        f"<li><b>{escaped(value)}</b><span>{escaped(what)}</span></li>" for value, what in page.figures
    )
    charts = "".join(
        f'<h2>{escaped(chart.title)} <small>({escaped(chart.unit)})</small></h2><div class="wide">{svg(chart)}</div>'
        for chart in page.charts
    )
    tables = "".join(map(_table, page.tables))
    remarks = "".join(f"<p>{escaped(text)}</p>" for text in page.remarks)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{escaped(page.title)}</title><style>{_style()}</style>'
        f"</head><body><h1>{escaped(page.title)}</h1><p>{escaped(page.subtitle)}</p>"
        f'<ul class="figures">{figures}</ul>{remarks}{charts}{tables}</body></html>\n'
    )


def _table(view: TableView) -> str:
    numeric = [bool(view.rows) and all(_numeric(row[i]) for row in view.rows) for i in range(len(view.head))]

    def cell(tag: str, i: int, text: str) -> str:
        kind = ' class="number"' if numeric[i] else ""
        dot = f'<i class="{view.marks[text]}"></i>' if tag == "td" and text in view.marks else ""
        return f"<{tag}{kind}>{dot}{escaped(text)}</{tag}>"

    head = "".join(cell("th", i, text) for i, text in enumerate(view.head))
    rows = "".join(
        "<tr>" + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>" for row in view.rows
    )
    note = f"<p>{escaped(view.note)}</p>" if view.note else ""
    return (
        f'<h2>{escaped(view.title)}</h2>{note}<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _numeric(text: str) -> bool:
    return text == "–" or text[:1].isdigit() or (text[:1] in "-+" and text[1:2].isdigit())


def png(page: Page) -> bytes:
    """Title, figures and charts, for where no browser is at hand.

    Raises:
        ImportError: Pillow is not installed.
    """
    from PIL import Image, ImageDraw, ImageFont

    scale = 2
    height = 150 + (HEIGHT + 70) * len(page.charts)
    image = Image.new("RGB", (WIDTH * scale, height * scale), _PAPER[0])
    draw = ImageDraw.Draw(image)
    fonts = {size: ImageFont.load_default(size * scale) for size in (11, 13, 16, 22)}

    def text(at: tuple[float, float], said: str, size: int, colour: str, anchor: str = "la") -> None:
        # The font that comes with Pillow has no dash.
        said = seen(said).replace("–", "-")
        draw.text((at[0] * scale, at[1] * scale), said, font=fonts[size], fill=colour, anchor=anchor)

    text((20, 14), page.title, 22, _INK[0])
    text((20, 46), page.subtitle, 13, _SOFT[0])
    for number, (value, what) in enumerate(page.figures[:6]):
        text((20 + 150 * number, 74), value, 22, _INK[0])
        text((20 + 150 * number, 104), what, 11, _SOFT[0])
    for number, chart in enumerate(page.charts):
        _draw(draw, text, chart, 140 + (HEIGHT + 70) * number, scale)
    sink = io.BytesIO()
    image.save(sink, "PNG", optimize=True)
    return sink.getvalue()


def _draw(draw: Any, text: Any, chart: Chart, above: float, scale: int) -> None:
    left, right, bottom, top = MARGIN
    text((20, above), f"{chart.title} ({chart.unit})", 16, _INK[0])
    above += 26
    inner_width, inner_height = WIDTH - left - right, HEIGHT - top - bottom
    marks = ticks(top_of(chart))
    unit = inner_height / marks[-1]
    slot = inner_width / max(1, len(chart.labels))

    def y(value: float) -> float:
        return above + top + inner_height - value * unit

    def x(i: int) -> float:
        return left + slot * (i + 0.5)

    def scaled(*numbers: float) -> list[float]:
        return [number * scale for number in numbers]

    for mark in marks:
        draw.line(scaled(left, y(mark), WIDTH - right, y(mark)), fill=_GRID[0], width=scale)
        text((left - 6, y(mark)), short(mark), 11, _SOFT[0], "rm")
    for i in labels_shown(chart):
        text((x(i), above + HEIGHT - 12), chart.labels[i], 11, _SOFT[0], "mm")
    floors = [0.0] * len(chart.labels)
    at, line = 20.0, above + HEIGHT + 4
    for each in chart.series:
        colour = COLOURS[each.colour][0]
        if chart.stacked:
            width = max(1.0, min(slot * 0.8, 60))
            for i, value in enumerate(each.values):
                if value:
                    box = scaled(x(i) - width / 2, y(floors[i] + value), x(i) + width / 2, y(floors[i]))
                    draw.rectangle(box, fill=colour)
                    floors[i] += value
        else:
            for run in runs(each.values):
                points = [coordinate for i in run for coordinate in scaled(x(i), y(each.values[i] or 0))]
                if len(run) > 1:
                    draw.line(points, fill=colour, width=2 * scale)
                else:
                    draw.circle(points, 3 * scale, fill=colour)
        name = each.name[:40]
        width = 30 + 6.5 * len(name)
        if at + width > WIDTH:
            at, line = 20.0, line + 18
        draw.rectangle(scaled(at, line, at + 10, line + 10), fill=colour)
        text((at + 15, line + 5), name, 11, _INK[0], "lm")
        at += width
