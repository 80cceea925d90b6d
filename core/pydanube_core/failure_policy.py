"""The table of a subscription's settings: the fields of its failure policy.

The broker's record and its defaults, the operations, the console and the SDK's check derive their fields from it. To add
a field, edit three modules: this one, `FailurePolicy` in `broker/pydanube_broker/subscription/policy.py`, which applies
it, and `FailurePolicy` in `client/pydanube/failure_policy.py`, for type checkers. A default for the whole broker is a
setting of `[delivery]` in `broker/pydanube_broker/settings/sections.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyField:
    """A field of the failure policy."""

    name: str
    description: str
    choices: tuple[str, ...] = ()
    is_text: bool = False
    max_chars: int | None = None
    least: int = 0  # of a count
    # The broker's default in [delivery], in seconds if the field is in milliseconds
    setting: str | None = None
    asked: bool = True  # by the console's form

    @property
    def is_count(self) -> bool:
        return not self.choices and not self.is_text

    @property
    def type(self) -> Any:
        """Return the type of values that a caller gives."""
        if self.choices:
            return Literal[self.choices]
        return str if self.is_text else int

    def default_of(self, delivery: object) -> Any:
        """Return the default from the broker's settings, in the field's unit."""
        assert self.setting is not None
        value = getattr(delivery, self.setting)
        return int(value * 1000) if self.name.endswith("_ms") else value


DEAD_LETTER_TOPIC: Final = "dead_letter_topic"
MAX_UNACKED_MESSAGES: Final = "max_unacked_messages"
POLICY_FIELDS: Final = (
    PolicyField(
        name="max_redelivery_count",
        description="Before the poison policy applies",
        setting="max_redelivery_count",
    ),
    PolicyField(
        name="ack_timeout_ms",
        description="Unacknowledged messages return; 0: never",
        setting="ack_timeout",
    ),
    PolicyField(name="base_redelivery_delay_ms", description="After the first failure", asked=False),
    PolicyField(name="max_redelivery_delay_ms", description="Longest delay", asked=False),
    PolicyField(
        name="backoff_strategy",
        description="How the delay grows",
        choices=("fixed", "exponential"),
        asked=False,
    ),
    PolicyField(
        name="poison_policy",
        description="For messages that fail too often",
        choices=("block", "drop", "dead_letter"),
        setting="poison_policy",
    ),
    # Not set: no message is dead-lettered
    PolicyField(
        name=DEAD_LETTER_TOPIC,
        description="Empty: <topic>-dlq-<subscription>",
        is_text=True,
        max_chars=512,
    ),
    # From a consumer's next connection on
    PolicyField(
        name=MAX_UNACKED_MESSAGES,
        description="Of an official consumer",
        least=1,
        setting="max_unacked_messages",
        asked=False,
    ),
)
POLICY_NAMES: Final = tuple(field.name for field in POLICY_FIELDS)
#: fields that are whole numbers, with the least of each
COUNTS: Final = {field.name: field.least for field in POLICY_FIELDS if field.is_count}
