"""Errors for wrong keywords that name the one that may be meant. Signatures stay the same for type checkers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar

from pydanube_core.spelling import close_names

P = ParamSpec("P")
R = TypeVar("R")
#: words of other libraries → ours
_SYNONYMS: Final = {
    "concurrency": "workers", "end": "stop", "group": "subscription", "group_id": "subscription", "headers": "attributes",
    "max_attempts": "retries", "max_workers": "workers", "ordering_key": "key", "partition_key": "key",
    "properties": "attributes", "routing_key": "key", "size": "max_messages", "subscription_type": "type",
}  # fmt: skip
_MEANT: Final = {
    "timeout": ("timeout_s", "max_wait_s", "retry"),
    "timeout_s": ("max_wait_s",),
    "timeout_ms": ("timeout_s", "max_wait_s"),
}


def unknown_keyword(call: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for a keyword that is none of `known`."""
    known = list(known)
    words = [_SYNONYMS.get(name, ""), *_MEANT.get(name, ())]
    meant = [word for word in words if word in known] or close_names(name, known)
    remedy = f"did you mean {meant[0]!r}?" if meant else f"there are {', '.join(known)}"
    return TypeError(f"{call}() has no keyword {name!r}; {remedy}")


def keywords_named(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same function with errors that name the wrong keyword, and the one that may be meant."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            _explain(function, len(args), kwargs)
            raise

    return call


def _explain(function: Callable[..., Any], given: int, kwargs: Iterable[str]) -> None:
    """Raise the better error, if it is the call that does not fit."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    method = len(parameters) < len(inspect.signature(function).parameters)
    known = [each.name for each in parameters]
    for name in kwargs:
        if name not in known:
            raise unknown_keyword(function.__name__, name, known) from None
    plain = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    if given - method > len(plain):
        first = f"{', '.join(plain)} first, then keywords" if plain else "keywords only"
        rest = ", ".join(f"{name}=" for name in known[len(plain) :])
        raise TypeError(f"{function.__name__}() takes {first}: {rest}") from None


class KeywordsNamed:
    """Its subclasses' public methods are `keywords_named`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and not name.startswith("_"):
                setattr(cls, name, keywords_named(value))
