"""Plans, the audit and alerts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pydanube_admin.wording.radius import lost_text, radius_text

from pydanube_tui.columns import custom, since, words
from pydanube_tui.page import Cell, Item, Line, Target, Tone, dim, fact, line
from pydanube_tui.text import clock, shown
from pydanube_tui.view import Ask, Extent, Situation, View, listed
from pydanube_tui.views.overview import is_change
from pydanube_tui.views.wording import decision_cell, next_of, severity_cell, subject_text

_PLAN_STATES: Final = {"open": ("○", Tone.ACCENT), "used": ("✓", Tone.GOOD), "expired": ("▼", Tone.DIM)}
_EFFECTS: Final = {"destroy": Tone.BAD, "change": Tone.WARN, "create": Tone.GOOD}


def _plan_state(item: Item) -> Cell:
    glyph, tone = _PLAN_STATES.get(item["state"], ("✗", Tone.DIM))
    return Cell(f"{glyph} {item['state']}", tone, item["state"])


def _effect(item: Item) -> Cell:
    return Cell(item["effect"], _EFFECTS.get(item["effect"], Tone.PLAIN), item["effect"])


PLANS: Final = View(
    name="plans",
    summary="Plans of changes, with their outcome.",
    twin="danube plans list --json",
    asks=listed("plans.list"),
    columns=(
        custom("state", "S 11", _plan_state),
        words("operation", "N 20-34", tone=Tone.STRONG),
        custom("effect", "E 8", _effect),
        words("undo", "U 13 drop=2", lambda item: "can be undone" if item["reversible"] else "for good"),
        words("by", "B 12-30 grows", "principal"),
        since("made", "A", "as_of"),
        words("expires", "19 drop=1", lambda item: clock(item["expires_at"]), tone=Tone.DIM),
        words("id", "25 drop=3", "plan_id", title="plan", tone=Tone.DIM),
    ),
    key=lambda item: str(item["plan_id"]),
    enter=lambda item: Target(view="plan", arguments={"plan_id": item["plan_id"]}),
    empty="no plans. Each change that is shown before it is made has one",
    sort=("made", False),
    aliases=("p",),
)


def plan_lines(plan: Item) -> list[Line]:
    """Return a plan in lines."""
    tone = _EFFECTS.get(plan["effect"], Tone.PLAIN)
    arguments = {name: value for name, value in plan["arguments"].items() if value is not None}
    undo = ("can be undone for a while", Tone.PLAIN) if plan["reversible"] else ("for good", Tone.WARN)
    what, radius = plan["effect"], plan["blast_radius"]
    feels, felt = (
        ("goes", lost_text(radius, plan.get("later")))
        if what == "destroy"
        else ("touches", radius_text(radius))
    )
    told_of = f"   {shown(arguments) if arguments else ''}"
    lines = [
        line((f" {plan['operation']} ", Tone.STRONG), (f" {what}", tone), told_of),
        fact(feels, (felt, tone)),
        fact("undo", undo),
    ]
    return [*lines, fact("later", (str(plan["later"]), Tone.WARN))] if plan.get("later") else lines


def _plan_head(situation: Situation) -> list[Line]:
    plan = situation.of("plan")
    stands = f"{plan['state']}, by {plan['principal']}, expires {clock(plan['expires_at'])}"
    return [*plan_lines(plan), fact("state", stands), line()]


def _side(item: Item, name: str, tone: Tone) -> Cell:
    text = shown(item.get(name))
    return Cell(text, tone if text != "–" else Tone.DIM, text)


PLAN: Final = View(
    name="plan",
    summary="One plan: its changes, the affected clients, whether it can be undone.",
    twin="danube plans show PLAN --json",
    asks=lambda arguments: {"plan": Ask(operation="plans.show", arguments={"plan_id": arguments["plan_id"]})},
    columns=(
        words("path", "N 20-60 grows", title="what", tone=Tone.STRONG),
        custom("before", "B 16-60 grows", lambda item: _side(item, "before", Tone.BAD)),
        custom("after", "A 16-60 grows", lambda item: _side(item, "after", Tone.GOOD)),
    ),
    items=lambda situation: situation.of("plan")["diff"],
    key=lambda item: f"{item['path']} {item.get('before')} {item.get('after')}",
    head=_plan_head,
    empty="it would change nothing",
    takes=("plan_id",),
)


def _subject(item: Item) -> str:
    arguments = item["arguments"] or {}
    inner = arguments.get("arguments") or arguments
    return shown({name: value for name, value in inner.items() if name not in ("plan_token", "plan_only")})


def _audited(situation: Situation) -> Sequence[Item]:
    records = situation.items()
    return records if situation.arguments.get("reads") else [each for each in records if is_change(each)]


AUDIT: Final = View(
    name="audit",
    summary="Changes, with caller and outcome. u takes the change back. `:audit reads` shows reads too.",
    twin="danube audit query --json",
    asks=listed("audit.query", extent=Extent.NEWS),
    columns=(
        words("time", "T 19", lambda item: clock(item["time"]), tone=Tone.DIM),
        custom("outcome", "S 16-22", decision_cell),
        words("operation", "N 22-34", tone=Tone.STRONG),
        words("of", "16-90 grows", _subject, title="of what"),
        words("by", "B 12-28 drop=1", "principal"),
        words("face", "F 7-9 drop=2", tone=Tone.DIM),
    ),
    items=_audited,
    key=lambda item: str(item["seq"]),
    enter=lambda item: Target(view="change", arguments={"call_id": item["call_id"]}),
    empty="no change among the last thousand records. :audit reads shows all of them",
    aliases=("events", "changes"),
    may=("reads",),
)


def _fields(situation: Situation) -> Iterator[Item]:
    """Return the fields of the call's records, the first record first."""
    for record in reversed(situation.items("records")):
        for name, value in record.items():
            if value not in (None, {}, ""):
                yield {**record, "field": name, "value": value}


