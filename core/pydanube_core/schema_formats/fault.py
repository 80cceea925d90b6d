"""The error of a payload that does not match its schema. Pure."""

from __future__ import annotations


class Fault(ValueError):
    """A payload does not match its schema, or two schemas do not resolve. `at` is the offset in the payload, or None."""

    def __init__(self, why: str, at: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.at = at
