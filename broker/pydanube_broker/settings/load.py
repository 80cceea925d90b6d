"""Combine settings from file, environment and flags. Every problem names its place.

The loader reads all three before it reports problems, so that one run of `config check` shows every mistake. It finds
the line of a key by its own small scan, because `tomllib` does not keep positions.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydanube_core.errors import InvalidArgument

from pydanube_broker.settings.sections import (
    ENVIRONMENT_ONLY,
    Journal,
    Settings,
    Source,
    SourceKind,
    field_kind,
    sections,
)
from pydanube_broker.settings.sizes import FIRST_SEGMENT_BYTES, MAX_SEGMENT_BYTES
from pydanube_broker.settings.values import (
    MEMORY_DIR,
    SECURITY_FILE,
    Section,
    ValueKind,
)

# Flags of settings, only for naming a source. Any other is `--<key>`.
FLAGS: Final = {
    "server.host": "--host",
    "server.grpc_port": "--grpc-port",
    "server.admin_port": "--admin-port",
    "server.metrics_port": "--metrics-port",
    "server.http_port": "--http-port",
    "server.insecure_bind": "--insecure-bind",
    "data.dir": "--data-dir",
    "metadata.url": "--metadata",
    "log.level": "--log-level",
    "log.format": "--log-format",
    "mcp.profile": "--profile",
    "mcp.confirm": "--confirm",
}
_PREFIX: Final = "DANUBE_"
# Variables that commands and programs read, and brokers ignore.
CLIENT_VARIABLES: Final = frozenset(
    {"DANUBE_ADMIN_ENDPOINT", "DANUBE_BROKER_URL", "DANUBE_CLUSTERS", "DANUBE_DEBUG", "DANUBE_PRINCIPAL"}
)
SMALL_SEGMENTS: Final = "DANUBE_TEST_SMALL_SEGMENTS"
_HEADER: Final = re.compile(r"\s*\[\s*([A-Za-z0-9_.\-\" ]+?)\s*\]\s*(?:#.*)?\Z")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\-\" ]+?)\s*=")
_TOML_AT: Final = re.compile(r"\s*\(at line (\d+), column (\d+)\)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with the settings, and where it is."""

    key: str
    value: Any
    source: Source
    message: str
    suggestion: str | None = None

    def sentence(self) -> str:
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{self.source}: {self.message}{hint}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "value": self.value if isinstance(self.value, (str, int, float, bool)) else str(self.value),
            "source": str(self.source),
            "line": self.source.line,
            "message": self.message,
            "suggestion": self.suggestion,
        }


def variable_of(section: str, key: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_PREFIX}{section}__{key}".upper()


def _variable(name: str) -> str:
    return variable_of(*name.split("."))


