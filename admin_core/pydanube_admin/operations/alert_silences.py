"""Silence an alert: it is known, until when, by whom and why. It stays listed, and webhooks are not sent it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Any, Final

from pydantic import Field
from pydanube_core.diagnosis.rules import RULES
from pydanube_core.diagnosis.silences import MOST_SILENCES, SILENCES, Silence
from pydanube_core.errors import Conflict, InvalidArgument, InvalidName, LimitReached
from pydanube_core.names import TopicName
from pydanube_core.units import known_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Forecast, entry
from pydanube_admin.engine.models import Change, Effect, Request
from pydanube_admin.engine.operation import MAX_WHY_CHARS, operation
from pydanube_admin.operations.faces import end_of

MOST_SUBJECT_CHARS: Final = 1_000  # as JSON


class SilenceRequest(Request):
    rule: Annotated[str, Field(description="Of the alert")]
    subject: Annotated[dict[str, Any], Field(description="The alert's, or a part")]
    until: Annotated[str, Field(max_length=64, description="2h or a time, 0s to end it")]
    reason: Annotated[str, Field(max_length=MAX_WHY_CHARS, description="Why")]


class SilencedAlert(Change):
    rule: str
    subject: dict[str, Any]
    silenced_until: str | None  # null: no longer
    by: str


async def silences(context: Context) -> list[Silence]:
    """Return the silences that last, as the broker read them last if the metadata store does not answer."""
    return [each for each in await context.port.silences() if context.now_ms() < each.until_ms]


async def _stored(context: Context) -> dict[str, tuple[Silence, int]]:
    """Return key → silence and revision, as stored now, also those that are over. A damaged one is skipped.

    Raises `MetadataUnavailable`: a change is not made from what was read earlier.
    """
    found = {}
    for item in await context.port.list_state(SILENCES, limit=MOST_SILENCES):
        with suppress(ValueError, TypeError, LookupError, AttributeError):
            found[item.key] = (Silence.from_bytes(item.value), item.revision)
    return found


async def forecast_silence(context: Context, request: SilenceRequest) -> Forecast:
    wanted, before = await _wanted(context, request)
    ends = wanted.until_ms <= wanted.at_ms
    return Forecast(
        diff=[entry(f"alerts/{wanted.rule}/silence", _shown(before), None if ends else _shown(wanted))],
        basis=[_shown(before), request.until],  # a length counts from when the plan is applied
    )


@operation(
    "alerts.silence",
    effect=Effect.CHANGE,
    tool="silence_alert",
    summary="Silence an alert: it is not sent to webhooks.",
    forecast=forecast_silence,
    required_flags=("subject", "reason"),
    examples=(
        Example(
            {
                "rule": "no_consumers",
                "subject": {"topic": "/default/orders"},
                "until": "2h",
                "reason": "the team of orders deploys",
            },
            "all subscriptions of a topic",
        ),
    ),
)
async def silence_alert(context: Context, request: SilenceRequest) -> SilencedAlert:
    wanted, _ = await _wanted(context, request)
    ends = wanted.until_ms <= wanted.at_ms
    over = {
        key: revision
        for key, (each, revision) in (await _stored(context)).items()
        if each.until_ms <= context.now_ms()
    }
    if over:
        with suppress(Conflict):  # another call renewed one meanwhile: the next change deletes the others
            await context.port.write_state(dict.fromkeys(over), expected=over)
    await context.port.write_state({wanted.key: None if ends else wanted.to_bytes()})
    return SilencedAlert(
        rule=wanted.rule,
        subject=dict(wanted.subject),
        silenced_until=None if ends else known_time(wanted.until_ms),
        by=wanted.by,
    )


async def _wanted(context: Context, request: SilenceRequest) -> tuple[Silence, Silence | None]:
    """Return the silence that is asked for, and the one that is there. Raises `InvalidArgument`, `LimitReached`."""
    if request.rule not in RULES:
        raise InvalidArgument(
            f"there is no rule {request.rule!r}. `alerts.list` shows the rule of each alert",
            field="rule",
            value=request.rule,
        )
    if not request.reason or not request.reason.isprintable():
        raise InvalidArgument("reason must be one line of text", field="reason", value=request.reason[:80])
    subject = dict(request.subject)
    if len(json.dumps(subject)) > MOST_SUBJECT_CHARS:
        raise InvalidArgument(
            f"subject has more than {MOST_SUBJECT_CHARS} characters: take that of the alert",
            field="subject",
            value=json.dumps(subject)[:80],
        )
    if isinstance(subject.get("topic"), str):
        try:
            subject["topic"] = str(TopicName.parse(str(subject["topic"])))
        except InvalidName as error:
            raise InvalidArgument(error.message, field="subject", value=subject["topic"]) from error
    now_ms = context.now_ms()
    until_ms = now_ms if request.until == "0s" else end_of(request.until, now_ms)
    wanted = Silence(
        rule=request.rule,
        subject=subject,
        until_ms=until_ms,
        reason=request.reason,
        by=context.principal,
        at_ms=now_ms,
    )
    held = {key: each for key, (each, _) in (await _stored(context)).items() if now_ms < each.until_ms}
    if wanted.key not in held and len(held) >= MOST_SILENCES:
        raise LimitReached(
            f"{MOST_SILENCES} alerts are silenced: end some with until 0s", field="rule", limit=MOST_SILENCES
        )
    return wanted, held.get(wanted.key)


def _shown(silence: Silence | None) -> dict[str, str | None] | None:
    return None if silence is None else {"silenced_until": known_time(silence.until_ms), "by": silence.by}
