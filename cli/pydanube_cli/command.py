"""A command: a typed function, its examples, and the options that every command has.

The function takes `common: Common` first and the rest as typer parameters, or, where they are many, as one object:
`options`, a dataclass whose fields are the parameters. The decorator adds the options of docs/interface.md#4-commands
and lets typer parse, for this one command only.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Final, get_type_hints

import typer
from pydanube.addresses import DEFAULT_ADMIN_URL, DEFAULT_BROKER_URL, admin_address
from pydanube.wire.endpoint import SCHEMES, UNIX
from pydanube_core.calling_program import PERSON, CallingProgram, package_version
from pydanube_core.errors import InvalidArgument
from pydanube_core.units import parse_duration_s

from pydanube_cli.overview import with_help


def option(*words: str, min: int | None = None, max: int | None = None) -> Any:
    """Declare a flag for `Annotated`: its names, its value, its help, and its bounds."""
    *names, takes, help = words
    return typer.Option(*names, metavar=takes, help=help, min=min, max=max)


TIMEOUT: Final = "10s"

# typer's own usage errors, by a name that is public in every version it may be: BadParameter's parent.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options of every command."""

    as_json: bool
    timeout_s: float
    timeout_given: bool  # work that takes long waits for its end, unless it was said how long
    broker: str | None  # None: not given, neither as a flag nor in the environment or by --cluster
    admin: str | None
    principal: str | None
    cluster: str | None = None  # by its name in clusters.toml

    @property
    def broker_url(self) -> str:
        return self.broker or DEFAULT_BROKER_URL

    @property
    def admin_url(self) -> str:
        return self.admin or DEFAULT_ADMIN_URL

    def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Call an operation for this command; without `timeout_s` within its own. Raises `ClusterError`."""
        from pydanube_admin.remote import call_sync  # most of what loads a command calls nothing

        return call_sync(
            self.admin_url,
            operation,
            arguments,
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            face="cli",
            principal=self.principal,
            program=_program(),
        )


def _program() -> CallingProgram:
    """Return this command for the audit: of a person if it reads from a terminal."""
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty()
    return CallingProgram(name="danube", version=package_version(), by=PERSON if at_a_terminal else "")


_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "common_json": (
        Annotated[bool, typer.Option("--json", help='Print JSON; errors as {"error": …} on stderr.')],
        False,
    ),
    "common_output": (
        Annotated[str | None, typer.Option("--output", hidden=True, help="json: the same as --json.")],
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
        Annotated[str | None, option("--as", "PRINCIPAL", "Who acts, for the audit (DANUBE_PRINCIPAL).")],
        None,
    ),
}


class Command:
    """One leaf of the command tree.

    Args:
        function: takes `common` by keyword and its typer parameters or `options`; returns an exit code or None for 0.
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
            InvalidArgument: a usage error; `details["usage"]` tells it from a value that was refused later.
        """
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        parsed: dict[str, Any] | None = None

        def body(**values: Any) -> None:
            nonlocal parsed
            parsed = values  # run below: typer has its own idea of what a closed pipe or an interrupt means

        shared = shared_parameters(self.parameters)
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in self.parameters]
        body.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        body.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
        body.__doc__ = self.summary
        app.command(epilog=epilog(self.examples), context_settings={"help_option_names": ["--help", "-h"]})(
            body
        )
        try:
            code = typer.main.get_command(app).main(
                args=list(args), prog_name=f"danube {words}", standalone_mode=False
            )
        except UsageError as error:
            raise with_help(_usage_error(error, words), f"danube {words} --help") from None
        except SystemExit:
            raise BrokenPipeError from None  # while it printed help: the one case in which it exits by itself
        if parsed is None:
            return code if isinstance(code, int) else 0
        common = _common({name: parsed.pop(name) for name in _OPTIONS})
        if self._options is not None:
            parsed = {"options": self._options(**parsed)}
        return self.function(common=common, **parsed) or 0


def _fields_as_parameters(options: type) -> list[inspect.Parameter]:
    """Return the fields of a dataclass of options as typer parameters."""
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
    """Return the options of every command; a command with a `--key` of its own (a message's) keeps that."""
    names = {word for each in own for word in option_words(each.annotation)}
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


def option_words(annotation: Any) -> Sequence[str]:
    """Return the names in a parameter's `typer.Option`: `--key`, `-k`."""
    found = [each for each in getattr(annotation, "__metadata__", ()) if hasattr(each, "param_decls")]
    # Inside Annotated typer's first argument is a name too, though it stands under `default`
    words = [word for each in found for word in (each.default, *(each.param_decls or ()))]
    return [word for word in words if isinstance(word, str)]


def command(*, examples: Sequence[str]) -> Callable[[Callable[..., int | None]], Command]:
    """Make a function a command; its docstring is the help."""

    def decorate(function: Callable[..., int | None]) -> Command:
        return Command(function, examples=examples)

    return decorate


def epilog(examples: Sequence[str]) -> str:
    """Return examples, one a line (a mark keeps typer from joining them into a paragraph)."""
    return "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples)


def _usage_error(error: Exception, words: str) -> InvalidArgument:
    """Return our words for what typer refused; pydantic's words for numbers are for programmers."""
    usage = f"danube {words}"
    errors = getattr(error.__cause__, "errors", None)
    found = errors()[0] if errors is not None else {}
    context = found.get("ctx", {})
    match found.get("type"):
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            wanted = "an integer"
        case "float_parsing" | "float_type":
            wanted = "a number"
        case "greater_than_equal":
            wanted = f"{context['ge']} or more"
        case "less_than_equal":
            wanted = f"{context['le']} or less"
        case _:  # typer's own words, as for a choice
            text = " ".join(str(getattr(error, "format_message", error.__str__)()).split())
            return InvalidArgument(text.replace("Value error, ", ""), usage=usage)
    value = str(found["input"])
    options = [str(option) for option in getattr(getattr(error, "param", None), "opts", ())]
    name = next((option for option in options if option.startswith("--")), "the argument")
    return InvalidArgument(
        f"{name} must be {wanted}, not {value!r}",
        usage=usage,
        field=name.removeprefix("--").replace("-", "_"),
        value=value,
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
        # There the SDK looks for what it is not given, in this process and in those that it starts.
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
    )


def _url(text: str | None, field: str) -> str | None:
    """Return `http://host:port`; the scheme may be left out."""
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
