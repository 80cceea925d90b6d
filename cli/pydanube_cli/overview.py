"""Help of the root and of groups: words with one line each. Also similar words for unknown ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from pydanube_core.errors import InvalidArgument

# Words of the original tool for operations with other names here → (operation, argument for its positional word).
ALIASES: Final[dict[tuple[str, str], tuple[str, str | None]]] = {
    ("topics", "subscriptions"): ("subscriptions.list", "topic"),
    ("topics", "unsubscribe"): ("subscriptions.delete", None),
    ("topics", "set-failure-policy"): ("subscriptions.set_failure_policy", None),
    ("topics", "get-failure-policy"): ("subscriptions.get_failure_policy", None),
    ("brokers", "leader-broker"): ("brokers.leader", None),
    ("brokers", "namespaces"): ("namespaces.list", None),
    ("namespaces", "topics"): ("topics.list", "namespace"),
    ("namespaces", "policies"): ("namespaces.get_policies", None),
    ("schemas", "list-subjects"): ("schemas.list", None),
    ("schemas", "delete"): ("schemas.delete_version", None),
}
_START = """\
Usage: danube COMMAND [ARGUMENTS] [OPTIONS]

A messaging cluster that you start, fill, read and query in minutes.
"""
_EXAMPLES = """\
Examples:
  danube up                                   # a broker in ./danube-data
  danube produce logs -f /var/log/dpkg.log    # each line a message
  danube consume logs --exit                  # read it back
  danube topics list
  danube subscriptions lag --topic logs

`danube COMMAND --help` shows options and more examples. Every command takes --json."""


def print_overview(
    commands: Mapping[str, tuple[str, str, str]],
    groups: Mapping[str, Mapping[str, tuple[str, str, str]]],
    summaries: Mapping[str, str],
    operations: Mapping[str, Sequence[str]],
) -> None:
    """Print the help of `danube`. `operations`: group → verbs."""
    print(_START)
    print("Commands:")
    for name, leaf in commands.items():
        print(f"  {name:<15}{leaf[2]}")
    print("\nGroups (danube GROUP VERB):")
    for name in groups:
        print(f"  {name:<15}{summaries[name]}: {', '.join([*groups[name], *operations.get(name, ())])}")
    for name, verbs in operations.items():
        if name not in groups:
            print(f"  {name:<15}{', '.join(verbs)}")
    print()
    print(_EXAMPLES)


def print_group(word: str, summary: str, verbs: Mapping[str, str]) -> None:
    """Print the help of a group of commands, as for `danube GROUP --help`: a summary, its verbs and an example."""
    print(f"Usage: danube {word} VERB [ARGUMENTS] [OPTIONS]\n")
    if summary:
        print(f"{summary[0].upper()}{summary[1:]}.\n")
    print("Verbs:")
    for verb, line in verbs.items():
        print(f"  {verb:<22}{line}")
    print(f"\nExample:\n  danube {word} {next(iter(verbs))} --help")


def unknown_word(word: str, words: Sequence[str], *, group: str | None = None) -> InvalidArgument:
    """Return the usage error for a word that is no command, or no verb of `group`. `words`: the known ones."""
    kind = "option" if word.startswith("-") else "verb" if group else "command"
    if kind == "option":
        words = ("--help",) if group else ("--help", "--version")
    of_a_group = [each for each in words if each.endswith(f" {word}")]
    close = of_a_group or difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    what = f"danube{f' {group}' if group else ''} has no {kind} {word!r}"
    error = InvalidArgument(what + hint, field=kind, value=word, suggestion=close[0] if close else None)
    return with_help(error, f"danube {group} --help" if group else "danube --help")


def with_help(error: InvalidArgument, command: str) -> InvalidArgument:
    """Add a pointer to the help to a usage error, which has no operation."""
    step: dict[str, object] = {
        "operation": None,
        "tool": None,
        "command": command,
        "arguments": {},
        "why": "shows the options",
    }
    error.next.append(step)
    return error
