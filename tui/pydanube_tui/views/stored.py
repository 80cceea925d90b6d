"""The journal and what keeps its segments, objects of the cold tier, schemas, dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydanube_tui.columns import custom, number, since, words
from pydanube_tui.page import Cell, Item, Line, Target, Tone, dim, fact, line
from pydanube_tui.payloads import is_null, payload_of
from pydanube_tui.text import clock, shown, size
from pydanube_tui.view import Ask, Extent, Situation, View, given, listed
from pydanube_tui.views.subscriptions import key_of, merged, place_of_subscription


def _journal_head(situation: Situation) -> list[Line]:
    journal = situation.of("journal")
    tier = situation.of("status").get("tier") or {}
    writes = ("   ✗ READ ONLY", Tone.BAD) if journal["read_only"] else ("   ✓ takes writes", Tone.GOOD)
    head = [
        line((f" {size(journal['bytes'])}B in {journal['segments']} segments", Tone.STRONG), writes),
        fact("addresses", f"durable up to {journal['durable_lsn']}, next {journal['next_lsn']}"),
    ]
    if tier.get("enabled"):
        errors = (f"   {tier['errors']} errors", Tone.BAD) if tier.get("errors") else dim("")
        wait = f"{size(tier['bytes_out'])}B, {size(tier['backlog_bytes'])}B wait"
        head.append(fact("tier", f"{tier['objects_written']} objects written, {wait}", errors))
        head.append(fact("at", dim(str(tier.get("url")))))
        head += [fact("stalled", (shown(reason), Tone.BAD)) for reason in tier.get("reasons", ())]
    return [*head, line()]


def _journal_items(situation: Situation) -> Iterator[Item]:
    """Return what keeps segments, then the segments, each with a name."""
    journal = situation.of("journal")
    for at, each in enumerate(journal["held_by"]):
        yield {**each, "what": f"held by {shown(each.get('topic') or each.get('reason') or at)}"}
    for at, each in enumerate(journal["sealed"]):
        yield {**each, "what": f"segment {at}"}


def _what(item: Item) -> Cell:
    return Cell(item["what"], Tone.WARN if item["what"].startswith("held") else Tone.PLAIN, item["what"])


def _objects_of(item: Item) -> Target | None:
    topic = item.get("topic")
    return Target(view="objects", arguments={"topic": topic}) if isinstance(topic, str) else None


JOURNAL: Final = View(
    name="journal",
    summary="Segments of the journal, their part in the tier, and the causes that delay their deletion.",
    twin="danube journal describe --json",
    asks=lambda _: {"journal": Ask(operation="journal.describe"), "status": Ask(operation="brokers.status")},
    columns=(
        custom("what", "N 24-40", _what),
        words(
            "details",
            "D 30-200 grows",
            lambda item: " · ".join(f"{key} {shown(value)}" for key, value in item.items() if key != "what"),
        ),
    ),
    items=_journal_items,
    enter=_objects_of,
    head=_journal_head,
    empty="no sealed segment: nothing waits to go",
    aliases=("segments", "wal"),
)

OBJECTS: Final = View(
    name="objects",
    summary="The objects of a topic in the cold tier, by their offsets.",
    twin="danube objects list TOPIC --json",
    asks=listed("objects.list", "topic"),
    columns=(
        number("from", "F 12-14 exact", "start_offset", tone=Tone.PLAIN),
        number("to", "12-14 exact", "end_offset", tone=Tone.PLAIN),
        number("messages", "M 8"),
        number("bytes", "B 7 bytes"),
        words("oldest", "A 19 drop=1", lambda item: clock(item["min_append_time"])),
        words("newest", "19 drop=2", lambda item: clock(item["max_append_time"])),
        words("path", "P 20-160 grows", tone=Tone.DIM),
    ),
    key=lambda item: str(item["path"]),
    empty="nothing of it is in the cold tier yet",
    takes=("topic",),
)


def _mode(item: Item) -> str:
    return str(item["compatibility_mode"]) + (" transitive" if item["transitive"] else "")


SCHEMAS: Final = View(
    name="schemas",
    summary="Subjects with their newest version and compatibility.",
    twin="danube schemas list --json",
    asks=listed("schemas.list"),
    columns=(
        words("subject", "N 20-60 grows", tone=Tone.STRONG),
        words("type", "T 12", "schema_type"),
        number("versions", "V 8", "latest_version", title="version"),
        words("mode", "C 13-24", _mode, title="compatibility"),
        words("topics", "O 12-60 grows"),
    ),
    enter=lambda item: Target(view="schema", arguments={"subject": item["subject"]}),
    empty="no schemas. danube schemas register makes one",
    sort=("subject", False),
)


def _schema_head(situation: Situation) -> Sequence[Line]:
    schema = situation.of("newest")
    text = str((schema.get("untrusted") or {}).get("schema_definition", ""))
    kind, version = (
        (f" {schema.get('schema_type', '')} ", Tone.STRONG),
        f"version {schema.get('version', '–')}",
    )
    first = line(kind, version, dim(f"   {schema.get('compatibility_mode', '')}"))
    shown_lines = text.splitlines()[: max(3, situation.height // 3)]
    return [first, *(line(f"   {each}") for each in shown_lines), line()]


SCHEMA: Final = View(
    name="schema",
    summary="Versions of a subject. d shows how the selected one differs from the one before, x tries a new one.",
    twin="danube schemas versions SUBJECT --json",
    asks=lambda arguments: {
        **listed("schemas.versions", "subject")(arguments),
        "newest": Ask(operation="schemas.get", arguments=given(arguments, "subject"), optional=True),
    },
    columns=(
        number("version", "V 8"),
        words("type", "12", "schema_type"),
        since("made", "A", "created_at"),
        words("by", "12-24 drop=1", lambda item: item["untrusted"].get("created_by") or "–"),
        words("description", "16-80 grows", lambda item: item["untrusted"].get("description") or ""),
        words("fingerprint", "F 16-70 drop=2", tone=Tone.DIM),
    ),
    head=_schema_head,
    empty="no version is left",
    sort=("version", True),
    takes=("subject",),
)


def _reason(item: Item) -> Cell:
    reason = item["untrusted"].get("reason")
    return Cell(str(reason or "–"), Tone.WARN, str(reason or ""))


def _tries(item: Item) -> Cell:
    tries = str(item["untrusted"].get("delivery_attempt") or "–")
    return Cell(tries, Tone.PLAIN, float(tries) if tries.isdecimal() else None)


def _payload(item: Item) -> str:
    """Return the payload, as far as the answer has it: a long list has no room for all."""
    if is_null(item):
        return "null"
    text = payload_of(item).decode("utf-8", "replace")
    return text or (f"({size(item['payload_bytes'])}B, left out of this list)" if item["truncated"] else "")


def _letters(situation: Situation) -> Iterator[Item]:
    """Return the dead letters with topic and subscription, from which actions take their arguments."""
    return ({**item, **situation.arguments} for item in situation.items())


def _reasons(situation: Situation) -> list[Line]:
    reasons = Counter(str(item["untrusted"].get("reason") or "no reason given") for item in situation.items())
    more = " of the first hundred" if situation.of("list").get("next_page") else ""
    most = [line((f" {times:>6} × ", Tone.STRONG), reason) for reason, times in reasons.most_common(5)]
    return [*most, line((more, Tone.DIM))]


DEAD_LETTERS: Final = View(
    name="dead-letters",
    summary="Messages that were given up, with their reasons. a delivers the marked ones again.",
    twin="danube dead-letters list TOPIC SUBSCRIPTION --json",
    asks=listed("dead_letters.list", "topic", "subscription", extent=Extent.ONE, limit=100),
    columns=(
        number("offset", "N 8-14 exact", tone=Tone.STRONG),
        custom("reason", "R 16-60 grows", _reason),
        custom("attempts", "A 5 right count", _tries, title="tries"),
        words("time", "T 19 drop=2", lambda item: clock(item["append_time"]), title="when", tone=Tone.DIM),
        words(
            "from",
            "F 16-40 drop=1",
            lambda item: f"{item['original_topic']} {item['original_offset']}",
            tone=Tone.DIM,
        ),
        words("key", "K 8-24 drop=3", lambda item: item["untrusted"].get("key") or ""),
        words("payload", "16-120 grows", _payload),
    ),
    items=_letters,
    head=_reasons,
    empty="no dead letters",
    sort=("offset", False),
    dated=(),
    aliases=("dead", "dlq"),
    may=("topic", "subscription"),
    instead=lambda arguments: None if "subscription" in arguments else _ALL_DEAD,
)
_ALL_DEAD: Final[View] = replace(  # which subscriptions have any
    DEAD_LETTERS,
    asks=listed("subscriptions.lag", "topic"),
    columns=(
        number("offset", "N 8", "dead_lettered", title="letters", tone=Tone.WARN),
        words(
            "reason",
            "R 20-90 grows",
            lambda item: f"{item['topic']} › {item['subscription']}",
            title="subscription",
            tone=Tone.STRONG,
        ),
    ),
    items=lambda situation: [item for item in merged(situation.items()) if item.get("dead_lettered")],
    key=key_of,
    enter=lambda item: place_of_subscription(item, "dead-letters"),
    head=lambda _: (),
    empty="no subscription has given up a message since the broker started",
    sort=("offset", True),
)
