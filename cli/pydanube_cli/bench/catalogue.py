"""The scenarios, and the plan of a run, importable without the packages for measuring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pydanube_core.errors import InvalidArgument

WRITERS: Final = 8

DEFAULT_MESSAGES: Final = {
    "e2e": 1_000_000,
    "publish": 1_000_000,
    "consume": 1_000_000,
    "latency": 2_000,
    "await": 100_000,
    "unary": 20_000,
    "backlog": 5_000_000,
    "topics": 1_000_000,
    "replay": 1_000_000,
    "tier": 1_000_000,
    "stored": 1_000_000,
    "move": 0,
    "failover": 0,
    "cluster": 1_000_000,
    "link": 1_000_000,
}
OF_A_CLUSTER: Final = (
    "move",
    "failover",
    "cluster",
    "link",
)  # these start brokers of their own: three and etcd, or two
OF_THE_TIER: Final = ("replay", "tier")
DEFAULT_TOPICS: Final = {"topics": 10_000, "move": 1_000, "cluster": 10_000, "failover": 100, "link": 1_000}
DEFAULT_PRODUCERS: Final = {"await": 256, "backlog": WRITERS, "unary": 4}
DEFAULT_CONSUMERS: Final = {"unary": 0}
DEFAULT_RUNS: Final = {
    **{"backlog": 3, "unary": 3, "profile": 1, "topics": 1, "replay": 3, "tier": 3, "stored": 3},
    **{"move": 50, "failover": 3, "cluster": 3, "link": 3},
}
PROFILES: Final = {"unary": "unary", "each": "e2e"}  # the scenario of each road that can be profiled
DEFAULT_KEYS: Final = 1000  # of key-shared: without keys it would have one, the producer's name

OF_A_SUBSCRIPTION: Final = ("e2e", "consume", "backlog")
MAX_ACK_DELAY_S: Final = 10.0  # well below the ack timeout (30 s), after which messages are redelivered
MAX_TOPICS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The choice of scenario and load.

    Args:
        profiled: the broker and, for `e2e`, the clients sample themselves.
        sub_type: exclusive: each consumer has a subscription of its own. Otherwise all share one.
        keys: the number of distinct keys, one for each message. 0: none has a key.
        ack_delay_s: the time from receiving a batch to its ack. The consumer reads on in between.
        topics: of the scenario `topics`, which share the messages. Of `move` those that are drained, of
            `cluster` the idle ones, of `link` the quiet mirrors.
    """

    scenario: str
    size: int
    messages: int
    producers: int
    consumers: int
    each: bool
    compression: str
    timeout_s: float
    sub_type: str = "exclusive"
    keys: int = 0
    ack_delay_s: float = 0.0
    topics: int = 10_000
    profiled: bool = False

    def __post_init__(self) -> None:
        if self.about_a_subscription and self.scenario not in OF_A_SUBSCRIPTION:
            raise InvalidArgument(
                f"--sub-type, --keys and --ack-delay: bench {self.scenario} has no subscription to measure; use "
                f"{', '.join(OF_A_SUBSCRIPTION)}",
                field="scenario",
                value=self.scenario,
            )
        if not 0 <= self.ack_delay_s <= MAX_ACK_DELAY_S:
            raise InvalidArgument(
                f"--ack-delay {self.ack_delay_s:g}s: at most {MAX_ACK_DELAY_S:g}s, or deliveries expire and come again",
                field="ack_delay",
                value=self.ack_delay_s,
            )
        if self.scenario == "topics" and self.messages < 2 * self.topics:
            raise InvalidArgument(
                f"--messages {self.messages}: {self.topics} topics share them, 2 or more each",
                field="messages",
                value=self.messages,
            )

    @property
    def about_a_subscription(self) -> bool:
        """Whether anything but the plain batch path is measured, and so compared with that."""
        return self.sub_type != "exclusive" or self.keys > 0 or self.ack_delay_s > 0

    @property
    def reference(self) -> Plan:
        """Return the same plan for the plain batch path: one exclusive consumer, no keys, immediate acks."""
        return replace(self, sub_type="exclusive", keys=0, ack_delay_s=0.0, consumers=1)

    @property
    def shared_subscription(self) -> bool:
        """Whether the consumers divide the messages among them."""
        return self.sub_type != "exclusive"

    @property
    def shares(self) -> list[int]:
        """How many messages each producer sends."""
        base, more = divmod(self.messages, self.producers)
        return [base + (index < more) for index in range(self.producers)]
