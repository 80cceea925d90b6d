"""`danube GROUP VERB`: every operation of the admin registry, as a command.

This module reads only the declarations of the operations. Required names and ids are positional, the other
arguments are flags. A destructive call needs consent: the broker answers PLAN_REQUIRED with the plan, the
command shows it and asks the user, or takes `--yes`, and calls again with the plan's token. A script (no
terminal, or `--json`) without `--yes` ends with that answer, and nothing has changed.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydanube_admin.engine.declaration import (
    Argument,
    ArgumentType,
    Declared,
    ValueType,
    declarations,
    parse_object,
)
from pydanube_core.cursor_state import LAG_COLUMNS
from pydanube_core.errors import CODES, ConditionNotMet, CorruptObject, InvalidArgument, PlanRequired

from pydanube_cli.answers import (
    NO_DEADLINE_S,
    ReplayAccount,
    all_paths,
    consents,
    describe,
    lines_of,
    outcome_of,
    print_diagnosis,
    progress_line,
    row_of,
    show_plan,
    waiting,
    with_progress,
)
from pydanube_cli.command import Command, Common
from pydanube_cli.failures import printable
from pydanube_cli.messages.export import export_here, writes_here
from pydanube_cli.overview import ALIASES, print_group, unknown_word
from pydanube_cli.parameters import Info, Word, option
from pydanube_cli.render import print_json, print_pairs, print_table, prose

MESSAGE: Final = ("topic", "partition", "offset", "append_time", "key", "payload", "payload_bytes")
# The most useful columns. `--json` has all.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "audit.query": ("time", "phase", "operation", "principal", "decision", "code"),
    "plans.list": ("plan_id", "operation", "principal", "state", "expires_at"),
    "tasks.list": ("task_id", "operation", "state", "started_at", "ended_at"),
    "alerts.list": ("rule", "subject", "severity", "opened_at", "closed_at", "alert_id"),
    "dead_letters.list": ("offset", "original_topic", "original_offset", "append_time", "reason", "payload"),
    "messages.peek": MESSAGE,
    "messages.search": MESSAGE,
    "brokers.list": ("name", "broker_id", "state", "version", "topics", "ready"),
    "topics.list": (
        "topic",
        "partitions",
        "dispatch_strategy",
        "messages",
        "bytes",
        "producers",
        "consumers",
        "subscriptions",
    ),
    "subscriptions.list": ("topic", "subscription", "type", "consumers", "lag_messages", "in_flight"),
    "subscriptions.lag": LAG_COLUMNS,
}


# Lists inside of a result that is no list, each shown as a table below the rest.
INNER: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "connectors.errors": ("refused", ("topic", "offset", "append_time", "reason", "payload")),
}
# Flags that every command has win over an argument of the same name, which then gets a longer one.
TOPICS_SHOWN: Final = 5  # of a broker whose items a list lacks
RENAMED: Final = {"--broker": "--broker-id"}


# Lists of things that other programs open: `--format paths|glob|sql` prints those and nothing else.
PATHS: Final = ("objects.list",)
# Arguments that name a file of this machine: made absolute, because the broker runs in another folder.
FILES: Final[dict[str, str]] = {"objects.export": "to"}


def run(group: str, words: Sequence[str], leading: Sequence[str]) -> int:
    """Run the words after a group: print its help, or carry out the operation that they name."""
    here = {op.words[1]: op for op in declarations().values() if op.words[0] == group}
    if not words or words[0] in ("--help", "-h", "help"):
        print_group(group, "", {verb: operation.summary for verb, operation in here.items()})
        return 0 if words else 2
    verb, rest = words[0], [*leading, *words[1:]]
    name, positional = ALIASES.get((group, verb), (f"{group}.{verb}".replace("-", "_"), None))
    if name in declarations():
        return command_of(declarations()[name], positional=positional).main(f"{group} {verb}", rest)
    raise unknown_word(verb, list(here), group=group)


def command_of(operation: Declared, *, positional: str | None = None) -> Command:
    """Return the command of an operation.

    Args:
        positional: an argument that this word takes by position although the operation makes it a flag.
    """
    arguments = operation.arguments
    parameters = [
        _parameter(
            argument,
            by_position=argument.name == positional,
            may_be_file=argument.name == operation.text_argument,
        )
        for argument in arguments
    ]
    parameters.sort(key=lambda parameter: not Word.of(parameter).positional)
    if operation.text_argument is not None:
        flag = f"--{operation.text_argument.replace('_', '-')}"
        parameters.append(_text_option("option_file", "--file", f"Read {flag} from a file, - is stdin."))
    if operation.planned:
        parameters += [
            _flag("option_dry_run", "--dry-run", "Show the plan, and change nothing."),
            _flag("option_yes", "--yes", "Do it without a confirmation."),
            _text_option("option_plan_token", "--plan-token", "Apply a plan that was shown."),
        ]
    if operation.takes_why:
        parameters.append(_text_option("option_why", "--why", "Why, in a sentence: for plans and the audit."))
    if operation.long_running:
        parameters.append(_flag("option_detach", "--detach", "Answer with its task, and let it go on."))
    if operation.followed:
        parameters.append(
            _flag("option_wait", "--wait", "Wait until all of it is done, and end as that does.")
        )
    if operation.name in PATHS:
        parameters.append(_format_option())
    examples = [operation.command_line(example.arguments) for example in operation.examples]
    function = partial(_call, operation=operation)
    return Command(function, examples=examples, parameters=parameters, summary=operation.summary)


def _parameter(argument: Argument, *, by_position: bool, may_be_file: bool = False) -> inspect.Parameter:
    kind: Any
    match argument.type:
        case ArgumentType.STRING:
            kind = Literal[argument.choices] if argument.choices else str
        case ArgumentType.INTEGER:
            kind = int
        case ArgumentType.BOOLEAN:
            kind = bool
        case ArgumentType.OBJECT:
            kind = list[str]
    help_text = argument.help
    if argument.default is not None:
        help_text += f" [default: {argument.default}]"
    limits: dict[str, Any] = {"min": argument.minimum, "max": argument.maximum} if kind is int else {}
    if argument.positional or by_position:
        info: Any = Info(help=help_text, metavar=argument.name.upper(), **limits)
        default = inspect.Parameter.empty if argument.positional else None
    else:
        flag = RENAMED.get(argument.flag, argument.flag)
        declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
        metavar = _PAIRS[argument.values] if argument.values else {int: "N", str: "TEXT"}.get(kind)
        info = option(declaration, help=help_text, metavar=metavar, **limits)
        default = inspect.Parameter.empty if argument.required and not may_be_file else None
    annotation: Any = Annotated[kind if default is inspect.Parameter.empty else kind | None, info]
    return inspect.Parameter(
        f"arg_{argument.name}", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


_PAIRS: Final = {
    ValueType.COUNT: "NAME=COUNT",
    ValueType.TEXT: "NAME=TEXT",
    ValueType.ARGUMENT: "NAME=VALUE",
}


def _flag(name: str, flag: str, text: str) -> inspect.Parameter:
    annotation = Annotated[bool, option(flag, help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _format_option() -> inspect.Parameter:
    text = (
        "table, or for other tools: paths, a glob of each folder, or sql: one list of globs. [default: table]"
    )
    annotation = Annotated[
        Literal["table", "paths", "glob", "sql"] | None,
        option("--format", help=text),
    ]
    return inspect.Parameter(
        "option_format", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _text_option(name: str, flag: str, text: str) -> inspect.Parameter:
    annotation = Annotated[str | None, option(flag, help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """How a call is made and shown: the flags beside an operation's arguments."""

    dry_run: bool = False
    yes: bool = False
    plan_token: str | None = None
    why: str | None = None
    file: str | None = None
    format: str | None = None
    detach: bool = False
    wait: bool = False

    def __post_init__(self) -> None:
        for other, given in (
            ("--plan-token", self.plan_token is not None),
            ("--detach", self.detach),
            ("--wait", self.wait),
            ("--yes", self.yes),
        ):
            if self.dry_run and given:
                raise InvalidArgument(
                    f"--dry-run and {other} exclude each other", field="dry_run", value=True
                )


