"""Verdict and plot of a run of `soak.py`: slopes, what was lost, and a page with a chart for each thing measured."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

# What must not grow: series, by how much an hour it may at least (of its own unit), whatever its size.
FLAT: Final = {
    "broker_rss_mb": 25.0, "tier_rss_mb": 40.0, "sync_rss_mb": 3.0, "load_rss_mb": 25.0, "broker_fds": 10.0,
    "load_fds": 10.0, "data_mb": 60.0, "data_files": 150.0, "objects_files": 150.0, "metadata_mb": 10.0,
    "topics": 2.0, "healthz_ms": 15.0, "tier_backlog_mb": 10.0, "series": 50.0, "metadata_rows": 500.0,
    "loop_stop_ms": 50.0,
}  # fmt: skip
SHARE: Final = 0.15  # of the mean an hour: more is growth
# Seconds left out of the slopes. Until then caches, histories and pools fill. A share of the run would judge a short run by
# its warm-up, and hide an hour's in a long one.
WARM_UP_S: Final = 600.0
# What the warm-up may come to: the median of its last minute, of the series' unit
WARM: Final = {"broker_rss_mb": 160.0, "tier_rss_mb": 150.0, "sync_rss_mb": 30.0, "load_rss_mb": 100.0}
CHARTS: Final = (
    ("Memory (MB)", ("broker_rss_mb", "tier_rss_mb", "sync_rss_mb", "load_rss_mb")),
    ("Descriptors", ("broker_fds", "tier_fds", "sync_fds", "load_fds")),
    ("Processor (% of a core)", ("broker_cpu_percent", "tier_cpu_percent", "load_cpu_percent")),
    ("Slowest of 20 GET /healthz in 5 s (ms)", ("healthz_ms",)),
    ("Longest delay of the load's own loop in 5 s (ms)", ("load_loop_delay_ms",)),
    ("Slowest send (ms)", ("load_slowest_send_ms",)),
    ("Disk (MB)", ("data_mb", "journal_mb", "objects_mb", "metadata_mb")),
    ("Files", ("data_files", "objects_files", "journal_files")),
    ("Topics", ("topics",)),
    ("Series of /metrics, rows of the metadata", ("series", "metadata_rows")),
    ("Longest stop of the broker's loop in 5 minutes (ms)", ("loop_stop_ms",)),
    ("Not in the tier yet (MB)", ("tier_backlog_mb",)),
    ("Messages", ("load_acknowledged", "load_delivered", "load_duplicates")),
)
_COLOURS: Final = ("#2563eb", "#dc2626", "#16a34a", "#9333ea")
_WIDTH, _HEIGHT, _LEFT = 900, 180, 60
_POINTS: Final = 180  # of a line in `soak.svg`
_DRAWN: Final = 7  # charts there

Points = list[tuple[float, float]]


def slope(points: Points) -> float:
    """Least squares: units of y a unit of x."""
    x_mean, y_mean = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


def read_samples(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def series(samples: list[dict[str, str]], name: str) -> Points:
    found = []
    for sample in samples:
        try:
            found.append((float(sample["at_s"]), float(sample[name])))
        except (KeyError, TypeError, ValueError):
            continue
    return found


def lives(samples: list[dict[str, str]], name: str) -> list[Points]:
    """The series, cut where the broker was started again."""
    found: dict[str, Points] = {}
    for sample in samples:
        found.setdefault(sample["life"], []).extend(series([sample], name))
    return [points for points in found.values() if points]


def growth(samples: list[dict[str, str]], name: str, load_s: float) -> dict[str, Any] | None:
    """Return the growth of a series an hour: by least squares after the warm-up, and within a life of the broker (median of lives).

    The warm-up is judged apart, by its end. None: the run was over before.
    """
    every = series(samples, name)
    points = [point for point in every if WARM_UP_S <= point[0] <= load_s]
    if len(points) < 5:
        return None
    warm = median([y for x, y in every if WARM_UP_S - 60 <= x <= WARM_UP_S] or [points[0][1]])
    mean = fmean(y for _, y in points)
    an_hour = slope(points) * 3600
    within = [slope(points[len(points) // 3 :]) * 3600 for points in lives(samples, name) if len(points) > 30]
    return {
        "series": name, "mean": round(mean, 2), "first": points[0][1], "last": points[-1][1],
        "max": max(y for _, y in points), "an_hour": round(an_hour, 2),
        "within_a_life_an_hour": round(median(within), 2) if within else None,
        "warm": round(warm, 2),
        "flat": an_hour <= max(FLAT[name], SHARE * mean) and warm <= WARM.get(name, warm),
    }  # fmt: skip


def chart(
    title: str, samples: list[dict[str, str]], names: tuple[str, ...], events: list[dict[str, Any]]
) -> str:
    """Return a chart of the series as SVG."""
    lines = {name: points for name in names if (points := series(samples, name))}
    if not lines:
        return ""
    x_end = max(x for points in lines.values() for x, _ in points) or 1.0
    top = max(y for points in lines.values() for _, y in points) or 1.0
    top *= 1.05

    def at(x: float, y: float) -> str:
        return f"{_LEFT + x / x_end * (_WIDTH - _LEFT):.1f},{_HEIGHT - y / top * (_HEIGHT - 20):.1f}"

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 20}" role="img" aria-label="{html.escape(title)}">']
    for share in (0.0, 0.5, 1.0):
        y = _HEIGHT - share / 1.05 * (_HEIGHT - 20)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top / 1.05 * share:,.4g}</text>'
        )
    for event in events:
        if event["event"] in ("kill", "clock"):
            x = _LEFT + event["at_s"] / x_end * (_WIDTH - _LEFT)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{_HEIGHT}" class="{event["event"]}"/>')
    for minute in range(0, int(x_end // 60) + 1, max(1, int(x_end // 600))):
        x = _LEFT + minute * 60 / x_end * (_WIDTH - _LEFT)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT + 15}" text-anchor="middle">{minute} min</text>')
    legend = []
    for colour, (name, points) in zip(_COLOURS, lines.items(), strict=False):
        path = " ".join(at(x, y) for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        legend.append(f'<span style="color:{colour}">{html.escape(name)}</span>')
    return f"<h2>{html.escape(title)}</h2><p>{' '.join(legend)}</p>{''.join(parts)}</svg>"


def picture(samples: list[dict[str, str]], events: list[dict[str, Any]]) -> str:
    """The first charts as one SVG file, thinned to what a page can show."""
    thin = samples[:: max(1, len(samples) // _POINTS)]
    parts, y = [], 0
    for title, names in CHARTS[:_DRAWN]:
        found = chart(title, thin, names, events)
        if not found:
            continue
        drawn = found[found.index("<svg") :].replace(
            "<svg ", f'<svg y="{y + 18}" height="{_HEIGHT + 20}" ', 1
        )
        legend = "".join(
            f'<tspan fill="{colour}" dx="10">{html.escape(name)}</tspan>'
            for colour, name in zip(_COLOURS, [name for name in names if series(thin, name)], strict=False)
        )
        parts.append(
            f'<text x="{_LEFT}" y="{y + 14}" class="title">{html.escape(title)}{legend}</text>{drawn}'
        )
        y += _HEIGHT + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif"><style>'
        "text{font-size:10px;fill:#555}.title{font-size:12px}.grid{stroke:#ddd}.kill{stroke:#f59e0b;stroke-dasharray:2 3}"
        f'.clock{{stroke:#9333ea;stroke-dasharray:5 2}}</style><rect width="{_WIDTH}" height="{y}" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def page(samples: list[dict[str, str]], events: list[dict[str, Any]], verdict: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr class={'flat' if row['flat'] else 'grows'}>"
        + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values())
        + "</tr>"
        for row in verdict["growth"]
    )
    head = "".join(f"<th>{name}</th>" for name in verdict["growth"][0]) if verdict["growth"] else ""
    told = html.escape(
        json.dumps({name: value for name, value in verdict.items() if name != "growth"}, indent=2)
    )
    charts = "".join(chart(title, samples, names, events) for title, names in CHARTS)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Soak</title><style>
body{{font:14px system-ui;max-width:960px;margin:2em auto;padding:0 1em}} svg{{width:100%}} text{{font-size:10px;fill:#555}}
h2{{font-size:15px;margin:1.2em 0 0}} p{{margin:.2em 0}} table{{border-collapse:collapse}} td,th{{padding:2px 8px;text-align:right}}
.grid{{stroke:#ddd}} .kill{{stroke:#f59e0b;stroke-dasharray:2 3}} .clock{{stroke:#9333ea;stroke-dasharray:5 2}}
.grows{{background:#fee2e2}}</style><h1>Soak</h1><p>Orange: the broker was killed. Violet: its clock was set.</p>
<table><tr>{head}</tr>{rows}</table>{charts}<h2>Verdict</h2><pre>{told}</pre></html>"""


