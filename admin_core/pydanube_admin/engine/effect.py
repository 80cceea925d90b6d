"""The effect of an operation on the cluster, as callers must know it before they call."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    READ = "read"
    CREATE = "create"
    CHANGE = "change"
    DESTROY = "destroy"  # needs a plan that was shown