def _call(*, operation: Declared, common: Common, **given: Any) -> int:
    """Carry out one call. The module's docstring describes consent."""
    ways = _Ways(
        **{
            name.removeprefix("option_"): value
            for name, value in given.items()
            if name.startswith("option_") and value is not None
        }
    )
    if ways.format not in (None, "table") and common.as_json:
        raise InvalidArgument(
            f"--format {ways.format} and --json exclude each other", field="format", value=ways.format
        )
    arguments = _arguments(operation, given, ways)
    if writes_here(operation.name, arguments, common) and not ways.dry_run:
        if ways.detach or ways.plan_token is not None:
            raise InvalidArgument(
                "the command writes this file itself, so --detach and --plan-token do not apply. Give a bare name for a "
                "file in exports/ of the broker's data directory",
                field="to",
                value=arguments["to"],
            )
        show(operation, export_here(operation.name, arguments, common), common)
        return 0
    endless = operation.long_running and not common.timeout_given
    call = partial(common.call, operation.name, timeout_s=NO_DEADLINE_S if endless else None)
    ask = call if operation.long_running else partial(_waited_for, call, operation.name)
    if ways.dry_run:
        show_plan(operation, arguments, ask({**arguments, "plan_only": True}), common)
        return 0
    if ways.format not in (None, "table"):
        assert ways.format is not None
        _print_paths(all_paths(ask, arguments), ways.format)
        return 0
    if ways.detach:
        result = _asked(operation, ask, {**arguments, "detach": True}, yes=ways.yes, common=common)
        if result is not None:
            show(operation, result, common)
            if not common.as_json:
                prose(f"to see how far it is: danube tasks get {result['task_id']}{common.where}")
            return 0
    elif operation.long_running:
        result = _watched(
            operation,
            lambda: _asked(operation, ask, arguments, yes=ways.yes, common=common),
            arguments,
            common,
        )
    else:
        result = _asked(operation, ask, arguments, yes=ways.yes, common=common)
    if result is None:
        print("nothing was changed", file=sys.stderr)
        return 1
    if ways.wait and result.get("task_id"):
        # The task keeps the result as it was before the call had a plan and the task an id
        ended = outcome_of(result["task_id"], common.call)
        result |= {name: value for name, value in ended.items() if value not in (None, "")}
    show(operation, result, common)
    if any(result[field] for field in operation.damage):
        return CODES[CorruptObject.code].exit
    holds = operation.condition is None or result[operation.condition] is not False
    return 0 if holds else CODES[ConditionNotMet.code].exit