def report(folder: Path) -> int:
    """Print the verdict, write `verdict.json`, `soak.html` and `soak.svg`; 0 if nothing was lost, came out of order or grows.

    `good` of the verdict is null if it would be true and the run was over before some growth could be judged.
    """
    samples = read_samples(folder / "samples.csv")
    events = json.loads((folder / "events.json").read_text())
    path = folder / "result.json"
    result = json.loads(path.read_text()) if path.exists() else {"missing_count": None}
    load_s = float(samples[-1]["at_s"])
    rows = [row for name in FLAT if (row := growth(samples, name, load_s)) is not None]
    kept = result["missing_count"] == 0 and not result["unordered"] and not result["promises_broken"]
    good = kept and all(row["flat"] for row in rows)
    not_judged = sorted({name for name in FLAT if series(samples, name)} - {row["series"] for row in rows})
    verdict = {
        "good": None if good and not_judged else good,
        "growth_not_judged": not_judged,
        "seconds": load_s,
        "kills": sum(event["event"] == "kill" for event in events),
        "clock_steps": sum(event["event"] == "clock" for event in events),
        "broker_log": events[-1].get("broker_log") if events else None,
        **{name: result.get(name) for name in (
            "acknowledged", "delivered", "duplicates", "missing_count", "unordered", "errors", "churned", "read_back",
            "live_sent", "live_received", "missing", "subscriptions", "administration", "promises_broken",
            "error_examples",
        )},
        "growth": rows,
    }  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2))
    (folder / "soak.html").write_text(page(samples, events, verdict))
    (folder / "soak.svg").write_text(picture(samples, events))
    print(json.dumps({name: value for name, value in verdict.items() if name != "growth"}, indent=2))
    print(f"{'series':<18}{'warm':>12}{'mean':>12}{'max':>12}{'an hour':>12}{'in a life':>12}")
    for row in rows:
        life = row["within_a_life_an_hour"]
        print(
            f"{row['series']:<18}{row['warm']:>12,.2f}{row['mean']:>12,.2f}{row['max']:>12,.2f}{row['an_hour']:>+12,.2f}"
            f"{'-' if life is None else f'{life:+,.2f}':>12}  {'flat' if row['flat'] else 'GROWS'}"
        )
    print(f"plot: {folder / 'soak.html'}")
    if good and not_judged:
        print(
            f"verdict: nothing was lost or came out of order. Growth was not judged of {', '.join(not_judged)}: it needs "
            f"five samples after the warm-up of {WARM_UP_S:.0f} s"
        )
    else:
        print("verdict: " + ("good" if good else "NOT good"))
    return 0 if good else 1
