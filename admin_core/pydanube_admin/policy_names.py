"""The policies of topics and namespaces: the original's seven, and how much of a topic stays."""

from __future__ import annotations

from typing import Literal, get_args

PolicyName = Literal[
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_publish_rate",
    "max_subscription_dispatch_rate",
    "max_message_size",
    "retention_bytes",
    "retention_age_s",
    "retention_offset",
    "drop_unread",
]
POLICIES: tuple[str, ...] = get_args(PolicyName)