def load_settings(
    file: Path | None = None, env: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Read the settings from the data directory (`danube security init`), a TOML file, the environment, then flags.

    Args:
        file: None for no file.
        env: the environment. None for an empty one.
        overrides: `section.key` → value, the flags. None values are not given.

    Raises:
        InvalidArgument: with every problem in `details["problems"]`: `{key, value, source, line, message, suggestion}`.
    """
    env, overrides = env or {}, overrides or {}
    problems: list[Problem] = []
    known = sections()
    given = [*(_from_file(file) if file is not None else ()), *_from_env(env), *_from_flags(overrides)]
    values: dict[str, dict[str, Any]] = {}
    sources: dict[str, Source] = {}
    for section, key, value, source in [*_from_data_dir(given), *given]:
        if (problem := _unknown(known, section, key, value, source)) is not None:
            problems.append(problem)
        elif f"{section}.{key}" in ENVIRONMENT_ONLY and source.kind is not SourceKind.ENV and value != "":
            problems.append(
                Problem(
                    key=f"{section}.{key}",
                    value="…",
                    source=source,
                    message=f"{section}.{key} is taken from the environment only, which no log and no file shows",
                    suggestion=variable_of(section, key),
                )
            )
        elif value == "" and known[section].model_fields[key].default is None:
            continue  # the file written by `config init` has unset values as empty texts
        else:
            values.setdefault(section, {})[key] = value
            sources[f"{section}.{key}"] = source
    built: dict[str, Section] = {}
    for section, model in known.items():
        try:
            built[section] = model(**values.get(section, {}))
        except ValidationError as error:
            problems += _invalid(error, section, values[section], sources)
    problems += _segment_size(built, sources, env)
    problems += _misspelled(env)
    if problems:
        raise _refuse(problems)
    return Settings(**built).with_sources(sources)  # type: ignore[arg-type]  # names and models come from Settings


def _from_data_dir(given: Sequence[tuple[str, str, Any, Source]]) -> Iterator[tuple[str, str, Any, Source]]:
    """Yield the settings that `danube security init` wrote into the data directory. Every other source overrides them."""
    named = [value for section, key, value, _ in given if (section, key) == ("data", "dir")]
    folder = named[-1] if named else Settings().data.dir
    if folder in (None, MEMORY_DIR) or not isinstance(folder, str | Path):
        return
    file = Path(folder).expanduser() / SECURITY_FILE
    if file.is_file():
        yield from _from_file(file)


def _segment_size(
    built: Mapping[str, Section], sources: Mapping[str, Source], env: Mapping[str, str]
) -> Iterator[Problem]:
    """Check the size of segments: large enough for the largest batch, small enough to be read at a start.

    `overrides` are not checked for the minimum. Tests of processes set `DANUBE_TEST_SMALL_SEGMENTS`.
    """
    source = sources.get("journal.segment_bytes")
    journal = built.get("journal")
    if source is None or not isinstance(journal, Journal):
        return
    if journal.segment_bytes > MAX_SEGMENT_BYTES:
        yield Problem(
            key="journal.segment_bytes",
            value=journal.segment_bytes,
            source=source,
            message=f"at most {MAX_SEGMENT_BYTES >> 30} GiB: a start reads a file of the journal as a whole",
        )
    if source.kind is SourceKind.FLAG:
        return
    if journal.segment_bytes < FIRST_SEGMENT_BYTES and env.get(SMALL_SEGMENTS) != "1":
        yield Problem(
            key="journal.segment_bytes",
            value=journal.segment_bytes,
            source=source,
            message=f"at least {FIRST_SEGMENT_BYTES >> 20} MiB: the largest batch has to fit",
        )


def _from_file(file: Path) -> Iterator[tuple[str, str, Any, Source]]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        remedy = f". danube config init {file} writes one" if isinstance(error, FileNotFoundError) else ""
        raise InvalidArgument(
            f"cannot read the settings file {file}: {error.strerror}{remedy}", field="config", value=str(file)
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"the settings file {file} is not UTF-8 (byte {error.start})", field="config", value=str(file)
        ) from None
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, line = str(error), None
        if (at := _TOML_AT.search(message)) is not None:
            message, line = message[: at.start()], int(at[1])
        where = f"{file}:{line}" if line else str(file)
        raise _refuse(
            [
                Problem(
                    key="",
                    value=str(file),
                    source=Source(kind=SourceKind.FILE, where=where, line=line),
                    message=f"this is not TOML: {message}",
                )
            ]
        ) from None
    lines = key_lines(text)

    def source(*path: str) -> Source:
        line = lines.get(path) or lines.get(path[:1])
        where = f"{file}:{line}" if line else str(file)
        return Source(kind=SourceKind.FILE, where=where, line=line)

    for section, body in tree.items():
        if isinstance(body, dict) and (body or section in sections()):
            for key, value in body.items():
                yield section, key, value, source(section, key)
        else:
            yield section, "", body, source(section)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line (from 1) of each `[section]`, and of each key as (section, key). The text is valid TOML."""
    found: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    fence = ""  # inside a multi-line string nothing looks like a key
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            if fence in line:
                fence = ""
            continue
        if (header := _HEADER.match(line)) is not None:
            section = _path(header[1])
            found.setdefault(section, number)
        elif (key := _KEY.match(line)) is not None:
            path = section + _path(key[1])
            for depth in range(1, len(path) + 1):
                found.setdefault(path[:depth], number)
            for quotes in ('"""', "'''"):
                if line.count(quotes) % 2:
                    fence = quotes
    return found


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip('"') for part in dotted.split("."))


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, str, Any, Source]]:
    for variable, value in sorted(env.items()):
        section, separator, key = variable.removeprefix(_PREFIX).partition("__")
        # Without the double underscore it is a client's variable (DANUBE_BROKER_URL), or another program's. An empty
        # one counts as not given, because compose files set variables without a value so.
        if variable.startswith(_PREFIX) and separator and value:
            yield section.lower(), key.lower(), value, Source(kind=SourceKind.ENV, where=variable)


