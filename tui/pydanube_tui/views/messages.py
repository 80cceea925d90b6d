"""Messages of a topic as they come: decoded, raw or in hex; without a topic, the topics to choose from."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydanube_tui.columns import column, told, words
from pydanube_tui.page import Cell, Item, Line, Target, Tone, line
from pydanube_tui.payloads import json_text, payload_of, value_of
from pydanube_tui.text import count, shown, size
from pydanube_tui.view import Situation, View
from pydanube_tui.views import topics

FORMS: Final = ("decoded", "raw", "hex")
SHOWN_CHARS: Final = 400  # of a payload in its row


def _head(situation: Situation) -> list[Line]:
    facts = situation.of("messages")
    following = facts.get("following")
    first = line(
        (" ● following" if following else " ○ standing, f follows", Tone.GOOD if following else Tone.WARN),
        f"   {count(facts.get('received', 0))} read",
        (f"   {situation.form}   its own reader, no subscription is touched", Tone.DIM),
    )
    return [first, line()]


def _partition(item: Item) -> Cell:
    partition = item["partition"]
    return Cell("–" if partition is None else str(partition), Tone.DIM, partition)


def _key(item: Item) -> str:
    return item["untrusted"]["key"] or ""


def _attributes(item: Item) -> str:
    return ", ".join(f"{name}={value}" for name, value in item["untrusted"]["attributes"].items())[
        :SHOWN_CHARS
    ]


def _payload(item: Item, form: str) -> str:
    if form == "hex":
        return payload_of(item)[: SHOWN_CHARS // 3].hex(" ")
    if form == "decoded" and (value := value_of(item)) is not None:
        return (value if isinstance(value, str) else json_text(value))[:SHOWN_CHARS]
    return payload_of(item)[:SHOWN_CHARS].decode("utf-8", "replace")


def message_lines(item: Item, form: str) -> list[Line]:
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
        else json_text(value, indent=2)
    )
    return lines + [line(each) for each in text.split("\n")]


def _letters(piece: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)


VIEW: Final = View(
    name="messages",
    title="Messages",
    summary="A topic's messages as they come, by a reader that touches no subscription: follow, jump, decoded, raw or hex.",
    twin="danube consume TOPIC --json",
    asks=lambda _: {},
    columns=(
        told(
            "offset",
            "N 9-14 right count",
            lambda item: Cell(str(item["offset"]), Tone.STRONG, item["offset"]),
        ),
        told("partition", "P 4 right drop=4 count", _partition, title="part"),
        told(
            "time",
            "T 12 drop=3",
            lambda item: Cell(item["append_time"][11:23], Tone.DIM, item["append_time"]),
            title="stored",
        ),
        words("key", "K 8-24 drop=2", _key, tone=Tone.ACCENT),
        words("attributes", "A 10-30 drop=5", _attributes, tone=Tone.DIM),
        told(
            "size",
            "S 6 right bytes drop=1",
            lambda item: Cell(size(item["payload_bytes"]), Tone.DIM, item["payload_bytes"]),
        ),
        column("payload", "20-400 grows", cell=lambda item, situation: Cell(_payload(item, situation.form))),
    ),
    items=lambda situation: situation.items("messages"),
    key=lambda item: f"{item['partition']} {item['offset']}",
    head=_head,
    empty="no messages yet; they will come by themselves",
    dated=(),
    aliases=("m", "tail"),
    may=("topic", "from"),
    live=True,
    instead=lambda arguments: None if "topic" in arguments else _CHOICE,
)
_CHOICE: Final[View] = replace(  # without a topic: those there are
    topics.LIST,
    name=VIEW.name,
    title=VIEW.title,
    summary=VIEW.summary,
    enter=lambda item: Target(view="messages", arguments={"topic": item["topic"]}),
    head=lambda _: [line((" choose a topic; Enter reads it", Tone.DIM)), line()],
    sort=None,
)
