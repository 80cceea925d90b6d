"""Dead letters: list them by case, and deliver their originals again.

A letter is a copy that names its original by topic and offset. A replay delivers the original once more, at its own place
and to the one subscription where it failed, after comparing it with the letter. Nothing of the letter itself is delivered,
so a forged letter has no effect. Originals that are gone are counted by reason. With `to` the letters are copied instead,
without the attributes that the broker added.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import Field
from pydanube_core.errors import Conflict, InvalidArgument, TopicNotFound
from pydanube_core.facts import MessageFacts, Redelivery, TopicFacts
from pydanube_core.names import TopicName
from pydanube_core.refusals import system_is_closed
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, entry
from pydanube_admin.engine.models import (
    Change,
    Effect,
    ListRequest,
    Page,
    Request,
    Result,
    SubscriptionArgument,
    TopicArgument,
)
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.paging import cut, glob, none_because
from pydanube_admin.operations.dead_letter_records import (
    ADDED,
    MAX_REASON_CHARS,
    Letter,
    change_replays,
    digest_of,
    letter_of,
    own_attributes,
    remembered_replays,
    replays_of,
)
from pydanube_admin.operations.messages import CHUNK, CHUNK_BYTES, MaxBytes, fenced
from pydanube_admin.operations.offset_ranges import MOST_AT_ONCE, merged, ranges_of_text, within
from pydanube_admin.operations.subscriptions import subscription_facts
from pydanube_admin.operations.topics import Topic, find_topic

MAX_LOOKED_AT: Final = 100_000  # messages of the dead-letter topic in one call
MAX_REPLAYED: Final = 10_000  # in one call: their window has room for 65 536
MAX_GROUPS: Final = 20  # reasons that are listed
MAX_LISTED_REPLAYS: Final = 10  # of a letter
PREFIX: Final = "replays/"

Kept = TypeVar("Kept")  # the part of a message that is held
State = Literal["waiting", "replayed", "handled", "failed_again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """The letters of a subscription. `unread`: messages of the dead-letter topic beyond those that were looked at."""

    target: str
    ids: Mapping[str, int]  # of the concrete dead-letter topics
    found: Sequence[Letter]
    unread: int
    states: Mapping[tuple[str, int], State]
    replays: Mapping[tuple[str, int], list[dict[str, Any]]]
    key: str  # of the record of replays


def _has_reason(letter: Letter, asked: str | None) -> bool:
    return asked is None or asked[:MAX_REASON_CHARS] == letter.reason


async def _letters(context: Context, topic: Topic, subscription: str, *, first: int = 0) -> Letters:
    """Return the letters from the offset `first` of the dead-letter topic. Later copies decide their states."""
    facts = await subscription_facts(context, topic.own.topic, subscription)
    policy = await context.port.failure_policy(topic.own.topic, subscription)
    target = str(policy["dead_letter_topic"] or f"{topic.own.topic}-dlq-{subscription}")
    logs = {log.topic for log in topic.logs}
    found: list[Letter] = []
    left, unread = MAX_LOOKED_AT, 0
    try:
        own, *parts = await context.port.topic(target)
    except TopicNotFound:
        own, parts = None, []  # there is no letter yet
    dead: list[TopicFacts] = parts or ([] if own is None else [own])
    for log in dead:
        at = min(max(log.start_offset, first), log.next_offset)
        while at < log.next_offset and left > 0:
            chunk = await context.port.read_messages(
                log.topic, start=at, end=log.next_offset, max_messages=min(CHUNK, left), max_bytes=CHUNK_BYTES
            )
            if not chunk:
                at = log.next_offset
                break
            at, left = chunk[-1].offset + 1, left - len(chunk)
            found += [letter_of(each) for each in chunk if _is_of(each, logs, subscription)]
        unread += log.next_offset - at
    key = f"{PREFIX}{facts[0].subscription_id}"
    ids = {log.topic: log.topic_id for log in dead}
    replays = await replays_of(await remembered_replays(context, key), ids, found)
    states = await _states(context, subscription, found, replays)
    return Letters(
        target=target, ids=ids, found=found, unread=unread, states=states, replays=replays, key=key
    )


def _is_of(message: MessageFacts, logs: Collection[str], subscription: str) -> bool:
    attributes = message.attributes
    return (
        attributes.get("x-original-topic") in logs
        and attributes.get("x-original-subscription") == subscription
    )


async def still_open(context: Context, log: str, subscription: str, offsets: Sequence[int]) -> set[int]:
    """Return which offsets of a concrete topic are not acknowledged. The loop is free between two queries."""
    ordered, found = sorted(offsets), set[int]()
    for at in range(0, len(ordered), MOST_AT_ONCE):
        some = ordered[at : at + MOST_AT_ONCE]
        found.update(await context.port.unacknowledged(log, subscription, some))
        await asyncio.sleep(0)
    return found


async def _states(
    context: Context,
    subscription: str,
    found: Sequence[Letter],
    replays: Mapping[tuple[str, int], object],
) -> dict[tuple[str, int], State]:
    newest = {letter.contents: letter for letter in found}
    asked: dict[str, list[int]] = {}
    for letter in newest.values():
        if (letter.log, letter.offset) in replays and letter.original_offset is not None:
            asked.setdefault(letter.original_log, []).append(letter.original_offset)
    unacked = {
        (log, offset)
        for log, offsets in asked.items()
        for offset in await still_open(context, log, subscription, offsets)
    }
    states: dict[tuple[str, int], State] = {}
    for letter in found:
        place = (letter.log, letter.offset)
        if newest[letter.contents] is not letter and letter.original_offset is not None:
            states[place] = "failed_again"
        elif place not in replays:
            states[place] = "waiting"
        else:
            states[place] = "replayed" if letter.original in unacked else "handled"
    return states


class ListDeadLettersRequest(ListRequest):
    topic: TopicArgument
    subscription: SubscriptionArgument
    max_bytes: MaxBytes = 16_384
    state: Annotated[State | None, Field(description="Only in this state")] = None
    reason: Annotated[str | None, Field(max_length=1000, description="Only with this reason")] = None


class DeadLetterItem(Result):
    """A copy in the dead-letter topic."""

    identity: ClassVar = ("dead_letter_topic", "offset")

    dead_letter_topic: str
    offset: int  # offset in the dead-letter topic
    original_topic: str
    original_offset: int | None
    state: State
    replayed: list[dict[str, Any]]  # {call_id, at, principal}
    append_time: str
    payload_bytes: int
    truncated: bool
    untrusted: dict[str, Any]  # reason, attempts, text or base64, key, attributes


class DeadLetterGroup(Result):
    """Letters with the same reason."""

    messages: int
    states: dict[str, int]
    first_offset: int
    last_offset: int
    untrusted: dict[str, Any]  # reason


class DeadLetterPage(Page[DeadLetterItem]):
    groups: list[DeadLetterGroup]  # the largest first
    left: int = 0  # messages of the dead-letter topic that were not looked at


@operation(
    "dead_letters.list",
    effect=Effect.READ,
    summary="List messages of a subscription that failed too often, with why, and whether they were replayed since.",
    examples=(Example({"topic": "orders", "subscription": "billing"}, "all of them"),),
)
async def list_dead_letters(context: Context, request: ListDeadLettersRequest) -> DeadLetterPage:
    topic = await find_topic(context, request.topic)
    letters = await _letters(context, topic, request.subscription)
    matches = glob(request.filter)
    found = [
        letter
        for letter in letters.found
        if matches(letter.original_log)
        and _has_reason(letter, request.reason)
        and request.state in (None, letters.states[letter.log, letter.offset])
    ]
    page = cut(
        found, key=lambda each: (each.log, each.offset), operation="dead_letters.list", request=request
    )
    room, items = request.max_bytes, []
    for letter in page.items:
        message = await _read(context, letter)
        if message is None:
            continue  # retention has taken it since
        body, is_cut, used = fenced(replace(message, attributes=own_attributes(message)), room)
        room -= used
        attempt = message.attributes.get("x-delivery-attempt", "")[:20]
        body |= {"reason": letter.reason or None, "delivery_attempt": attempt or None}
        items.append(
            DeadLetterItem(
                dead_letter_topic=letter.log,
                offset=letter.offset,
                original_topic=letter.original_log,
                original_offset=letter.original_offset,
                state=letters.states[letter.log, letter.offset],
                replayed=letters.replays.get((letter.log, letter.offset), [])[-MAX_LISTED_REPLAYS:],
                append_time=format_time(message.append_time_ms),
                payload_bytes=len(message.payload),
                truncated=is_cut,
                untrusted=body,
            )
        )
    return DeadLetterPage(
        items=items,
        items_reason=None if page.total else none_because(request),
        next_page=page.next_page,
        total=page.total,
        as_of=format_time(context.now_ms()),
        groups=_groups(found, letters.states),
        left=letters.unread,
    )


async def _read(context: Context, letter: Letter) -> MessageFacts | None:
    found = await context.port.read_messages(
        letter.log, start=letter.offset, end=letter.offset + 1, max_messages=1, max_bytes=CHUNK_BYTES
    )
    return found[0] if found else None


def _groups(found: Sequence[Letter], states: Mapping[tuple[str, int], State]) -> list[DeadLetterGroup]:
    by_reason: dict[str, list[Letter]] = {}
    for letter in found:
        by_reason.setdefault(letter.reason, []).append(letter)
    largest = sorted(by_reason.items(), key=lambda each: -len(each[1]))[:MAX_GROUPS]
    return [
        DeadLetterGroup(
            messages=len(some),
            states=dict(Counter(states[each.log, each.offset] for each in some)),
            first_offset=min(each.offset for each in some),
            last_offset=max(each.offset for each in some),
            untrusted={"reason": reason or None},
        )
        for reason, some in largest
    ]


class ReplayDeadLettersRequest(Request):
    topic: TopicArgument
    subscription: SubscriptionArgument
    offsets: Annotated[
        str | None,
        Field(max_length=4096, description="In the dead-letter topic: 3,7,10-90. Default: all"),
    ] = None
    until: Annotated[int | None, Field(ge=0, description="Only before this offset there")] = None
    reason: Annotated[str | None, Field(max_length=1000, description="Only with this reason")] = None
    again: Annotated[bool, Field(description="Also those that were replayed before")] = False
    to: Annotated[
        str | None,
        Field(
            max_length=512,
            description="Copy the letters to this topic, as their originals were, in place of a redelivery",
        ),
    ] = None


class ReplayedDeadLetters(Change):
    topic: str
    subscription: str
    dead_letter_topic: str
    delivered_to: str  # the subscription, or the topic of `to`
    messages: int
    already_waiting: int  # their originals are not acknowledged
    replayed_before: int  # left out without `again`
    not_there: dict[str, int]  # originals that are gone or another message, by reason
    left: int  # beyond the limit of one call


@dataclass(slots=True, kw_only=True)
class _Choice:
    """The letters that a replay is about, and the ones that it leaves out."""

    letters: Letters
    chosen: list[Letter] = field(default_factory=list)
    replayed_before: list[Letter] = field(default_factory=list)
    already_waiting: int = 0
    not_there: Counter[str] = field(default_factory=Counter)
    left: int = 0
    planned: Mapping[str, Any] | None = None  # the letters that the plan has pinned

    def counts(self) -> dict[str, Any]:
        """Return how many letters are left out, also by the plan."""
        before = {} if self.planned is None else self.planned["left_out"]
        return {
            "already_waiting": self.already_waiting + before.get("already_waiting", 0),
            "replayed_before": len(self.replayed_before) + before.get("replayed_before", 0),
            "not_there": dict(+(self.not_there + Counter(before.get("not_there", {})))),
            "left": self.left + before.get("left", 0),
        }

    @property
    def originals(self) -> dict[tuple[str, int], int]:
        """Return the deliveries of each original of the chosen letters: two letters may have the same one."""
        found: dict[tuple[str, int], int] = {}
        for letter in self.chosen:
            if letter.original_offset is not None:
                place = letter.original_log, letter.original_offset
                found[place] = max(letter.deliveries, found.get(place, 0))
        return found

    @property
    def earlier(self) -> list[dict[str, Any]]:
        """Return the replays of the chosen letters, and of those left out as replayed before."""
        return self.replays_of([*self.chosen, *self.replayed_before])

    def replays_of(self, letters: Iterable[Letter]) -> list[dict[str, Any]]:
        found = (said for each in letters for said in self.letters.replays.get((each.log, each.offset), ()))
        return list({said["call_id"]: said for said in found}.values())

    @property
    def pinned(self) -> dict[str, Any]:
        ranges: dict[str, list[list[int]]] = {}
        for letter in sorted(self.chosen, key=lambda each: (each.log, each.offset)):
            runs = ranges.setdefault(letter.log, [])
            if runs and runs[-1][1] == letter.offset:
                runs[-1][1] += 1
            else:
                runs.append([letter.offset, letter.offset + 1])
        return {"letters": ranges, "left_out": self.counts()}


async def _choose(context: Context, topic: Topic, request: ReplayDeadLettersRequest) -> _Choice:
    """Choose letters by the request or by its plan, and compare the originals with them."""
    wanted = None if request.offsets is None else ranges_of_text(request.offsets)
    first = min((start for start, _ in wanted or ()), default=0)
    found = await _letters(context, topic, request.subscription, first=first)
    choice = _Choice(letters=found, planned=context.pinned)
    letters = choice.letters
    if wanted is not None:
        there = {letter.offset for letter in letters.found}
        missing = [start for start, end in wanted if end == start + 1 and start not in there]
        if missing:
            raise InvalidArgument(
                f"offsets: {letters.target} has no dead letter of {request.subscription!r} at {missing[:10]}",
                field="offsets",
                value=missing[:10],
            )
    is_wanted = None if wanted is None else within(wanted)
    pinned = None
    if context.pinned is not None:
        pinned = {
            (log, offset)
            for log, ranges in context.pinned["letters"].items()
            for start, end in ranges
            for offset in range(start, end)
        }
    candidates: list[Letter] = []
    for letter in letters.found:
        place = (letter.log, letter.offset)
        if pinned is not None and place not in pinned:
            continue
        if is_wanted is not None and not is_wanted(letter.offset):
            continue
        if request.until is not None and letter.offset >= request.until:
            continue
        if not _has_reason(letter, request.reason) or letters.states[place] == "failed_again":
            continue
        if place in letters.replays and not request.again and request.to is None:
            choice.replayed_before.append(letter)
        else:
            candidates.append(letter)
    # Letters without an original take no room: enough forged ones would keep every call from the genuine ones.
    at = 0
    while at < len(candidates) and len(choice.chosen) < MAX_REPLAYED:
        some = candidates[at : at + CHUNK]
        at += len(some)
        if request.to is None:
            some = await _with_originals(context, topic, request.subscription, some, choice)
        room = MAX_REPLAYED - len(choice.chosen)
        choice.chosen += some[:room]
        choice.left += len(some[room:])
    choice.left += len(candidates) - at
    if pinned is None:
        choice.left += letters.unread
    return choice


async def _with_originals(
    context: Context, topic: Topic, subscription: str, candidates: Sequence[Letter], choice: _Choice
) -> list[Letter]:
    """Return the letters whose originals are stored, equal and acknowledged. Count the others in `choice`."""
    logs = {log.topic: log for log in topic.logs}
    found: list[Letter] = []
    by_log: dict[str, dict[int, list[Letter]]] = {}
    for letter in candidates:
        if letter.original_offset is None:
            choice.not_there["differs"] += 1
        else:
            by_log.setdefault(letter.original_log, {}).setdefault(letter.original_offset, []).append(letter)
    for log, wanted in by_log.items():
        start, end = logs[log].start_offset, logs[log].next_offset
        there = sorted(offset for offset in wanted if start <= offset < end)
        waiting = await still_open(context, log, subscription, there)
        read = await _originals(
            context,
            log,
            [offset for offset in there if offset not in waiting],
            lambda message: {timed: digest_of(message, timed=timed) for timed in (False, True)},
        )
        for offset, letters in wanted.items():
            if offset >= end:
                choice.not_there["recreated"] += len(letters)
            elif offset in waiting:
                choice.already_waiting += len(letters)
            elif (digests := read.get(offset)) is None:
                choice.not_there["retention"] += len(letters)
            else:
                equal = [letter for letter in letters if digests[letter.timed] == letter.digest]
                choice.not_there["differs"] += len(letters) - len(equal)
                found += equal
    return sorted(found, key=lambda each: (each.log, each.offset))


async def _originals(
    context: Context, log: str, offsets: Sequence[int], kept: Callable[[MessageFacts], Kept]
) -> dict[int, Kept | None]:
    """Read messages by their offsets, with None for those that are not stored.

    Only `kept` of each is held: thousands of payloads together would not fit into memory.
    """
    found: dict[int, Kept | None] = dict.fromkeys(offsets)
    at = 0
    while at < len(offsets):
        end = at + 1
        while end < len(offsets) and offsets[end] == offsets[end - 1] + 1 and end - at < CHUNK:
            end += 1
        chunk = await context.port.read_messages(
            log, start=offsets[at], end=offsets[end - 1] + 1, max_messages=CHUNK, max_bytes=CHUNK_BYTES
        )
        read = {message.offset: kept(message) for message in chunk if message.offset in found}
        found |= read
        reached = max(read, default=offsets[end - 1])
        at = end if reached == offsets[end - 1] or not read else offsets.index(reached, at) + 1
    return found


def _delivered_to(topic: Topic, request: ReplayDeadLettersRequest) -> str:
    return request.subscription if request.to is None else str(TopicName.parse(request.to))


async def _checked(context: Context, request: ReplayDeadLettersRequest) -> tuple[Topic, _Choice]:
    topic = await find_topic(context, request.topic)
    if request.to is not None and TopicName.parse(request.to).is_system:
        raise system_is_closed(request.to, field="to")
    choice = await _choose(context, topic, request)
    if request.offsets is not None and choice.replayed_before and not choice.chosen:
        last = choice.earlier[-1]
        raise Conflict(
            f"{counted(len(choice.replayed_before), 'letter was', 'letters were')} replayed before, last at {last['at']} by "
            f"{last['principal']}: pass again=true to deliver the originals once more",
            field="again",
            retryable=False,
            replayed=choice.earlier[:10],
        ).followed_by(
            next_call(
                "dead_letters.replay",
                {**request.model_dump(exclude_none=True), "again": True},
                "delivers them once more",
            )
        )
    return topic, choice


def _image(choice: _Choice, keys: Mapping[tuple[str, int], str]) -> dict[str, list[list[Any]]]:
    """Return the originals by log: offset, deliveries, key."""
    image: dict[str, list[list[Any]]] = {}
    for (log, offset), deliveries in choice.originals.items():
        image.setdefault(log, []).append([offset, deliveries, keys.get((log, offset), "")])
    return {log: sorted(rows) for log, rows in image.items()}


async def _redeliveries(context: Context, choice: _Choice) -> dict[str, list[Redelivery]]:
    """Return the originals of the chosen letters by log, with the keys by which they are routed."""
    offsets: dict[str, list[int]] = {}
    for log, offset in choice.originals:
        offsets.setdefault(log, []).append(offset)
    keys: dict[tuple[str, int], str] = {}
    for log, some in offsets.items():
        for offset, key in (await _originals(context, log, sorted(some), _routed_by)).items():
            if key is not None:
                keys[log, offset] = key
    return _of_image(_image(choice, keys))


def _routed_by(message: MessageFacts) -> str:
    return message.producer if message.key is None else message.key


def _of_image(image: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[Redelivery]]:
    return {
        log: [Redelivery(offset=offset, deliveries=deliveries, key=key) for offset, deliveries, key in rows]
        for log, rows in image.items()
    }


async def forecast_replay_dead_letters(context: Context, request: ReplayDeadLettersRequest) -> Forecast:
    topic, choice = await _checked(context, request)
    facts = await subscription_facts(context, topic.own.topic, request.subscription)
    messages = len(choice.chosen if request.to is not None else choice.originals)
    pinned = choice.pinned if context.pinned is None else context.pinned
    to_topic = request.to is not None
    path = (
        f"topics{_delivered_to(topic, request)}/messages"
        if to_topic
        else f"topics{topic.own.topic}/subscriptions/{request.subscription}/redelivered"
    )
    said = {"messages": messages, "delivered_to": _delivered_to(topic, request), **choice.counts()}
    if choice.earlier:
        said["earlier"] = choice.earlier[-3:]
    redelivered = {} if to_topic else await _redeliveries(context, choice)
    return Forecast(
        diff=[entry(path, None, said)],
        blast_radius=blast_radius(
            topics=int(to_topic), subscriptions=int(not to_topic), messages=messages, bytes=None
        ),
        reversible=False if to_topic else None,
        image={
            "call_id": context.call_id,
            "subscription_ids": [str(each.subscription_id) for each in facts],
            "redelivered": {
                log: [[each.offset, each.deliveries, each.key] for each in rows]
                for log, rows in redelivered.items()
            },
        },
        basis=[
            [str(each.subscription_id) for each in facts],
            pinned["letters"],
            sorted(each["call_id"] for each in choice.replays_of(choice.chosen)),
        ],
        pinned=pinned,
        later=None
        if to_topic
        else "Messages of the same key that came after them have been delivered already. One that fails again becomes "
        "a new dead letter",
    )


async def undo_replay(context: Context, request: ReplayDeadLettersRequest, done: Done) -> Undo:
    """Acknowledge the originals that no consumer has got yet."""
    topic = await find_topic(context, request.topic)
    facts = await subscription_facts(context, topic.own.topic, request.subscription)
    done.check_subscription(request.subscription, facts)
    redelivered = _of_image(done.image["redelivered"])
    waiting = 0
    for log, rows in redelivered.items():
        offsets = [each.offset for each in rows]
        waiting += len(await still_open(context, log, request.subscription, offsets))
    path = f"topics{topic.own.topic}/subscriptions/{request.subscription}/redelivered"
    return Undo(
        act=partial(_withdraw, context, topic, request.subscription, redelivered, done.image.get("call_id")),
        forecast=Forecast(
            diff=[entry(path, {"not_acknowledged": waiting}, None)],
            blast_radius=blast_radius(subscriptions=1, messages=waiting, bytes=None),
            basis=done.image["subscription_ids"],
        ),
    )


async def _withdraw(
    context: Context,
    topic: Topic,
    subscription: str,
    redelivered: Mapping[str, Sequence[Redelivery]],
    call_id: str | None,
) -> None:
    withdrawn: set[tuple[str, int | None]] = set()
    for log, rows in redelivered.items():
        offsets = await context.port.withdraw(log, subscription, rows)
        withdrawn.update((log, offset) for offset in offsets)
    if withdrawn and call_id is not None:
        await _forget(context, topic, subscription, call_id, withdrawn)


async def _forget(
    context: Context,
    topic: Topic,
    subscription: str,
    call_id: str,
    withdrawn: Collection[tuple[str, int | None]],
) -> None:
    """Take letters whose originals no consumer got out of the note of a replay, so that they are `waiting` again."""
    letters = await _letters(context, topic, subscription)
    originals = {(letter.log, letter.offset): letter.original for letter in letters.found}

    def without(remembered: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for each in remembered:
            if each["call_id"] == call_id:
                places = (
                    (each["topic"], offset) for start, end in each["ranges"] for offset in range(start, end)
                )
                still = [offset for log, offset in places if originals.get((log, offset)) not in withdrawn]
                each["ranges"] = merged((offset, offset + 1) for offset in still)
        return [each for each in remembered if each["ranges"]]

    await change_replays(context, letters.key, without)


@operation(
    "dead_letters.replay",
    effect=Effect.CHANGE,
    summary="Deliver the originals of dead letters again, at their own place and to this subscription only.",
    idempotent=False,
    forecast=forecast_replay_dead_letters,
    undo=undo_replay,
    examples=(
        Example({"topic": "orders", "subscription": "billing", "offsets": "0,2"}, "two of them"),
        Example({"topic": "orders", "subscription": "billing", "until": 500}, "all before the 500th"),
    ),
)
async def replay_dead_letters(context: Context, request: ReplayDeadLettersRequest) -> ReplayedDeadLetters:
    topic, choice = await _checked(context, request)
    letters = choice.letters
    done = len(choice.chosen)
    if request.to is not None:
        added = sorted(ADDED)
        for log, ranges in choice.pinned["letters"].items():
            for start, end in ranges:
                await context.port.replay_topic(log, ranges={log: (start, end)}, to=request.to, without=added)
    else:
        done = 0
        for log, rows in (await _redeliveries(context, choice)).items():
            again = set(await context.port.redeliver(log, request.subscription, rows))
            choice.left += len(rows) - len(again)
            choice.chosen = [
                each for each in choice.chosen if each.original_log != log or each.original_offset in again
            ]
            done += len(again)
        await _remember(context, choice)
    return ReplayedDeadLetters(
        topic=topic.own.topic,
        subscription=request.subscription,
        dead_letter_topic=letters.target,
        delivered_to=_delivered_to(topic, request),
        messages=done,
        **choice.counts(),
    )


async def _remember(context: Context, choice: _Choice) -> None:
    """Note which letters this call has replayed."""
    if not choice.chosen:
        return
    notes = [
        {
            "call_id": context.call_id,
            "at_ms": context.now_ms(),
            "principal": context.principal,
            "topic": log,
            "topic_id": choice.letters.ids[log],
            "ranges": ranges,
        }
        for log, ranges in choice.pinned["letters"].items()
    ]
    await change_replays(context, choice.letters.key, lambda remembered: [*remembered, *notes])
