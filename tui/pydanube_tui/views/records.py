"""What was planned, what was done, what is wrong for a while: plans, audit, alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydanube_tui.page import Cell, Column, Line, Page, Row, Target, Tone, line
from pydanube_tui.text import clock, count, size
from pydanube_tui.view import Ask, Extent, Situation, View
from pydanube_tui.views.listing import Item, Listing, since, told, view_of, words
from pydanube_tui.views.overview import is_change
from pydanube_tui.views.wording import decision_cell, next_of, severity_cell, shown, subject_text

_PLAN_STATES: Final = {"open": ("○", Tone.ACCENT), "used": ("✓", Tone.GOOD), "expired": ("▼", Tone.DIM)}
_EFFECTS: Final = {"destroy": Tone.BAD, "change": Tone.WARN, "create": Tone.GOOD}


def _plan_state(item: Item) -> Cell:
    glyph, tone = _PLAN_STATES.get(item["state"], ("✗", Tone.DIM))
    return Cell(f"{glyph} {item['state']}", tone, item["state"])


PLANS: Final = view_of(
    Listing(
        operation="plans.list",
        shapes=(
            told("state", "state", _plan_state, key="S", least=11, most=11),
            words("operation", "operation", key="N", least=20, most=34, tone=Tone.STRONG),
            told(
                "effect",
                "effect",
                lambda item: Cell(item["effect"], _EFFECTS.get(item["effect"], Tone.PLAIN), item["effect"]),
                key="E",
                least=8,
                most=8,
            ),
            words(
                "undo",
                "undo",
                lambda item: "can be undone" if item["reversible"] else "for good",
                key="U",
                least=13,
                most=13,
                drop=2,
            ),
            words("by", "by", "principal", key="B", least=12, most=30, grows=True),
            since("made", "made", "created_at", key="A"),
            words(
                "expires",
                "expires",
                lambda item: clock(item["expires_at"]),
                least=19,
                most=19,
                drop=1,
                tone=Tone.DIM,
            ),
            words("id", "plan", "plan_id", least=25, most=25, drop=3, tone=Tone.DIM),
        ),
        key=lambda item: str(item["plan_id"]),
        empty="no plans; one is made by every change that is shown before it is done",
        enter=lambda item: Target(view="plan", arguments={"plan_id": item["plan_id"]}),
        sort=("made", False),
    ),
    name="plans",
    title="Plans",
    summary="Changes that were shown and not yet done, and what became of them.",
    twin="danube plans list --json",
    aliases=("p",),
)

_DIFF_COLUMNS: Final = (
    Column(name="path", title="what", key="N", least=20, most=60, grows=True),
    Column(name="before", title="before", key="B", least=16, most=60, grows=True),
    Column(name="after", title="after", key="A", least=16, most=60, grows=True),
)


def diff_rows(diff: Sequence[Item]) -> list[Row]:
    """A plan's differences."""
    rows = []
    for number, each in enumerate(diff):
        before, after = shown(each.get("before")), shown(each.get("after"))
        cells = (
            Cell(each["path"], Tone.STRONG, each["path"]),
            Cell(before, Tone.BAD if before != "–" else Tone.DIM, before),
            Cell(after, Tone.GOOD if after != "–" else Tone.DIM, after),
        )
        rows.append(Row(key=f"{number} {each['path']}", cells=cells, item=each))
    return rows


def radius_text(radius: Mapping[str, int]) -> str:
    """Who feels a plan, and what goes at once."""
    told = [
        f"{size(value)}B" if name == "bytes" else f"{count(value)} {name}"
        for name, value in radius.items()
        if value
    ]
    return ", ".join(told) or "nothing goes"


def plan_lines(plan: Item) -> list[Line]:
    """A plan told in lines."""
    tone = _EFFECTS.get(plan["effect"], Tone.PLAIN)
    arguments = {name: value for name, value in plan["arguments"].items() if value is not None}
    lines = [
        line((f" {plan['operation']} ", Tone.STRONG), (f" {plan['effect']}", tone), f"   {shown(arguments)}"),
        line((" goes       ", Tone.DIM), (radius_text(plan["blast_radius"]), tone)),
        line(
            (" undo       ", Tone.DIM),
            "can be undone for a while" if plan["reversible"] else ("for good", Tone.WARN),
        ),
    ]
    if plan.get("later"):
        lines.append(line((" later      ", Tone.DIM), (str(plan["later"]), Tone.WARN)))
    return lines


def _plan_page(situation: Situation) -> Page:
    plan = situation.of("plan")
    head = [
        *plan_lines(plan),
        line(
            (" state      ", Tone.DIM),
            f"{plan['state']}, by {plan['principal']}, expires {clock(plan['expires_at'])}",
        ),
        line(),
    ]
    return Page(
        head=head, columns=_DIFF_COLUMNS, rows=diff_rows(plan["diff"]), empty="it would change nothing"
    )


