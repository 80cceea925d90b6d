"""Messages of a topic as they arrive: decoded, raw or in hex. Without a topic, topics to choose from."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydanube_tui.columns import column, custom, number, words
from pydanube_tui.page import Cell, Item, Line, Span, Target, Tone, dim, line
from pydanube_tui.payloads import is_null, payload_of, value_of, written
from pydanube_tui.text import count, shown
from pydanube_tui.view import Situation, View
from pydanube_tui.views import topics

FORMS: Final = ("decoded", "raw", "hex")
SHOWN_CHARS: Final = 400  # of a payload in its row


def _head(situation: Situation) -> list[Line]:
    facts = situation.of("messages")
    following = facts.get("following")
    state = (" ● following", Tone.GOOD) if following else (" ○ standing, f follows", Tone.WARN)
    how = dim(f"   {situation.form}   its own reader, no subscription is touched")
    return [line(state, f"   {count(facts.get('received', 0))} read", how), line()]


def _stored(item: Item) -> Cell:
    return Cell(item["append_time"][11:23], Tone.DIM, item["append_time"])


def _key(item: Item) -> str:
    return item["untrusted"]["key"] or ""


def _attributes(item: Item) -> str:
    found = item["untrusted"]["attributes"]
    return ", ".join(f"{name}={value}" for name, value in found.items())[:SHOWN_CHARS]


def _payload(item: Item, form: str) -> str:
    if is_null(item):
        return "null"
    if form == "hex":
        return payload_of(item)[: SHOWN_CHARS // 3].hex(" ")
    if form == "decoded" and (value := value_of(item)) is not None:
        return (value if isinstance(value, str) else written(value))[:SHOWN_CHARS]
    return payload_of(item)[:SHOWN_CHARS].decode("utf-8", "replace")


def message_lines(item: Item, form: str) -> list[Line]:
    """Return one whole message in lines: its position, its fields, its payload in the chosen form."""
    untrusted = item["untrusted"]
    where = "" if item["partition"] is None else f" of partition {item['partition']}"
    told_of = f"{item['payload_bytes']} bytes, {form}" + (", cut" if item["truncated"] else "")
    if is_null(item):
        told_of = "null: its key is deleted"
    lines = [
        _fact("offset", f"{item['offset']}{where}"),
        _fact(
            "stored",
            item["append_time"],
            dim(f"   published {item['publish_time']} by {untrusted['producer']}"),
        ),
        _fact("key", (untrusted["key"] or "–", Tone.ACCENT)),
        _fact("attributes", shown(untrusted["attributes"])),
        _fact("payload", told_of),
        line(),
    ]
    payload = payload_of(item)
    if form == "hex":
        pieces = [(at, payload[at : at + 16]) for at in range(0, len(payload), 16)]
        return lines + [
            line(dim(f"{at:08x}  "), f"{piece.hex(' '):<48} ", (_letters(piece), Tone.ACCENT))
            for at, piece in pieces
        ]
    value = value_of(item) if form == "decoded" else None
    if value is None:
        value = payload.decode("utf-8", "replace")
    text = value if isinstance(value, str) else written(value, indent=2)
    return lines + [line(each) for each in text.split("\n")]


def _fact(title: str, *spans: Span | str) -> Line:
    return line(dim(f"{title:<11}"), *spans)


def _letters(piece: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)


VIEW: Final = View(
    name="messages",
    summary="A topic's messages as they come, by a reader that touches no subscription: follow, jump, decoded, raw or hex.",
    twin="danube consume TOPIC --json",
    asks=lambda _: {},
    columns=(
        number("offset", "N 9-14 exact", tone=Tone.STRONG),
        number("partition", "P 4 drop=4 exact", title="part", tone=Tone.DIM),
        custom("time", "T 12 drop=3", _stored, title="stored"),
        words("key", "K 8-24 drop=2", _key, tone=Tone.ACCENT),
        words("attributes", "A 10-30 drop=5", _attributes, tone=Tone.DIM),
        number("size", "S 6 bytes drop=1", "payload_bytes", tone=Tone.DIM),
        column("payload", "20-400 grows", cell=lambda item, situation: Cell(_payload(item, situation.form))),
    ),
    items=lambda situation: situation.items("messages"),
    key=lambda item: f"{item['partition']} {item['offset']}",
    head=_head,
    empty="no messages yet. They will appear here",
    dated=(),
    aliases=("m", "tail"),
    may=("topic", "from"),
    live=True,
    instead=lambda arguments: None if "topic" in arguments else _CHOICE,
)
_CHOICE: Final[View] = replace(  # without a topic: those there are
    topics.LIST,
    name=VIEW.name,
    summary=VIEW.summary,
    enter=lambda item: Target(view="messages", arguments={"topic": item["topic"]}),
    head=lambda _: [line((" choose a topic. Enter reads it", Tone.DIM)), line()],
    sort=None,
)