def _misspelled(env: Mapping[str, str]) -> Iterator[Problem]:
    """Yield variables that lack only the double underscore of a setting: `DANUBE_LOG_LEVEL`, `DANUBE_LOGLEVEL`.

    Others are ignored. Kubernetes sets `DANUBE_SERVICE_HOST` and the like for a service called danube.
    """
    plain = {
        f"{section}{key}".replace("_", ""): variable_of(section, key)
        for section, model in sections().items()
        for key in model.model_fields
    }
    for variable, value in sorted(env.items()):
        word = variable.removeprefix(_PREFIX)
        if not variable.startswith(_PREFIX) or "__" in word or not value:
            continue
        # A misspelt letter counts as well. The cutoff is far from other programs' names.
        meant = _nearest(word.replace("_", "").lower(), list(plain), cutoff=0.9)
        if meant is not None and variable not in CLIENT_VARIABLES:
            yield Problem(
                key=variable,
                value="…" if plain[meant] in map(_variable, ENVIRONMENT_ONLY) else value,
                source=Source(kind=SourceKind.ENV, where=variable),
                message="there is no such setting. Two underscores separate section and key",
                suggestion=plain[meant],
            )


def _from_flags(overrides: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Source]]:
    for name, value in overrides.items():
        if value is not None:
            section, _, key = name.partition(".")
            flag = FLAGS.get(name, "--" + key.replace("_", "-"))
            yield section, key, value, Source(kind=SourceKind.FLAG, where=flag)


def _unknown(
    known: Mapping[str, type[Section]], section: str, key: str, value: Any, source: Source
) -> Problem | None:
    """Return the problem of an unknown setting, or None. A suggestion is in the form of its source."""
    model = known.get(section)
    if model is not None and key in model.model_fields:
        return None
    name = f"{section}.{key}" if key else section
    if model is not None and not key:
        return Problem(
            key=name,
            value=value,
            source=source,
            message=f"{section} is a section: write [{section}] and its keys",
        )
    if model is None and source.kind is SourceKind.FILE:
        nearest = _nearest(section, list(known))
        here = [f"[{other}]" for other, fields in known.items() if key in fields.model_fields]
        suggestion = f"[{nearest}]" if nearest else (here[0] if len(here) == 1 else None)
        if not key and (home := _home(known, section)):
            suggestion = home
        return Problem(
            key=name,
            value=value,
            source=source,
            message=f"there is no section [{section}]" if key else f"there is no setting {section}",
            suggestion=suggestion,
        )
    everything = [f"{part}.{field}" for part, fields in known.items() for field in fields.model_fields]
    own = _nearest(key, list(model.model_fields)) if model is not None else None
    suggestion = f"{section}.{own}" if own else (_home(known, key) or _nearest(name, everything))
    if suggestion is not None and source.kind is SourceKind.ENV:
        suggestion = variable_of(*suggestion.split("."))
    elif suggestion is not None and suggestion.startswith(f"{section}."):
        suggestion = suggestion.partition(".")[2]
    message = (
        f"there is no setting {key} in [{section}]" if model is not None else f"there is no setting {name}"
    )
    return Problem(key=name, value=value, source=source, message=message, suggestion=suggestion)


def _home(known: Mapping[str, type[Section]], key: str) -> str | None:
    """Return `section.key` of a key that exists in exactly one section."""
    homes = [f"{section}.{key}" for section, model in known.items() if key in model.model_fields]
    return homes[0] if len(homes) == 1 else None


def _nearest(word: str, words: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    close = difflib.get_close_matches(word, words, n=1, cutoff=cutoff)
    return close[0] if close else None


def _invalid(
    error: ValidationError, section: str, values: Mapping[str, Any], sources: Mapping[str, Source]
) -> Iterator[Problem]:
    """Return the messages of our parsers from pydantic's error."""
    seen: set[str] = set()
    for fault in error.errors(include_url=False):
        key = str(fault["loc"][0])
        if key in seen:  # both members of `X | None` report it
            continue
        seen.add(key)
        cause = fault.get("ctx", {}).get("error")
        sentence = str(cause) if isinstance(cause, ValueError) else "this value does not fit"
        name = f"{section}.{key}"
        field = sections()[section].model_fields[key]
        kind, _ = field_kind(field.metadata, field.annotation)
        value = "…" if kind is ValueKind.SECRET else values.get(key)
        yield Problem(key=name, value=value, source=sources[name], message=f"{name}: {sentence}")


def _refuse(problems: Sequence[Problem]) -> InvalidArgument:
    first = problems[0]
    head = first.sentence() if len(problems) == 1 else f"{len(problems)} settings are wrong"
    body = "" if len(problems) == 1 else "".join(f"\n  {problem.sentence()}" for problem in problems)
    return InvalidArgument(
        head + body,
        field=first.key or "config",
        value=first.to_dict()["value"],
        line=first.source.line,
        suggestion=first.suggestion,
        problems=[problem.to_dict() for problem in problems],
    )
