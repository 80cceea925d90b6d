"""Resolve references to secrets in a connector's file, in the process that connects.

`${env:NAME}` is an environment variable. `${file:PATH}` is the content of a file without its last line end. A reference
may be part of a longer text. Resolved values are redacted in every error and log line of the connector.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.secrets import REDACTED, without_secrets

_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
MOST_BYTES: Final = 65_536  # maximum size of a secret's file
_SHORTEST: Final = 4  # characters. Shorter values may be part of ordinary words


class References:
    """Resolves references and keeps their values, to redact them in texts."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def resolve(self, tree: Any, *, file: str, field: str) -> Any:
        """Return `tree` (of TOML) with its references resolved.

        Raises:
            InvalidArgument: a reference cannot be resolved. `field` is its location.
        """
        match tree:
            case str():
                return _REFERENCE.sub(lambda match: self._value(match[1], file=file, field=field), tree)
            case dict():
                return {
                    key: self.resolve(value, file=file, field=f"{field}.{key}" if field else key)
                    for key, value in tree.items()
                }
            case list():
                return [
                    self.resolve(value, file=file, field=f"{field}[{at}]") for at, value in enumerate(tree)
                ]
            case _:
                return tree

    def clean(self, text: str) -> str:
        """Return a text without the values of references and without other apparent secrets."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return without_secrets(text)

    def _value(self, reference: str, *, file: str, field: str) -> str:
        kind, colon, name = reference.partition(":")
        if not colon or kind not in ("env", "file") or not name:
            raise InvalidArgument(
                f"{file}: {field}: ${{{reference}}} is no reference. Write ${{env:NAME}} or ${{file:PATH}}.",
                file=file,
                field=field,
                value=f"${{{reference}}}",
            )
        value = self._env(name, file, field) if kind == "env" else self._file(name, file, field)
        if len(value) >= _SHORTEST:
            self._values.add(value)
        return value

    @staticmethod
    def _env(name: str, file: str, field: str) -> str:
        value = os.environ.get(name)
        if value is None:
            raise InvalidArgument(
                f"{file}: {field}: the environment has no {name}. Set it where the connector runs: {name}=… danube "
                "connect run",
                file=file,
                field=field,
                value=f"${{env:{name}}}",
            )
        return value

    @staticmethod
    def _file(name: str, file: str, field: str) -> str:
        try:
            with Path(name).open("rb") as source:
                content = source.read(MOST_BYTES + 1)
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidArgument(
                f"{file}: {field}: {name} cannot be read: {why}. Give the path of a readable file.",
                file=file,
                field=field,
                value=f"${{file:{name}}}",
            ) from None
        if len(content) > MOST_BYTES:
            raise InvalidArgument(
                f"{file}: {field}: {name} has more than {MOST_BYTES} bytes, so it holds no secret. Give another file.",
                file=file,
                field=field,
                value=f"${{file:{name}}}",
            )
        return text.removesuffix("\n").removesuffix("\r")
