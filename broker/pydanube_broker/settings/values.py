"""The text form of a setting: durations, sizes, counts, switches and choices.

The same text form serves TOML, environment variables and flags, so every parser takes a native value or a string. A
value that does not fit raises `ValueError` with a sentence that names valid ones. The loader adds the setting and its
source. `ValueKind` gives the form in which a value is shown again (`90s`, `64MiB`).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydanube_core.errors import InvalidArgument
from pydanube_core.quotas import QuotaKind, parse_quota
from pydanube_core.units import parse_bytes, parse_duration_s

MEMORY_DIR: Final = ":memory:"
SECURITY_FILE: Final = "security.toml"  # in the data directory, written by `danube security init`
MIN_SHORT_DURATION_S: Final = 0.1  # short, so that checks need not wait. Below that a timer is a busy loop
MOST_URLS: Final = 10
LEAST_KEY_BYTES: Final = 24
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_BINARY: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIMES: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))


class ValueKind(StrEnum):
    """How a value is shown. Carried in the field's metadata."""

    TEXT = "text"
    SECRET = "secret"  # never shown
    PATH = "path"
    PORT = "port"
    COUNT = "count"
    SWITCH = "switch"
    DURATION = "duration"
    SIZE = "size"
    CHOICE = "choice"


def _plain(error: InvalidArgument) -> ValueError:
    """Return the sentence of a units error without its field, which the loader adds."""
    return ValueError(error.message.removeprefix("value: "))


def _duration(min_s: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool):
            raise ValueError("a duration is written 90s, 5m, 24h or 100ms")
        try:
            seconds = parse_duration_s(value, field="value")
        except InvalidArgument as error:
            raise _plain(error) from None
        if not math.isfinite(seconds) or seconds < min_s:
            raise ValueError(
                f"{value!r} is shorter than the smallest, {format_value(min_s, ValueKind.DURATION)}"
            )
        return seconds

    return parse


