"""What an operation does to the cluster, as callers must know before they call it."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    READ = "read"
    CREATE = "create"
    CHANGE = "change"
    DESTROY = "destroy"  # needs a plan that was shown
