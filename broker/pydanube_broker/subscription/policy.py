"""The policy for failed deliveries: when a message is delivered again, and when it is exhausted.

After failure n (a nack or an ack timeout) the delay is `min(max(policy delay, requested delay), max delay)`,
where the policy delay is the base (fixed) or base·2^(n−1) (exponential). Jitter only adds to it, so a message
never comes earlier than promised. The loss of a consumer is not a failure of the messages it held, because a
flapping connection would otherwise poison its whole window. Such messages are ready again immediately. Their
delivery count rises, their failure count does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from pydanube_core.errors import InvalidArgument
from pydanube_core.failure_policy import COUNTS


class Backoff(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class PoisonPolicy(StrEnum):
    """The handling of a message whose redeliveries are exhausted."""

    BLOCK = "block"
    DROP = "drop"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """The failure policy of one subscription, with the field names of the original Danube, and its dispatch window.

    With an `ack_timeout_ms` of 0 deliveries do not expire. `jitter` is the largest share of the delay that is
    added to it. The shell keeps the topic for dead letters.
    """

    max_redelivery_count: int = 5
    ack_timeout_ms: int = 30_000
    base_redelivery_delay_ms: int = 1_000
    max_redelivery_delay_ms: int = 60_000
    backoff_strategy: Backoff = Backoff.EXPONENTIAL
    poison_policy: PoisonPolicy = PoisonPolicy.BLOCK
    max_unacked_messages: int = 1_000  # in flight to a consumer that grants no credit
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name, least in COUNTS.items():
            if getattr(self, name) < least:
                raise InvalidArgument(
                    f"{name}: {getattr(self, name)} is below {least}. Give {least} or more",
                    field=name,
                    value=getattr(self, name),
                )
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidArgument(
                f"jitter: {self.jitter} is not a share. Give 0 to 1", field="jitter", value=self.jitter
            )

    def policy_delay_ms(self, failures: int) -> int:
        """Return the delay after failure `failures` (from 1), before the maximum and the nack's request."""
        match self.backoff_strategy:
            case Backoff.FIXED:
                return self.base_redelivery_delay_ms
            case Backoff.EXPONENTIAL:
                # 2^40 ms is 35 years. Larger shifts would give the same bounded delay and larger integers.
                return self.base_redelivery_delay_ms << min(failures - 1, 40)
            case _:
                assert_never(self.backoff_strategy)

    def delay_ms(self, failures: int, *, requested_ms: int, random: float) -> int:
        """Return the delay until the next delivery.

        Args:
            failures: how often the message has failed, including this time.
            requested_ms: the delay that the nack requested, 0 for none.
            random: uniform in [0, 1). One number for all messages of an event, so that they keep their order.
        """
        delay = min(max(self.policy_delay_ms(failures), requested_ms), self.max_redelivery_delay_ms)
        return min(delay + int(delay * self.jitter * random), self.max_redelivery_delay_ms)

    def exhausted(self, failures: int) -> bool:
        """Return whether a message is exhausted: the first delivery and all redeliveries have failed."""
        return failures > self.max_redelivery_count
