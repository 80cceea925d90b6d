"""Messages of a topic as they come: decoded, raw or in hex; without a topic, the topics to choose from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydanube_tui.page import Cell, Column, Line, Page, Row, Target, Tone, line
from pydanube_tui.payloads import payload_of, value_of
from pydanube_tui.text import count, size
from pydanube_tui.view import Ask, Extent, Situation, View
from pydanube_tui.views import topics
from pydanube_tui.views.wording import shown

FORMS: Final = ("decoded", "raw", "hex")
SHOWN_CHARS: Final = 400  # of a payload in its row
_COLUMNS: Final = (
    Column(name="offset", title="offset", key="N", least=9, most=14, right=True, unit="count"),
    Column(name="partition", title="part", key="P", least=4, most=4, right=True, drop=4, unit="count"),
    Column(name="time", title="stored", key="T", least=12, most=12, drop=3),
    Column(name="key", title="key", key="K", least=8, most=24, drop=2),
    Column(name="attributes", title="attributes", key="A", least=10, most=30, drop=5),
    Column(name="size", title="size", key="S", least=6, most=6, right=True, unit="bytes", drop=1),
    Column(name="payload", title="payload", least=20, most=400, grows=True),
)


def asks(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    """Without a topic: those there are. With one, messages come from a reader."""
    return {} if "topic" in arguments else {"topics": Ask(operation="topics.list", extent=Extent.ALL)}


def page(situation: Situation) -> Page:
    """The ring, the newest last."""
    if "topic" not in situation.arguments:
        chosen = topics.page_list(situation)
        rows = [
            Row(
                key=row.key,
                cells=row.cells,
                item=row.item,
                enter=Target(view="messages", arguments={"topic": row.key}),
            )
            for row in chosen.rows
        ]
        head = [line((" choose a topic; Enter reads it", Tone.DIM)), line()]
        return Page(
            head=head, columns=chosen.columns, rows=rows, empty=chosen.empty, as_of_ms=chosen.as_of_ms
        )
    form = str(situation.arguments.get("form", FORMS[0]))
    facts = situation.of("messages")
    rows = [
        situation.row(f"{form} {item['partition']} {item['offset']}", item, lambda each: _row(each, form))
        for item in situation.items("messages")
    ]
    return Page(
        head=[_head(facts, form), line()],
        columns=_COLUMNS,
        rows=rows,
        empty="no messages yet; they will come by themselves",
    )


def _head(facts: Mapping[str, Any], form: str) -> Line:
    following = facts.get("following")
    return line(
        (" ● following" if following else " ○ standing, f follows", Tone.GOOD if following else Tone.WARN),
        f"   {count(facts.get('received', 0))} read",
        (f"   {form}   its own reader, no subscription is touched", Tone.DIM),
    )


def _row(item: Mapping[str, Any], form: str) -> Row:
    untrusted = item["untrusted"]
    partition = item["partition"]
    attributes = ", ".join(f"{name}={value}" for name, value in untrusted["attributes"].items())
    cells = (
        Cell(str(item["offset"]), Tone.STRONG, item["offset"]),
        Cell("–" if partition is None else str(partition), Tone.DIM, partition),
        Cell(item["append_time"][11:23], Tone.DIM, item["append_time"]),
        Cell(untrusted["key"] or "", Tone.ACCENT, untrusted["key"] or ""),
        Cell(attributes[:SHOWN_CHARS], Tone.DIM, attributes),
        Cell(size(item["payload_bytes"]), Tone.DIM, item["payload_bytes"]),
        Cell(_payload(item, form)),
    )
    return Row(key=f"{partition} {item['offset']}", cells=cells, item=item)


def _payload(item: Mapping[str, Any], form: str) -> str:
    if form == "hex":
        return payload_of(item)[: SHOWN_CHARS // 3].hex(" ")
    if form == "decoded" and (value := value_of(item)) is not None:
        return (
            value[:SHOWN_CHARS]
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)[:SHOWN_CHARS]
        )
    return payload_of(item)[:SHOWN_CHARS].decode("utf-8", "replace")


def message_lines(item: Mapping[str, Any], form: str) -> list[Line]:
    """One message whole: where it stands, what it carries, its payload in the form that is chosen."""
    untrusted = item["untrusted"]
    where = (
        str(item["offset"])
        if item["partition"] is None
        else f"{item['offset']} of partition {item['partition']}"
    )
    lines = [
        line(("offset     ", Tone.DIM), where),
        line(
            ("stored     ", Tone.DIM),
            item["append_time"],
            (f"   published {item['publish_time']} by {untrusted['producer']}", Tone.DIM),
        ),
        line(("key        ", Tone.DIM), (untrusted["key"] or "–", Tone.ACCENT)),
        line(("attributes ", Tone.DIM), shown(untrusted["attributes"])),
        line(
            ("payload    ", Tone.DIM),
            f"{item['payload_bytes']} bytes, {form}" + (", cut" if item["truncated"] else ""),
        ),
        line(),
    ]
    payload = payload_of(item)
    if form == "hex":
        return lines + [
            line(
                (f"{at:08x}  ", Tone.DIM),
                f"{payload[at : at + 16].hex(' '):<48} ",
                (_letters(payload[at : at + 16]), Tone.ACCENT),
            )
            for at in range(0, len(payload), 16)
        ]
    value = value_of(item) if form == "decoded" else None
    text = (
        payload.decode("utf-8", "replace")
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, indent=2)
    )
    return lines + [line(each) for each in text.split("\n")]


def _letters(piece: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)


VIEW: Final = View(
    name="messages",
    title="Messages",
    summary="A topic's messages as they come, by a reader that touches no subscription: follow, jump, decoded, raw or hex.",
    asks=asks,
    page=page,
    columns=_COLUMNS,
    twin="danube consume TOPIC --json",
    aliases=("m", "tail"),
    may=("topic", "from"),
    live=True,
)