CHANGE: Final = View(
    name="change",
    summary="The records of one call: its arguments, the plan, before and after, and its place in the chain.",
    twin="danube audit query --call-id CALL --json",
    asks=lambda arguments: {
        "records": Ask(operation="audit.query", arguments={"call_id": arguments["call_id"], "limit": 10})
    },
    columns=(words("field", "N 14-24", tone=Tone.DIM), words("value", "V 30-400 grows")),
    items=_fields,
    key=lambda item: f"{item['seq']} {item['field']}",
    empty="no record of this call any more",
    dated=(),
    takes=("call_id",),
)


def _alert_head(situation: Situation) -> Sequence[Line]:
    opened = [item for item in situation.items() if item["closed_at"] is None]
    said = (f" {len(opened)} open", Tone.WARN) if opened else (" ✓ none open", Tone.GOOD)
    return [line(said, dim(f"   {len(situation.items()) - len(opened)} closed lately")), line()]


def _alert_state(item: Item) -> Cell:
    return Cell("○ closed", Tone.DIM, "2") if item["closed_at"] else Cell("● open", Tone.BAD, "1")


ALERTS: Final = View(
    name="alerts",
    summary="Findings that have lasted: open ones first. Enter carries out the finding's next call.",
    twin="danube alerts list --json",
    asks=listed("alerts.list", include_closed=True),
    columns=(
        custom("state", "S 8", _alert_state),
        custom("severity", "V 10", lambda item: severity_cell(item["severity"])),
        words("rule", "N 18-24", tone=Tone.STRONG),
        words("subject", "B 16-50 grows", lambda item: subject_text(item["subject"])),
        words("says", "20-120 grows drop=2", lambda item: item["finding"]["summary"], title="what"),
        since("since", "A", "opened_at"),
    ),
    key=lambda item: str(item["alert_id"]),
    enter=lambda item: next_of(item["finding"], "alerts"),
    head=_alert_head,
    empty="no alert has opened",
    sort=("state", False),
    aliases=("a",),
)
