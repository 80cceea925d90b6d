"""The `danube` command: finds the words, imports only what they need, and ends with the right exit code.

Words are resolved by tables, not by importing every command: `danube --version` must answer in a fraction of
a second, and a machine with the base install must be able to run `produce` although `up` needs more. A leaf
is a `Command` (see `command.py`). Roots and groups only list.
"""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydanube_cli.command import Command


# word → (module, attribute, summary). A value that is a dict is a group.
_Leaf = tuple[str, str, str]
COMMANDS: Final[dict[str, _Leaf]] = {
    "up": ("serve", "up", "start a broker with MCP and JSON-RPC, in one process"),
    "broker": ("serve", "broker", "start a broker without the HTTP port for MCP and JSON-RPC"),
    "produce": ("messages.produce", "produce", "publish lines, a file or a text"),
    "consume": ("messages.consume", "consume", "read a topic, with or without a subscription"),
    "bench": ("bench.command", "bench", "measure throughput and latency beside the machine's own limits"),
    "doctor": ("doctor", "doctor", "look for faults that keep a broker from running well"),
    "mcp": ("mcp", "mcp", "serve the cluster to an AI assistant, or print its configuration"),
    "tui": ("tui", "tui", "watch the cluster in a terminal or a browser, and change it"),
    "runbook": ("runbook", "runbook", "carry out a task step by step: lag, health, schemas, dead letters …"),
    "rpc": ("rpc", "rpc", "call a JSON-RPC method, or serve JSON-RPC on stdin and stdout"),
    "completion": ("completion.command", "completion", "print a shell's completion script: bash, zsh, fish"),
}
GROUPS: Final[dict[str, dict[str, _Leaf]]] = {
    "config": {
        "show": ("config", "show", "effective settings and where each came from"),
        "init": ("config", "init", "write a commented settings file"),
        "check": ("config", "check", "find mistakes in the settings"),
    },
    "security": {
        "init": ("security", "init", "make certificates and a token, and turn the locks on"),
        "off": ("security", "off", "undo danube security init"),
        "recover": ("security", "recover", "let the owner of the data directory in again"),
    },
    "cluster": {
        "local": ("local_cluster.command", "local", "run several brokers and etcd on this machine"),
        "compare": (
            "comparing",
            "compare",
            "settings, policies, schemas and rights beside another cluster's",
        ),
        "adopt": ("cluster_directory", "adopt", "move a lone broker to etcd, as the first of several"),
        "release": ("cluster_directory", "release", "let the last broker of a cluster go on without etcd"),
        "recover": (
            "cluster_directory",
            "recover",
            "go on with an etcd that was restored from an older snapshot",
        ),
        "snapshot": ("cluster_directory", "snapshot", "read the newest snapshot of the metadata back"),
    },
    "tls": {
        "init": ("certificates", "init", "make an authority and certificates for a broker and its clients")
    },
    "connect": {
        "run": ("connect", "run", "run connectors of files in this process"),
        "worker": ("connect", "worker", "run declared connectors, shared with the group's other workers"),
        "list": ("connect", "list_connectors", "the connectors that are installed, and their settings"),
        "new": ("connect", "new", "write a package with a connector of one's own"),
    },
    "skills": {
        "list": ("skills_command", "list_skills", "skills for coding agents that this version ships"),
        "install": ("skills_command", "install", "put them where Claude Code, Cursor and Copilot find them"),
    },
    "report": {
        "lag": ("report", "lag", "how far subscriptions were behind, hour by hour"),
        "balance": ("report", "balance", "how evenly brokers are loaded, and the moves that help"),
    },
}
GROUP_SUMMARIES: Final = {
    "config": "settings of a broker",
    "security": "the locks of a broker",
    "cluster": "several brokers",
    "tls": "certificates",
    "connect": "sources and sinks: topics and other systems",
    "skills": "instructions for coding agents",
    "report": "reports over telemetry, on Spark",
}
# Flags of every command that may also stand before the command's words. True: takes a value.
_LEADING: Final = {
    "--json": False,
    "--output": True,
    "--timeout": True,
    "--broker": True,
    "--service-addr": True,
    "--admin": True,
    "--cluster": True,
    "--token": True,
    "--ca": True,
    "--cert": True,
    "--tls-key": True,
    "--as": True,
}
_HELP: Final = frozenset({"--help", "-h", "help"})


def main() -> None:
    """Entry point of the console script."""
    open_standard_files()
    if os.path.expanduser("~") == "~":  # no HOME, and a user id that the system has no name for (container)
        os.environ["HOME"] = "/"
    if sys.argv[1:2] == ["__complete"]:  # the tab key: every import that is not needed costs
        from pydanube_cli.completion import press

        sys.exit(press.main(sys.argv[2:]))
    sys.exit(run(sys.argv[1:]))


