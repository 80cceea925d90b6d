"""A topic's schema configuration: subject, policy, and whether payloads are validated.

It is stored in the topic's record (`TopicSettings.schema`). For a partitioned topic, the parent's record holds it for
all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pydanube_broker.schema.vocabulary import ValidationPolicy

DEFAULT_POLICY: Final = ValidationPolicy.WARN  # for a topic whose subject was set by a producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    subject: str
    schema_id: int
    validation_policy: ValidationPolicy = DEFAULT_POLICY
    enable_payload_validation: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> Self | None:
        """Return the binding in a topic's settings. None for a topic without a schema."""
        if not settings:
            return None
        return cls(
            subject=settings["subject"],
            schema_id=int(settings["schema_id"]),
            validation_policy=ValidationPolicy(settings["validation_policy"]),
            enable_payload_validation=settings["enable_payload_validation"],
        )

    def to_settings(self) -> dict[str, Any]:
        """Return the binding in the form of topic settings and results of operations, with 64-bit ids as text."""
        return {
            "subject": self.subject,
            "schema_id": str(self.schema_id),
            "validation_policy": self.validation_policy.value,
            "enable_payload_validation": self.enable_payload_validation,
        }