PLAN: Final = View(
    name="plan",
    title="Plan",
    summary="One plan: what would change, who feels it, whether it can be undone.",
    asks=lambda arguments: {"plan": Ask(operation="plans.show", arguments={"plan_id": arguments["plan_id"]})},
    page=_plan_page,
    columns=_DIFF_COLUMNS,
    twin="danube plans show PLAN --json",
    takes=("plan_id",),
)


def _subject(item: Item) -> str:
    arguments = item["arguments"] or {}
    inner = arguments.get("arguments") or arguments
    return shown({name: value for name, value in inner.items() if name not in ("plan_token", "plan_only")})


AUDIT: Final = view_of(
    Listing(
        operation="audit.query",
        extent=Extent.NEWS,
        takes=(),
        shapes=(
            words(
                "time", "time", lambda item: clock(item["time"]), key="T", least=19, most=19, tone=Tone.DIM
            ),
            told("outcome", "outcome", decision_cell, key="S", least=16, most=22),
            words("operation", "operation", key="N", least=22, most=34, tone=Tone.STRONG),
            words("of", "of what", _subject, least=16, most=90, grows=True),
            words("by", "by", "principal", key="B", least=12, most=28, drop=1),
            words("face", "face", key="F", least=7, most=9, drop=2, tone=Tone.DIM),
        ),
        key=lambda item: str(item["seq"]),
        empty="no change among the last thousand records; :audit reads shows all of them",
        enter=lambda item: Target(view="change", arguments={"call_id": item["call_id"]}),
        wanted=lambda item, arguments: bool(arguments.get("reads")) or is_change(item),
    ),
    name="audit",
    title="Audit",
    summary="Who changed what, with what outcome; u takes the change back. `:audit reads` shows reads too.",
    twin="danube audit query --json",
    aliases=("events", "changes"),
    may=("reads",),
)

_CHANGE_COLUMNS: Final = (
    Column(name="field", title="field", key="N", least=14, most=24),
    Column(name="value", title="value", key="V", least=30, most=400, grows=True),
)


def _change_page(situation: Situation) -> Page:
    records = list(situation.items("records"))
    rows = []
    for record in reversed(records):
        for name, value in record.items():
            if value not in (None, {}, ""):
                cells = (Cell(name, Tone.DIM, name), Cell(shown(value), Tone.PLAIN, shown(value)))
                rows.append(Row(key=f"{record['seq']} {name}", cells=cells, item=record))
    title = records[0]["operation"] if records else ""
    return Page(columns=_CHANGE_COLUMNS, rows=rows, empty="no record of this call any more", title=title)


CHANGE: Final = View(
    name="change",
    title="Change",
    summary="The records of one call: its arguments, the plan, before and after, and its place in the chain.",
    asks=lambda arguments: {
        "records": Ask(operation="audit.query", arguments={"call_id": arguments["call_id"], "limit": 10})
    },
    page=_change_page,
    columns=_CHANGE_COLUMNS,
    twin="danube audit query --call-id CALL --json",
    takes=("call_id",),
)


def _alert_head(situation: Situation) -> Sequence[Line]:
    opened = [item for item in situation.items("list") if item["closed_at"] is None]
    said = (f" {len(opened)} open", Tone.WARN) if opened else (" ✓ none open", Tone.GOOD)
    return [line(said, (f"   {len(situation.items('list')) - len(opened)} closed lately", Tone.DIM)), line()]


ALERTS: Final = view_of(
    Listing(
        operation="alerts.list",
        arguments={"include_closed": True},
        shapes=(
            told(
                "state",
                "state",
                lambda item: (
                    Cell("○ closed", Tone.DIM, "2") if item["closed_at"] else Cell("● open", Tone.BAD, "1")
                ),
                key="S",
                least=8,
                most=8,
            ),
            told(
                "severity",
                "severity",
                lambda item: severity_cell(item["severity"]),
                key="V",
                least=10,
                most=10,
            ),
            words("rule", "rule", key="N", least=18, most=24, tone=Tone.STRONG),
            words(
                "subject",
                "subject",
                lambda item: subject_text(item["subject"]),
                key="B",
                least=16,
                most=50,
                grows=True,
            ),
            words(
                "says",
                "what",
                lambda item: item["finding"]["summary"],
                least=20,
                most=120,
                grows=True,
                drop=2,
            ),
            since("since", "since", "opened_at", key="A"),
        ),
        key=lambda item: str(item["alert_id"]),
        empty="no alert has opened",
        enter=lambda item: next_of(item["finding"], "alerts"),
        sort=("state", False),
        head=_alert_head,
    ),
    name="alerts",
    title="Alerts",
    summary="What has been wrong for a while: open ones first; Enter carries out the finding's next call.",
    twin="danube alerts list --json",
    aliases=("a",),
)
