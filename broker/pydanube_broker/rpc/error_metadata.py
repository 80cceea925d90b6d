"""An error as gRPC's trailing metadata, cut so that every client can read it.

gRPC implementations refuse a response whose headers together exceed 8 KiB (grpc core's soft limit), and then the error
is lost. Errors repeat values of the caller, which may be long. So texts are cut here. Whole errors travel inside the
messages of streams and of `danube.ops`.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

from pydanube_core.errors import ClusterError

MESSAGE_BYTES: Final = 1800  # of the status text, percent-encoded as it travels
OBJECT_BYTES: Final = 3600  # of the JSON. base64 makes 4800 of it
_TEXT: Final = 200
_ITEMS: Final = 20
_CUT: Final = "…"

# with 44 bytes of status and names, below 8192
assert MESSAGE_BYTES + OBJECT_BYTES * 4 // 3 < 7000


def as_metadata(error: ClusterError) -> tuple[str, bytes]:
    """Return the status text (`CODE: message`) and the error object (JSON), each within its limit."""
    text = _fitting(f"{error.code}: {error.message}")
    body = error.to_json().encode()
    if len(body) > OBJECT_BYTES:
        whole = error.to_dict()
        whole["message"] = _fitting(error.message)
        whole["details"] = _cut(whole["details"])
        body = _encoded(whole)
        for name, nothing in (("next", []), ("details", {})):
            if len(body) > OBJECT_BYTES:
                whole[name] = nothing
                body = _encoded(whole)
        assert len(body) <= OBJECT_BYTES
    return text, body


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, default=str).encode()


def _fitting(text: str) -> str:
    """Return the text, cut to fit."""
    if len(quote(text)) <= MESSAGE_BYTES:
        return text
    keep, room = 0, MESSAGE_BYTES - len(quote(_CUT))
    for character in text:
        room -= len(quote(character))
        if room < 0:
            break
        keep += 1
    return text[:keep] + _CUT


def _cut(value: Any) -> Any:
    match value:
        case str():
            return value if len(value) <= _TEXT else value[:_TEXT] + _CUT
        case dict():
            return {name: _cut(each) for name, each in list(value.items())[:_ITEMS]}
        case list() | tuple():
            return [_cut(each) for each in value[:_ITEMS]]
        case _:
            return value
