"""Charts as SVG: no library, no script, colours from the page's style sheet. Pure."""

from __future__ import annotations

from pydanube_core.charts.chart import HEIGHT, MARGIN, WIDTH, Chart, labels_shown, runs, short, ticks, top_of

from pydanube_spark.reports.pages.markup import escaped


def svg(chart: Chart) -> str:
    """Return the chart as an `<svg>` element with its legend."""
    left, right, bottom, top = MARGIN
    inner_width, inner_height = WIDTH - left - right, HEIGHT - top - bottom
    marks = ticks(top_of(chart))
    scale = inner_height / marks[-1]
    count = len(chart.labels)
    slot = inner_width / max(1, count)

    def y(value: float) -> float:
        return round(top + inner_height - value * scale, 1)

    def x(i: int) -> float:
        return round(left + slot * (i + 0.5), 1)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(chart.title)}">',
        *(
            f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y(mark)}" y2="{y(mark)}"/>'
            f'<text class="axis" x="{left - 6}" y="{y(mark) + 4}" text-anchor="end">{short(mark)}</text>'
            for mark in marks
        ),
        *(
            f'<text class="axis" x="{x(i)}" y="{HEIGHT - 8}" text-anchor="middle">{escaped(chart.labels[i])}</text>'
            for i in labels_shown(chart)
        ),
    ]
    if chart.stacked:
        width = max(1.0, min(slot * 0.8, 60))
        floors = [0.0] * count
        for each in chart.series:
            for i, value in enumerate(each.values):
                if value:
                    height = round(value * scale, 1)
                    parts.append(
                        f'<rect class="{each.colour}" x="{round(x(i) - width / 2, 1)}" y="{y(floors[i] + value)}" '
                        f'width="{round(width, 1)}" height="{height}"><title>{escaped(chart.labels[i])} '
                        f"{escaped(each.name)}: {short(value)} {escaped(chart.unit)}</title></rect>"
                    )
                    floors[i] += value
    else:
        for each in chart.series:
            for run in runs(each.values):
                points = " ".join(f"{x(i)},{y(each.values[i] or 0)}" for i in run)
                parts.append(f'<polyline class="{each.colour}" points="{points}"/>')
                parts += [
                    f'<circle class="{each.colour}" cx="{x(i)}" cy="{y(each.values[i] or 0)}" r="2.5"><title>'
                    f"{escaped(chart.labels[i])} {escaped(each.name)}: {short(each.values[i] or 0)} "
                    f"{escaped(chart.unit)}</title></circle>"
                    for i in run
                ]
    legend = "".join(f'<li><i class="{each.colour}"></i>{escaped(each.name)}</li>' for each in chart.series)
    return "\n".join([*parts, "</svg>", f'<ul class="legend">{legend}</ul>'])
