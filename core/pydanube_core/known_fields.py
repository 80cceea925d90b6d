"""Stored records that brokers of several builds read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(record: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stored record that its dataclass has in this build. Others are ignored."""
    return {each.name: found[each.name] for each in fields(record) if each.name in found}
