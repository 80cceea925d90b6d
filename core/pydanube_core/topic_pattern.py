"""Patterns of topic names: `orders*` matches every topic of a namespace that begins so."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Final

from pydanube_core.errors import InvalidName
from pydanube_core.names import DEFAULT_NAMESPACE, TopicName, check_namespace

MAX_PATTERN_CHARS: Final = 256
_GLOB: Final = re.compile(r"[A-Za-z0-9_\-*?\[\]!]+\Z")
_RULE: Final = (
    "letters, digits, '_', '-' and the signs *, ? and […], behind /namespace/ if it is not `default`"
)


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A glob over the names of one namespace. `str()` gives the full form `/namespace/glob`."""

    namespace: str
    glob: str
    _compiled: re.Pattern[str] | None = field(repr=False, compare=False)  # None for one name: it costs 100 µs

    @classmethod
    def parse(cls, text: str, *, field: str = "pattern") -> TopicPattern:
        """Parse `/ns/orders*`, `ns/orders*` or `orders*`. Names have no dots, so `.*` means `*`.

        Raises `InvalidName` if it is no pattern. `details` has `field`, `value` and the rule.
        """
        bare = text.removeprefix("/") if isinstance(text, str) else ""
        namespace, slash, glob = bare.rpartition("/")
        glob = glob.replace(".*", "*")
        if not _GLOB.match(glob) or len(glob) > MAX_PATTERN_CHARS or (text.startswith("/") and not slash):
            raise InvalidName(
                f"{text!r:.300} is not a pattern of topics: {_RULE}",
                field=field,
                value=repr(text)[:300],
                rule=_RULE,
            )
        namespace = check_namespace(namespace, field=field) if slash else DEFAULT_NAMESPACE
        return cls(namespace, glob, re.compile(translate(glob)) if is_glob(glob) else None)

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.glob}"

    @property
    def is_glob(self) -> bool:
        """Whether it is a pattern, not the name of one topic."""
        return self._compiled is not None

    def matches(self, name: TopicName) -> bool:
        """Return whether the topic matches. Case matters."""
        if name.namespace != self.namespace:
            return False
        return name.name == self.glob if self._compiled is None else bool(self._compiled.match(name.name))


def is_glob(text: str) -> bool:
    """Return whether a pattern has a wildcard."""
    return any(sign in text for sign in "*?[")
