"""The style sheet and script of a report's page, for light and dark themes, small screens, and print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: name → (light, dark). Good, bad and so on also differ in lightness, for readers with colour blindness
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
INK, PAPER, GRID, SOFT = (
    ("#1c2127", "#e6e9ec"),
    ("#ffffff", "#14181c"),
    ("#e3e6ea", "#2a3138"),
    ("#5d6670", "#9aa3ad"),
)


def _theme(which: int) -> str:
    names = "".join(f"--{name}:{pair[which]};" for name, pair in COLOURS.items())
    return f"--ink:{INK[which]};--paper:{PAPER[which]};--grid:{GRID[which]};--soft:{SOFT[which]};{names}"


def style() -> str:
    colours = "".join(
        f"rect.{name},i.{name},circle.{name}{{fill:var(--{name});background:var(--{name})}}"
        f"polyline.{name}{{stroke:var(--{name})}}"
        for name in COLOURS
    )
    return f"""
:root{{color-scheme:light dark;{_theme(0)}}}
@media (prefers-color-scheme:dark){{:root{{{_theme(1)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:1280px;padding:28px 24px 60px;background:var(--paper);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
h1{{font-size:26px;margin:0}} h2{{font-size:17px;margin:34px 0 8px}} p{{margin:4px 0;color:var(--soft)}}
code{{font-size:12.5px;overflow-wrap:anywhere}}
.figures{{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0 0;padding:0;list-style:none}}
.figures li{{border:1px solid var(--grid);border-radius:10px;padding:10px 16px;min-width:120px}}
.figures b{{display:block;font-size:23px;line-height:1.2}} .figures span{{color:var(--soft);font-size:13px}}
.steps{{margin:0;padding-left:22px}} .steps li{{margin:5px 0}} .steps code{{display:block;color:var(--soft)}}
.charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:0 36px}}
svg.chart{{width:100%;height:auto;display:block}} .grid{{stroke:var(--grid)}}
.axis{{fill:var(--soft);font-size:16px}} polyline{{fill:none;stroke-width:2}}
.legend{{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0;margin:6px 0;font-size:13px}}
i{{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}}
input{{font:inherit;font-size:14px;padding:5px 10px;width:260px;max-width:100%;margin:2px 0 8px;color:inherit;
background:transparent;border:1px solid var(--grid);border-radius:7px}}
table{{border-collapse:collapse;width:100%;font-size:13.5px}}
th{{text-align:left;color:var(--soft);font-weight:600;vertical-align:bottom}} th button{{all:unset;cursor:pointer}}
th[aria-sort=ascending] button::after{{content:" ▲"}} th[aria-sort=descending] button::after{{content:" ▼"}}
th,td{{padding:6px 12px 6px 0;border-bottom:1px solid var(--grid)}} td{{vertical-align:top;overflow-wrap:anywhere}}
td.number,th.number{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}
th.number{{white-space:normal}} td.mark{{white-space:nowrap}} .number+:not(.number){{padding-left:12px}}
td small{{display:block;color:var(--soft);font-size:12px;line-height:1.35;font-weight:400}}
td.wide{{min-width:190px}} svg.strip{{width:150px;height:14px;display:block;border-radius:3px;margin-top:3px}}
table.live td:nth-child(2){{min-width:190px}} tr.part td:nth-child(2){{padding-left:20px}} tr.part{{font-size:12.5px}} tr[hidden]{{display:none}}
.open{{all:unset;cursor:pointer;color:var(--soft);font-size:12px;text-decoration:underline}}
.open:focus-visible,th button:focus-visible{{outline:2px solid var(--going)}}
@media (max-width:1150px){{th,td{{padding-right:8px}} td.wide{{min-width:0}} svg.strip{{width:110px}}}}
@media screen and (max-width:760px){{
body{{padding:18px 14px 40px}} .axis{{font-size:22px}}
thead{{display:none}} table,tbody{{display:block}}
tr{{display:grid;grid-template-columns:1fr 1fr;gap:4px 14px;padding:10px 0;border-bottom:1px solid var(--grid)}}
td,td.number{{border:0;padding:0!important;text-align:left;white-space:normal}} td[data-label]::before{{content:attr(data-label);
display:block;color:var(--soft);font-size:11px}} td.long{{grid-column:1/-1}}}}
@page{{size:A4 landscape;margin:10mm}}
@media print{{table.live td:nth-child(2){{min-width:130px}} :root{{color-scheme:light;{_theme(0)}}} *{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
body{{max-width:none;padding:0;font-size:9.5pt}} h1{{font-size:16pt}} h2{{font-size:11.5pt;margin:14pt 0 4pt;break-after:avoid}}
input,.open{{display:none}} tr[hidden]{{display:table-row}} table,tr.part{{font-size:8pt}} td small{{font-size:7pt}}
tr,svg.chart,.figures li,.steps li{{break-inside:avoid}} thead{{display:table-header-group}} th button{{display:contents}} .figures b{{font-size:13pt}}
th,td{{padding:3pt 6pt 3pt 0}} svg.strip{{width:110px}} td.wide{{min-width:120px}} .charts{{grid-template-columns:1fr 1fr}}}}
rect.empty{{fill:var(--grid)}}
{colours}"""


#: sorts a table by a column, filters rows by a text, expands a row into its parts. Without it all rows are shown
SCRIPT: Final = """
for (const table of document.querySelectorAll('table.live')) {
  const body = table.tBodies[0], input = table.parentElement.querySelector('input');
  const groups = [];
  for (const row of body.rows) row.classList.contains('part') ? groups.at(-1).parts.push(row) : groups.push({row, parts: [], open: false});
  const show = () => {
    const wanted = input ? input.value.toLowerCase() : '';
    for (const group of groups) {
      const rows = [group.row, ...group.parts];
      const kept = !wanted || rows.some(row => row.textContent.toLowerCase().includes(wanted));
      group.row.hidden = !kept;
      for (const part of group.parts) part.hidden = !kept || !group.open;
    }
  };
  for (const group of groups) {
    const button = group.row.querySelector('.open');
    if (button) button.onclick = () => {group.open = !group.open; button.setAttribute('aria-expanded', group.open); show();};
  }
  const value = (row, i) => row.cells[i].dataset.sort ?? row.cells[i].textContent;
  const compare = (a, b) => a === '' || b === '' ? (a === '') - (b === '') : isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
  [...table.tHead.rows[0].cells].forEach((head, i) => head.querySelector('button').onclick = () => {
    const down = head.getAttribute('aria-sort') === 'ascending';
    for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    groups.sort((a, b) => {
      const [x, y] = [value(a.row, i), value(b.row, i)];
      return (down && x !== '' && y !== '' ? -1 : 1) * compare(x, y);
    });
    for (const group of groups) body.append(group.row, ...group.parts);
  });
  if (input) input.oninput = show;
  show();
}"""