def _arguments(operation: Declared, given: Mapping[str, Any], ways: _Ways) -> dict[str, Any]:
    """Return the arguments of the call, from the words of the command line."""
    arguments = {
        name.removeprefix("arg_"): value
        for name, value in given.items()
        if name.startswith("arg_") and value is not None
    }
    text = operation.text_argument
    if text is not None:
        arguments[text] = long_text(text, arguments.get(text), ways.file)
    for argument in operation.arguments:
        if argument.type is ArgumentType.OBJECT and argument.name in arguments:
            arguments[argument.name] = parse_object(arguments[argument.name], argument, arguments)
    if ways.plan_token is not None:
        arguments["plan_token"] = ways.plan_token
    if ways.why is not None:
        arguments["why"] = ways.why
    if (file := FILES.get(operation.name)) is not None:
        arguments[file] = str(Path(arguments[file]).absolute())
    if operation.name == "audit.export" and "/" in (arguments.get("to") or ""):
        arguments["to"] = str(Path(arguments["to"]).absolute())  # a bare name is in the broker's own folder
    return arguments


def _print_paths(paths: list[str], form: str) -> None:
    if not paths:
        prose("no objects: nothing of that range is in the cold tier yet")
    for line in lines_of(paths, form):
        print(line)


def _waited_for(
    call: Callable[[Mapping[str, Any]], dict[str, Any]], operation: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Make a call that usually takes milliseconds. A terminal shows that it waits, as for a broker that hangs."""
    return with_progress(partial(call, arguments), waiting(operation))


def _watched(
    operation: Declared,
    work: Callable[[], dict[str, Any] | None],
    arguments: Mapping[str, Any],
    common: Common,
) -> dict[str, Any] | None:
    """Run long work with its progress shown. If interrupted, report how far a replay got."""
    account = ReplayAccount(common.call, arguments["to"]) if operation.name == "topics.replay" else None
    try:
        return with_progress(work, lambda: progress_line(common.call("brokers.status"), operation.name))
    except KeyboardInterrupt:
        if account is not None:
            _say_how_far(account.copied_until(), as_json=common.as_json)
        raise


def _say_how_far(copied_until: Mapping[str, int], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"interrupted": True, "copied_until": copied_until}), file=sys.stderr)
    elif not copied_until:
        print("interrupted: no copy is there", file=sys.stderr)
    for topic, offset in () if as_json else copied_until.items():
        print(
            f"interrupted: {topic} is copied up to offset {offset}. Continue with --from offset:{offset}",
            file=sys.stderr,
        )


def long_text(name: str, given: str | None, file: str | None) -> str:
    """Return a text as given, or from a file."""
    flag = f"--{name.replace('_', '-')}"
    if (given is None) == (file is None):
        raise InvalidArgument(
            f"give {flag} or --file, one of the two: --file reads the text from a file, --file - from stdin",
            field=name,
            value=None,
        )
    if file is None:
        assert given is not None, "one of the two is there"
        return given
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidArgument(f"--file {file} cannot be read: {why}", field="file", value=file) from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"--file {file} is not UTF-8 text (byte {error.start})", field="file", value=file
        ) from error


def _asked(
    operation: Declared,
    ask: Callable[[Mapping[str, Any]], dict[str, Any]],
    arguments: Mapping[str, Any],
    *,
    yes: bool,
    common: Common,
) -> dict[str, Any] | None:
    """Return the result, of a destructive call only after consent to its plan. None: there was no consent."""
    try:
        return ask(arguments)
    except PlanRequired as error:
        plan = error.details.get("plan")
        if not isinstance(plan, dict) or not plan.get("plan_token"):
            raise
        if not yes:
            if common.as_json or not _on_a_terminal():
                line = f"{operation.command_line(arguments)}{common.where} --yes"
                if not common.as_json:
                    describe(operation, arguments, plan)
                    error.message = (
                        f"{operation.name} destroys something, so it needs consent to the plan above. Nothing was changed. To do "
                        f"it, type: {line}"
                    )
                error.next.append(
                    operation.next_call(
                        {**arguments, "plan_token": plan["plan_token"]}, "does it without a confirmation"
                    )
                    | {"command": line}
                )
                raise
            if not consents(operation, arguments, plan):
                return None
        return ask({**arguments, "plan_token": plan["plan_token"]})


def _on_a_terminal() -> bool:
    """Return whether a person can see a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _left_out(broker: Mapping[str, Any]) -> str:
    """Return the line about a broker whose items a list lacks."""
    line = f"the items of broker {broker['broker_id']} are missing: {broker['why']}"
    if broker.get("gone_since"):
        line += f", since {broker['gone_since']}"
    if topics := broker.get("topics"):
        more = broker["topic_count"] - len(topics[:TOPICS_SHOWN])
        line += f": {', '.join(topics[:TOPICS_SHOWN])}{f' and {more} more' if more else ''}"
    return line


def show(operation: Declared, result: Mapping[str, Any], common: Common) -> None:
    if common.as_json:
        print_json(result)
    elif isinstance(items := result.get("items"), list):
        if items and operation.name == "connectors.logs":  # whole lines, which have their time and level
            for item in items:
                print(f"{item['worker']}  {printable(item['untrusted']['text'])}")
        elif items:
            print_table([row_of(item) for item in items], COLUMNS.get(operation.name))
        else:
            why = result.get("items_reason")
            none = f"no {operation.group.replace('_', ' ')} found"
            print(none if why is None else printable(f"{none}: {why}"), file=sys.stderr)
        for each in result.get("not_seen") or ():
            print(printable(_left_out(each)), file=sys.stderr)
        if result.get("next_page"):
            print(f"more: add --page {result['next_page']}", file=sys.stderr)
    elif operation.group == "diagnose":
        print_diagnosis(result)
    else:
        inner, columns = INNER.get(operation.name, ("", ()))
        rows = result.get(inner)
        print_pairs({name: value for name, value in result.items() if name != inner or not rows})
        if rows:
            print_table([row_of(row) for row in rows], columns)
        if result.get("undo_until"):
            prose(f"to take it back: danube changes undo {result['call_id']}")
