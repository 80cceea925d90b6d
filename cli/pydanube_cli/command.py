"""A command: a typed function, its examples, and the options that every command has.

The function takes `common: Common` first and the rest as parameters, or, where they are many, as one object: `options`, a
dataclass whose fields are the parameters. The decorator adds the options of docs/interface.md#4-commands.
"""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Final, get_type_hints

from pydanube.addresses import DEFAULT_ADMIN_URL, DEFAULT_BROKER_URL, admin_address
from pydanube.wire.endpoint import UNIX
from pydanube_core.addresses import SCHEMES
from pydanube_core.calling_program import PERSON, CallingProgram, package_version
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.units import parse_duration_s

from pydanube_cli.overview import with_help
from pydanube_cli.parameters import HelpWanted, Word, help_text, option, parse

TIMEOUT: Final = "10s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options of every command."""

    as_json: bool
    timeout_s: float
    timeout_given: bool  # False: long work waits for its end without a deadline
    broker: str | None  # None: not given, neither as a flag nor in the environment or by --cluster
    admin: str | None
    principal: str | None
    cluster: str | None = None  # by its name in clusters.toml
    where: str = ""  # the flags that name the broker, as they were given, after a space

    @property
    def broker_url(self) -> str:
        return self.broker or DEFAULT_BROKER_URL

    @property
    def admin_url(self) -> str:
        return self.admin or DEFAULT_ADMIN_URL

    def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Call an operation for this command, by default within its own time-out. Raises `ClusterError`."""
        from pydanube_admin.remote import call_sync  # most importers of this module make no call

        try:
            result: dict[str, Any] = call_sync(
                self.admin_url,
                operation,
                arguments,
                timeout_s=self.timeout_s if timeout_s is None else timeout_s,
                face="cli",
                principal=self.principal,
                program=this_command(),
            )
        except ClusterError as error:
            self._address([error.next, error.details])
            raise
        self._address(result)
        return result

    def _address(self, value: Any) -> None:
        """Add the flags that name the broker to the commands of `next`: without them they go to another one."""
        if not self.where:
            return
        rest = [value]
        while rest:
            match rest.pop():
                case list() as items:
                    rest += items
                case {"operation": str(), "command": str(line)} as step if line.startswith("danube "):
                    step["command"] = line + self.where
                case dict() as fields:
                    rest += [each for name, each in fields.items() if name != "untrusted"]


def this_command() -> CallingProgram:
    """Return this command for the audit: of a person if it reads from a terminal."""
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty()
    return CallingProgram(name="danube", version=package_version(), by=PERSON if at_a_terminal else "")


_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "common_json": (
        Annotated[bool, option("--json", help='Print JSON, errors as {"error": …} on stderr.')],
        False,
    ),
    "common_output": (
        Annotated[str | None, option("--output", hidden=True, help="json: the same as --json.")],
        None,
    ),
    "common_timeout": (
        Annotated[
            str | None,
            option("--timeout", "DURATION", f"How long to wait for an answer [default: {TIMEOUT}]"),
        ],
        None,
    ),
    "common_broker": (
        Annotated[
            str | None,
            option(
                "--broker",
                "--service-addr",
                "URL",
                f"Where the broker answers (DANUBE_BROKER_URL) [default: {DEFAULT_BROKER_URL}]",
            ),
        ],
        None,
    ),
    "common_admin": (
        Annotated[
            str | None,
            option(
                "--admin",
                "URL",
                "Where its administration answers (DANUBE_ADMIN_ENDPOINT), if --broker does not [default: "
                f"the broker that is named, else {DEFAULT_ADMIN_URL}]",
            ),
        ],
        None,
    ),
    "common_cluster": (
        Annotated[str | None, option("--cluster", "NAME", "A cluster of ~/.config/danube/clusters.toml.")],
        None,
    ),
    "common_token": (
        Annotated[
            str | None,
            option(
                "--token",
                "TOKEN",
                "Shown to the broker (DANUBE_TOKEN, or DANUBE_TOKEN_FILE, which no list of processes shows).",
            ),
        ],
        None,
    ),
    "common_ca": (
        Annotated[
            str | None, option("--ca", "FILE", "The authority of https:// brokers, in PEM (DANUBE_CA).")
        ],
        None,
    ),
    "common_cert": (
        Annotated[str | None, option("--cert", "FILE", "The certificate to show, in PEM (DANUBE_CERT).")],
        None,
    ),
    "common_key": (
        Annotated[str | None, option("--tls-key", "--key", "FILE", "Its private key, in PEM (DANUBE_KEY).")],
        None,
    ),
    "common_as": (
        Annotated[
            str | None,
            option("--as", "PRINCIPAL", "Principal of the call, for the audit (DANUBE_PRINCIPAL)."),
        ],
        None,
    ),
}


class Command:
    """One leaf of the command tree.

    Args:
        function: takes `common` by keyword and its parameters or `options`, and returns an exit code or None
            for 0.
        examples: command lines, each pasteable, shown by `--help`.
    """

    def __init__(
        self,
        function: Callable[..., int | None],
        *,
        examples: Sequence[str],
        parameters: Sequence[inspect.Parameter] | None = None,
        summary: str | None = None,
    ) -> None:
        assert examples, "every command shows at least one example"
        self.function = function
        self.examples = tuple(examples)
        self.summary = summary or inspect.getdoc(function) or ""
        self._options: Callable[..., Any] | None = None
        if parameters is None:
            own = inspect.signature(function, eval_str=True).parameters
            if "options" in own:
                self._options = own["options"].annotation
                parameters = _fields_as_parameters(own["options"].annotation)
            else:
                parameters = [parameter for parameter in own.values() if parameter.name != "common"]
        self.parameters = tuple(parameters)

    def main(self, words: str, args: Sequence[str]) -> int:
        """Parse `args` and run. `words`: the command's name for the usage line.

        Raises:
            InvalidArgument: a usage error. `details["usage"]` distinguishes it from a value that is refused
                later.
        """
        usage = f"danube {words}"
        parameters = (*self.parameters, *shared_parameters(self.parameters))
        try:
            parsed = parse(parameters, args)
        except HelpWanted:
            print(help_text(usage, self.summary, parameters, self.examples), end="")
            return 0
        except InvalidArgument as error:
            error.details["usage"] = usage
            raise with_help(error, f"{usage} --help") from None
        common = _common({name: parsed.pop(name) for name in _OPTIONS})
        if self._options is not None:
            parsed = {"options": self._options(**parsed)}
        return self.function(common=common, **parsed) or 0


def _fields_as_parameters(options: type) -> list[inspect.Parameter]:
    """Return the fields of a dataclass of options as parameters."""
    hints = get_type_hints(options, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(options)
    ]


def shared_parameters(own: Sequence[inspect.Parameter] = ()) -> tuple[inspect.Parameter, ...]:
    """Return the options of every command. A command with a `--key` of its own (a message's) keeps that."""
    names = {flag for each in own for flag in Word.of(each).flags}
    return tuple(
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=_TLS_KEY_ALONE if name == "common_key" and "--key" in names else annotation,
            default=default,
        )
        for name, (annotation, default) in _OPTIONS.items()
    )


