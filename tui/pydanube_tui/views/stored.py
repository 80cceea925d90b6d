"""What lies where: the journal and what holds it, objects of the cold tier, schemas, dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_tui.page import Cell, Column, Line, Page, Row, Target, Tone, line
from pydanube_tui.payloads import payload_of
from pydanube_tui.text import clock, count, size
from pydanube_tui.view import Ask, Extent, Situation, View
from pydanube_tui.views.listing import Item, Listing, number, since, view_of, words
from pydanube_tui.views.subscriptions import grouped
from pydanube_tui.views.wording import shown

_JOURNAL_COLUMNS: Final = (
    Column(name="what", title="what", key="N", least=24, most=40),
    Column(name="details", title="details", key="D", least=30, most=200, grows=True),
)


def _journal(situation: Situation) -> Page:
    journal, status = situation.of("journal"), situation.of("status")
    tier = status.get("tier") or {}
    head = [
        line(
            (f" {size(journal['bytes'])}B in {journal['segments']} segments", Tone.STRONG),
            *([("   ✗ READ ONLY", Tone.BAD)] if journal["read_only"] else [("   ✓ takes writes", Tone.GOOD)]),
        ),
        line(
            (" addresses  ", Tone.DIM), f"durable up to {journal['durable_lsn']}, next {journal['next_lsn']}"
        ),
    ]
    if tier.get("enabled"):
        errors = (f"   {tier['errors']} errors", Tone.BAD) if tier.get("errors") else ("", Tone.DIM)
        told = f"{tier['objects_written']} objects written, {size(tier['bytes_out'])}B, {size(tier['backlog_bytes'])}B wait"
        head += [
            line((" tier       ", Tone.DIM), told, errors),
            line((" at         ", Tone.DIM), (str(tier.get("url")), Tone.DIM)),
        ]
        head += [
            line((" stalled    ", Tone.DIM), (shown(reason), Tone.BAD)) for reason in tier.get("reasons", ())
        ]
    rows = [
        _fact(f"held by {shown(each.get('topic') or each.get('reason') or number)}", each, Tone.WARN)
        for number, each in enumerate(journal["held_by"])
    ]
    rows += [_fact(f"segment {number}", each, Tone.PLAIN) for number, each in enumerate(journal["sealed"])]
    return Page(
        head=[*head, line()],
        columns=_JOURNAL_COLUMNS,
        rows=rows,
        empty="no sealed segment: nothing waits to go",
    )


def _fact(name: str, facts: Item, tone: Tone) -> Row:
    details = " · ".join(f"{key} {shown(value)}" for key, value in facts.items())
    enter = (
        Target(view="objects", arguments={"topic": facts["topic"]})
        if isinstance(facts.get("topic"), str)
        else None
    )
    return Row(
        key=name, cells=(Cell(name, tone, name), Cell(details, Tone.PLAIN, details)), item=facts, enter=enter
    )


JOURNAL: Final = View(
    name="journal",
    title="Journal",
    summary="Segments of the journal, what has gone to the tier, and what holds up their deletion.",
    asks=lambda _: {"journal": Ask(operation="journal.describe"), "status": Ask(operation="brokers.status")},
    page=_journal,
    columns=_JOURNAL_COLUMNS,
    twin="danube journal describe --json",
    aliases=("segments", "wal"),
)

OBJECTS: Final = view_of(
    Listing(
        operation="objects.list",
        takes=("topic",),
        shapes=(
            words("from", "from", "start_offset", key="F", least=12, most=14, right=True),
            words("to", "to", "end_offset", least=12, most=14, right=True),
            number("messages", "messages", key="M", least=8, most=8),
            number("bytes", "bytes", key="B", least=7, most=7, unit="bytes"),
            words(
                "oldest",
                "oldest",
                lambda item: clock(item["min_append_time"]),
                key="A",
                least=19,
                most=19,
                drop=1,
            ),
            words("newest", "newest", lambda item: clock(item["max_append_time"]), least=19, most=19, drop=2),
            words("path", "path", key="P", least=20, most=160, grows=True, tone=Tone.DIM),
        ),
        key=lambda item: str(item["path"]),
        empty="nothing of it is in the cold tier yet",
    ),
    name="objects",
    title="Objects",
    summary="What the cold tier has of a topic: objects by their offsets.",
    twin="danube objects list TOPIC --json",
    takes=("topic",),
)

SCHEMAS: Final = view_of(
    Listing(
        operation="schemas.list",
        shapes=(
            words("subject", "subject", key="N", least=20, most=60, grows=True, tone=Tone.STRONG),
            words("type", "type", "schema_type", key="T", least=12, most=12),
            number("versions", "version", "latest_version", key="V", least=7, most=7),
            words(
                "mode",
                "compatibility",
                lambda item: item["compatibility_mode"] + (" transitive" if item["transitive"] else ""),
                key="C",
                least=13,
                most=24,
            ),
            words("topics", "topics", key="O", least=12, most=60, grows=True),
        ),
        key=lambda item: str(item["subject"]),
        empty="no schemas; danube schemas register makes one",
        enter=lambda item: Target(view="schema", arguments={"subject": item["subject"]}),
        sort=("subject", False),
    ),
    name="schemas",
    title="Schemas",
    summary="Subjects with their newest version and compatibility.",
    twin="danube schemas list --json",
)


def _schema_head(situation: Situation) -> Sequence[Line]:
    schema = situation.of("newest")
    text = str((schema.get("untrusted") or {}).get("schema_definition", ""))
    lines = text.splitlines()[: max(3, situation.height // 3)]
    head = [
        line(
            (f" {schema.get('schema_type', '')} ", Tone.STRONG),
            f"version {schema.get('version', '–')}",
            (f"   {schema.get('compatibility_mode', '')}", Tone.DIM),
        )
    ]
    return [*head, *(line(f"   {each}") for each in lines), line()]


def _asks_schema(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    named = {"subject": arguments["subject"]}
    return {
        "list": Ask(operation="schemas.versions", arguments=named, extent=Extent.ALL),
        "newest": Ask(operation="schemas.get", arguments=named, optional=True),
    }


_VERSIONS: Final = Listing(
    operation="schemas.versions",
    takes=("subject",),
    shapes=(
        number("version", "version", key="V", least=7, most=7),
        words("type", "type", "schema_type", least=12, most=12),
        since("made", "made", "created_at", key="A"),
        words("by", "by", lambda item: item["untrusted"].get("created_by") or "–", least=12, most=24, drop=1),
        words(
            "description",
            "description",
            lambda item: item["untrusted"].get("description") or "",
            least=16,
            most=80,
            grows=True,
        ),
        words("fingerprint", "fingerprint", key="F", least=16, most=70, drop=2, tone=Tone.DIM),
    ),
    key=lambda item: str(item["version"]),
    empty="no version is left",
    sort=("version", True),
    head=_schema_head,
)
SCHEMA: Final = View(
    name="schema",
    title="Schema",
    summary="Versions of a subject; d shows how the selected one differs from the one before, x tries a new one.",
    asks=_asks_schema,
    page=_VERSIONS.page,
    columns=_VERSIONS.columns,
    twin="danube schemas versions SUBJECT --json",
    takes=("subject",),
)

_DEAD_COLUMNS: Final = (
    Column(name="offset", title="offset", key="N", least=8, most=14, right=True, unit="count"),
    Column(name="reason", title="reason", key="R", least=16, most=60, grows=True),
    Column(name="attempts", title="tries", key="A", least=5, most=5, right=True, unit="count"),
    Column(name="time", title="when", key="T", least=19, most=19, drop=2),
    Column(name="from", title="from", key="F", least=16, most=40, drop=1),
    Column(name="key", title="key", key="K", least=8, most=24, drop=3),
    Column(name="payload", title="payload", least=16, most=120, grows=True),
)


def _asks_dead(arguments: Mapping[str, Any]) -> Mapping[str, Ask]:
    if "subscription" in arguments:
        named = {"topic": arguments["topic"], "subscription": arguments["subscription"]}
        return {"list": Ask(operation="dead_letters.list", arguments={**named, "limit": 100})}
    named = {"topic": arguments["topic"]} if "topic" in arguments else {}
    return {"lag": Ask(operation="subscriptions.lag", arguments=named, extent=Extent.ALL)}


def _dead(situation: Situation) -> Page:
    if "subscription" not in situation.arguments:
        return _dead_of_all(situation)
    items = situation.items("list")
    reasons = Counter(str(item["untrusted"].get("reason") or "no reason given") for item in items)
    head = [line((f" {number:>6} × ", Tone.STRONG), reason) for reason, number in reasons.most_common(5)]
    more = situation.of("list").get("next_page")
    head.append(line((" of the first hundred" if more else "", Tone.DIM)))
    rows = []
    for item in items:
        untrusted = item["untrusted"]
        attempts = str(untrusted.get("delivery_attempt") or "–")
        cells = (
            Cell(str(item["offset"]), Tone.STRONG, item["offset"]),
            Cell(str(untrusted.get("reason") or "–"), Tone.WARN, str(untrusted.get("reason") or "")),
            Cell(attempts, Tone.PLAIN, float(attempts) if attempts.isdecimal() else None),
            Cell(clock(item["append_time"]), Tone.DIM, item["append_time"]),
            Cell(
                f"{item['original_topic']} {item['original_offset']}", Tone.DIM, str(item["original_topic"])
            ),
            Cell(str(untrusted.get("key") or ""), Tone.PLAIN, str(untrusted.get("key") or "")),
            Cell(payload_of(item).decode("utf-8", "replace")),
        )
        rows.append(Row(key=str(item["offset"]), cells=cells, item={**item, **situation.arguments}))
    return Page(head=head, columns=_DEAD_COLUMNS, rows=rows, empty="no dead letters", sort=("offset", False))


def _dead_of_all(situation: Situation) -> Page:
    """Which subscriptions have any."""
    rows = []
    for each in grouped(situation.items("lag")):
        dead = int(each.total("dead_lettered") or 0)
        if dead:
            place = {"topic": each.topic, "subscription": each.subscription}
            cells = (
                Cell(count(dead), Tone.WARN, dead),
                Cell(f"{each.topic} › {each.subscription}", Tone.STRONG, each.key),
                *[Cell("")] * (len(_DEAD_COLUMNS) - 2),
            )
            rows.append(
                Row(
                    key=each.key,
                    cells=cells,
                    item=each.item(),
                    enter=Target(view="dead-letters", arguments=place),
                )
            )
    columns = (
        Column(name="offset", title="letters", key="N", least=8, most=8, right=True, unit="count"),
        Column(name="reason", title="subscription", key="R", least=20, most=90, grows=True),
        *_DEAD_COLUMNS[2:2],
    )
    return Page(
        columns=columns,
        rows=rows,
        empty="no subscription has given up a message since the broker started",
        sort=("offset", True),
    )


DEAD_LETTERS: Final = View(
    name="dead-letters",
    title="Dead letters",
    summary="Messages that were given up, with their reasons; a puts the marked ones back where they came from.",
    asks=_asks_dead,
    page=_dead,
    columns=_DEAD_COLUMNS,
    twin="danube dead-letters list TOPIC SUBSCRIPTION --json",
    aliases=("dead", "dlq"),
    may=("topic", "subscription"),
)