def open_standard_files() -> None:
    """Open `/dev/null` in place of each of descriptors 0 to 2 that was closed at the start.

    Otherwise the first socket or file gets its number, and receives output meant for the terminal.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(nothing, True)
            # open() would warn if never closed: these live as long as the process
            stream = os.fdopen(nothing, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def show_anything(*, as_json: bool) -> None:
    """Let output hold any text where the locale is not UTF-8: other characters are escaped, and JSON is ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper) or codecs.lookup(stream.encoding).name == "utf-8":
            continue
        if as_json:
            codecs.register_error("json", _escaped)
            stream.reconfigure(encoding="ascii", errors="json")
        else:
            stream.reconfigure(errors="backslashreplace")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return JSON's escapes of characters that cannot be encoded, for `codecs.register_error`."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2)), error.end


def run(argv: Sequence[str]) -> int:
    """Run the command line `argv` (without the program's name) and return its exit code.

    Nothing escapes: errors are shown as in docs/interface.md#5-errors-and-exit-codes, a closed pipe ends
    quietly with 0, an interrupt with 130.
    """
    if list(argv) in (["--version"], ["-V"]):
        try:
            print(f"danube {version()}", flush=True)
            return 0
        except OSError as error:
            return _unwritten(error)
    from pydanube_cli.failures import guarded, wants_json

    show_anything(as_json=wants_json(argv) or "rpc" in argv)

    # See the package: from here on an interrupt is handled
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return guarded(lambda: _dispatch(list(argv)), as_json=wants_json(argv))


def _unwritten(error: OSError) -> int:
    """Show an error of the output. Its imports take longer than the version, and are not made before."""
    from pydanube_cli.failures import guarded

    def fail() -> int:
        raise error

    return guarded(fail, as_json=False)


def version() -> str:
    """Return the version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("pydanube")
    except PackageNotFoundError:  # a source tree on sys.path
        return "0+unknown"


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["--install-completion"]:
        from pydanube_cli.completion.command import install_completion

        return install_completion(argv[1:])
    leading, rest = _split_leading(argv)
    words = list(rest)
    if words[:1] == ["admin"]:
        words = words[1:]  # `danube admin topics list` is `danube topics list`
    if not words or words[0] in _HELP:
        from pydanube_cli.overview import print_overview

        print_overview(COMMANDS, GROUPS, GROUP_SUMMARIES, operation_groups())
        return 0
    word, *words = words
    if word in COMMANDS:
        return leaf_of(COMMANDS[word]).main(word, [*leading, *words])
    if word in GROUPS:
        return _group(word, words, leading)
    groups = operation_groups()
    if word not in groups:
        from pydanube_cli.overview import unknown_word

        calls = [f"{group} {verb}" for group, verbs in groups.items() for verb in verbs]
        raise unknown_word(word, [*COMMANDS, *GROUPS, *groups, *calls])
    return _operation(word, words, leading)


def _group(word: str, words: list[str], leading: list[str]) -> int:
    from pydanube_cli.overview import print_group, unknown_word

    leaves = GROUPS[word]
    calls = operation_groups().get(word, [])
    if words and words[0] in calls:
        return _operation(word, words, leading)
    verbs = {verb: leaf[2] for verb, leaf in leaves.items()}
    verbs |= dict.fromkeys(calls, "an operation of a running broker")
    if not words or words[0] in _HELP:
        print_group(word, GROUP_SUMMARIES[word], verbs)
        return 0 if words else 2
    if words[0] not in leaves:
        raise unknown_word(words[0], list(verbs), group=word)
    return leaf_of(leaves[words[0]]).main(f"{word} {words[0]}", [*leading, *words[1:]])


def _operation(group: str, words: list[str], leading: list[str]) -> int:
    from pydanube_cli.operations import run

    return run(group, words, leading)


def operation_groups() -> dict[str, list[str]]:
    """Return group → its verbs that are operations of a broker, in the spelling of the command line.

    They are read from the table of completion: importing the operations takes longer than the help that lists them.
    """
    from pydanube_cli.completion.press import load
    from pydanube_cli.overview import ALIASES

    found = {
        group: [
            verb
            for verb in body.get("verbs", ())
            if verb not in GROUPS.get(group, {}) and (group, verb) not in ALIASES
        ]
        for group, body in load()["words"].items()
        if group not in COMMANDS
    }
    return {group: verbs for group, verbs in found.items() if verbs}


def leaf_of(leaf: _Leaf) -> Command:
    """Return the command for a word of the tables."""
    from importlib import import_module

    command: Command = getattr(import_module(f"pydanube_cli.{leaf[0]}"), leaf[1])
    return command


def _split_leading(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return common flags before the first word, and the rest."""
    at = 0
    while at < len(argv) and (name := argv[at].partition("=")[0]) in _LEADING:
        at += 2 if _LEADING[name] and "=" not in argv[at] else 1
    return argv[:at], argv[at:]


if __name__ == "__main__":
    main()