_TLS_KEY_ALONE: Final = Annotated[
    str | None, option("--tls-key", "FILE", "Its private key, in PEM (DANUBE_KEY).")
]


def command(*, examples: Sequence[str]) -> Callable[[Callable[..., int | None]], Command]:
    """Make a function a command. Its docstring is the help."""

    def decorate(function: Callable[..., int | None]) -> Command:
        return Command(function, examples=examples)

    return decorate


_WHERE: Final = ("broker", "admin", "cluster", "ca", "cert", "key")  # a token is not repeated


def _where(values: Mapping[str, Any]) -> str:
    given = ((name, values[f"common_{name}"]) for name in _WHERE)
    return "".join(
        f" --{'tls-key' if name == 'key' else name} {shlex.quote(value)}"
        for name, value in given
        if value is not None
    )


def _common(values: Mapping[str, Any]) -> Common:
    output = values["common_output"]
    if output not in (None, "json", "text", "table"):
        raise InvalidArgument(f"--output {output!r}: write json or table", field="output", value=output)
    broker, admin = values["common_broker"], values["common_admin"]
    if (name := values["common_cluster"]) is not None:
        from pydanube_cli.clusters import find_cluster

        cluster = find_cluster(name, os.environ)
        broker, admin = broker or cluster.broker, admin or cluster.admin
    for name in ("token", "ca", "cert", "key"):
        # The SDK reads defaults from the environment, in this process and in those that it starts.
        if (value := values[f"common_{name}"]) is not None:
            os.environ[f"DANUBE_{name.upper()}"] = value
    return Common(
        as_json=bool(values["common_json"]) or output == "json",
        timeout_s=parse_duration_s(values["common_timeout"] or TIMEOUT, field="timeout"),
        timeout_given=values["common_timeout"] is not None,
        broker=_url(broker or os.environ.get("DANUBE_BROKER_URL") or None, "broker"),
        admin=_url(admin_address(admin, broker, os.environ), "admin"),
        principal=values["common_as"] or os.environ.get("DANUBE_PRINCIPAL") or None,
        cluster=values["common_cluster"],
        where=_where(values),
    )


def _url(text: str | None, field: str) -> str | None:
    """Return `http://host:port`. The scheme may be omitted."""
    if text is None:
        return None
    if text.startswith(UNIX):  # a socket on this machine
        return UNIX + os.path.abspath(os.path.expanduser(text.removeprefix(UNIX)))
    url = text.strip().rstrip("/")
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    _, colon, port = rest.rpartition(":")
    if scheme not in SCHEMES or not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidArgument(
            f"--{field} {text!r}: write http://host:port or https://host:port", field=field, value=text
        )
    return f"{'https' if SCHEMES[scheme] else 'http'}://{rest}"
