"""The second half of each tool's description, from `guides.toml`: which other tool serves a neighbouring question."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

#: by the operation's name
GUIDES: Final[Mapping[str, str]] = tomllib.loads(
    (files(__package__) / "guides.toml").read_text(encoding="utf-8")
)