def _size(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise ValueError(f"{value!r} is not a size. Write 32MiB, 1GiB or a number of bytes")
    try:
        return parse_bytes(value, field="value")
    except InvalidArgument as error:
        raise _plain(error) from None


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number: int | None = value if isinstance(value, int) and not isinstance(value, bool) else None
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
            number = int(value)
        if number is None or not low <= number <= high:
            raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
        return number

    return parse


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a text")
    return value.strip()


_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _server_name(value: Any) -> str:
    """Return the name of a broker. It can be mistaken for neither an id nor an address."""
    text = _text(value)
    if _SERVER_NAME.fullmatch(text) is None or text.isdigit():
        raise ValueError(
            f"{text[:100]!r} is no name of a broker: use 1 to 63 letters, digits, dots, hyphens and underscores, and not "
            "digits alone, which would be an id"
        )
    return text


def _quota(kind: QuotaKind) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = _text(value)
        try:
            parse_quota(kind, text)
        except InvalidArgument as error:
            raise ValueError(error.message) from None
        return text

    return parse


def _path(value: Any) -> Path:
    if isinstance(value, Path):
        return value
    return Path(_text(value)).expanduser()


def _https_url(value: Any) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if (
        not good
        or parts.username is not None
        or parts.fragment
        or not (text.isascii() and text.isprintable())
        or " " in text
    ):
        raise ValueError(f"{text[:200]!r} is no URL of the form https://host[:port]/path")
    return text


def _web_urls(value: Any) -> tuple[str, ...]:
    """Return the URLs of a list, or of a text with commas between. An error shows no URL, which may hold a secret."""
    given = value if isinstance(value, list | tuple) else _text(value).split(",")
    found = []
    for at, each in enumerate(given, start=1):
        text = each.strip() if isinstance(each, str) else ""
        try:
            parts = urlsplit(text)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if (
            not good
            or parts.username is not None
            or not (text.isascii() and text.isprintable())
            or " " in text
        ):
            raise ValueError(f"address {at} is no URL of the form https://host[:port]/path")
        found.append(text)
    if len(found) > MOST_URLS:
        raise ValueError(f"{len(found)} addresses, at most {MOST_URLS} are taken")
    return tuple(found)


def _signing_key(value: Any) -> bytes:
    text = value if isinstance(value, str) else ""
    try:
        key = base64.b64decode(text.strip().removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < LEAST_KEY_BYTES:
        raise ValueError(
            f"write whsec_ and the base64 of {LEAST_KEY_BYTES} random bytes or more: openssl rand -base64 32"
        )
    return key


def _data_dir(value: Any) -> Path | None:
    return None if value is None or value == MEMORY_DIR else _path(value)


class Choice:
    """Metadata of a field with a fixed set of words, and its parser."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, value: Any) -> str:
        if isinstance(value, str) and value.strip().lower() in self.words:
            return value.strip().lower()
        raise ValueError(f"{value!r} is none of {', '.join(self.words)}")


Duration = Annotated[float, BeforeValidator(_duration(0.001)), ValueKind.DURATION]
ShortDuration = Annotated[float, BeforeValidator(_duration(MIN_SHORT_DURATION_S)), ValueKind.DURATION]
Size = Annotated[int, BeforeValidator(_size), ValueKind.SIZE]
Port = Annotated[int, BeforeValidator(_whole(0, 65_535)), ValueKind.PORT]
Count = Annotated[int, BeforeValidator(_whole(1, 2**31 - 1)), ValueKind.COUNT]
Limit = Annotated[int, BeforeValidator(_whole(0, 2**32 - 1)), ValueKind.COUNT]
Switch = Annotated[bool, BeforeValidator(_switch), ValueKind.SWITCH]
Text = Annotated[str, BeforeValidator(_text), ValueKind.TEXT]
ServerName = Annotated[str, BeforeValidator(_server_name), ValueKind.TEXT]
QuotaOfNamespace = Annotated[str, BeforeValidator(_quota("namespace")), ValueKind.TEXT]
QuotaOfPrincipal = Annotated[str, BeforeValidator(_quota("principal")), ValueKind.TEXT]
Secret = Annotated[str, BeforeValidator(_text), ValueKind.SECRET]
FilePath = Annotated[Path, BeforeValidator(_path), ValueKind.PATH]
WebUrls = Annotated[tuple[str, ...], BeforeValidator(_web_urls), ValueKind.SECRET]
SigningKey = Annotated[bytes, BeforeValidator(_signing_key), ValueKind.SECRET]
HttpsUrl = Annotated[str, BeforeValidator(_https_url), ValueKind.TEXT]
DataDir = Annotated[Path | None, BeforeValidator(_data_dir), ValueKind.PATH]


def choice(*words: str) -> tuple[Choice, BeforeValidator, ValueKind]:
    """Return the annotation of a field that takes one of a fixed set of words."""
    parser = Choice(*words)
    return parser, BeforeValidator(parser), ValueKind.CHOICE


class Section(BaseModel):
    """One `[section]` of the file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=False, arbitrary_types_allowed=True
    )


def format_value(value: Any, kind: ValueKind) -> str | int | bool | None:
    """Return the value as written in the file: text for times and sizes, TOML's own types otherwise."""
    if value is None:
        return None
    match kind:
        case ValueKind.DURATION:
            for seconds, unit in _TIMES:
                if value >= seconds and value % seconds == 0:
                    return f"{int(value // seconds)}{unit}"
            return f"{value:g}s" if value >= 1 else f"{value * 1000:g}ms"
        case ValueKind.SECRET:
            return "…"
        case ValueKind.SIZE:
            for factor, unit in _BINARY:
                if value >= factor and value % factor == 0:
                    return f"{value // factor}{unit}"
            return int(value)
        case ValueKind.PATH | ValueKind.TEXT | ValueKind.CHOICE:
            return str(value)
        case ValueKind.PORT | ValueKind.COUNT:
            return int(value)
        case ValueKind.SWITCH:
            return bool(value)
