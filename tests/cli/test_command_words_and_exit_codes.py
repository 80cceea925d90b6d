"""Words, usage errors, error objects, exit codes; what is true of every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydanube_admin import runbooks
from pydanube_admin.registry import OPERATIONS
from pydanube_cli.command import Command
from pydanube_cli.failures import cluster_error, guarded, printable, wants_json
from pydanube_cli.main import COMMANDS, GROUPS, leaf_of, operation_groups, run
from pydanube_cli.operations import command_of
from pydanube_cli.runbook import command_of_runbook
from pydanube_core.errors import ConsumerBusy, DiskFull, Internal, InvalidArgument, TopicNotFound

from tests.cli.running import Danube, command_line


@pytest.mark.parametrize(("word", "begin"), [("--version", "danube "), ("--help", "Usage: danube ")])
def test_version_and_overview_are_printed_without_loading_the_commands(word: str, begin: str) -> None:
    loaded = f"import sys; from pydanube_cli.main import run; run([{word!r}]); print([m for m in sys.modules if m in ('grpc', 'pydantic', 'anyio')])"
    out = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert out.startswith(begin)
    assert out.splitlines()[-1] == "[]"


def test_the_table_of_words_has_the_groups_and_verbs_of_all_operations() -> None:
    groups: dict[str, list[str]] = {}
    for operation in OPERATIONS.values():
        group, verb = operation.words
        groups.setdefault(group, []).append(verb)
    found = operation_groups()
    assert {group: sorted(verbs) for group, verbs in found.items()} == {
        group: sorted(verbs) for group, verbs in groups.items()
    }


def processor_s(words: list[str], *, code: int = 0) -> float:
    """Return the least processor time of five runs: what else the machine does is not counted."""
    taken = []
    for _ in range(5):
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == code
        taken.append(usage.ru_utime + usage.ru_stime)
    return min(taken)


@pytest.mark.parametrize(
    ("words", "code", "times"),
    [
        (command_line("--version"), 0, 4),
        (command_line("topics", "list"), 3, 16),  # until it finds no broker
        ([sys.executable, "-c", "from pydanube import connect"], 0, 16),
    ],
    ids=["version", "operation", "sdk"],
)
def test_a_start_costs_a_bounded_multiple_of_starting_python(words: list[str], code: int, times: int) -> None:
    python, taken = processor_s([sys.executable, "-c", "pass"]), processor_s(words, code=code)
    assert taken <= times * python + 0.15, f"{taken:.3f} s; python alone {python:.3f} s"


def test_an_operation_loads_neither_the_admin_core_nor_what_extras_bring() -> None:
    program = (
        "import sys; from pydanube_cli.main import run; run(['topics', 'list']); print([m for m in sys.modules if m in "
        "('pydantic', 'anyio', 'grpc', 'rich', 'numpy', 'pydanube_admin.registry', 'pydanube.client')])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_doctor_loads_only_the_modules_that_its_checks_need(tmp_path: Path) -> None:
    (tmp_path / "danube-data").mkdir()
    program = (
        "import sys; from pydanube_cli.main import run; run(['doctor']); print([m for m in sys.modules if m in ('numpy', "
        "'pydanube_admin.registry', 'pydanube_broker.journal', 'pydanube_core.diagnosis', 'pydanube_core.facts', "
        "'pydanube_storage.metadata', 'pydanube_broker.security.jwt_keys', 'http.client', 'tarfile')])"
    )
    words = [sys.executable, "-c", program]
    any_port = {f"DANUBE_SERVER__{name}_PORT": "0" for name in ("GRPC", "ADMIN", "METRICS", "HTTP")}
    out = subprocess.run(
        words, capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ | any_port
    ).stdout
    assert "free: any, any, any, any" in out
    assert out.splitlines()[-1] == "[]"


def test_overview_lists_every_command_and_group(danube: Danube) -> None:
    ran = danube("--help")
    assert ran.code == 0
    for word in [*COMMANDS, *GROUPS, "topics", "subscriptions", "brokers"]:
        assert f"\n  {word} " in ran.out


LEAVES = [
    *([word] for word in COMMANDS),
    *([group, verb] for group, verbs in GROUPS.items() for verb in verbs),
    ["topics", "list"],
    ["topics", "create"],
    ["topics", "describe"],
    ["topics", "delete"],
    ["subscriptions", "list"],
    ["subscriptions", "lag"],
    ["brokers", "status"],
    ["admin", "topics", "list"],
]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_help_with_examples_and_the_common_options(
    danube: Danube, words: list[str]
) -> None:
    ran = danube(*words, "--help")
    assert ran.code == 0
    assert ran.err == ""
    examples = ran.out.partition("Examples:")[2].strip().splitlines()
    assert examples
    assert all(f"danube {words[-2] if len(words) > 1 else words[0]}" in line for line in examples)
    for option in ("--json", "--timeout", "--broker", "--service-addr", "--admin", "--cluster", "--as"):
        assert option in ran.out


def every_command() -> Iterator[tuple[str, Command]]:
    for word, leaf in COMMANDS.items():
        yield word, leaf_of(leaf)
    for group, verbs in GROUPS.items():
        for verb, leaf in verbs.items():
            yield f"{group} {verb}", leaf_of(leaf)
    for name, operation in OPERATIONS.items():
        yield name, command_of(operation)
    for book in runbooks.all().values():
        yield f"runbook {book.name}", command_of_runbook(book)


def test_no_command_has_an_option_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """The later one would take the value: `produce --key`, of a message, was `--key` of the certificate."""
    seen = 0
    for name, command in every_command():
        if not isinstance(command, Command):
            continue  # the group of runbooks: each of them stands below
        command.main(name, ["--help"])
        declared = re.findall(r"^  ((?:--?[\w-]+(?:, | / |$| ))+)", capsys.readouterr().out, re.MULTILINE)
        words = [word for line in declared for word in re.findall(r"--?[\w-]+", line)]
        assert "--tls-key" in words
        assert sorted(words) == sorted(set(words)), f"{name} has one option twice"
        seen += 1
    assert seen > len(OPERATIONS)


def test_near_miss_of_a_command_is_suggested(danube: Danube) -> None:
    ran = danube("prduce", "logs")
    assert ran.code == 2
    assert "did you mean produce?" in ran.err
    assert ran.out == ""


def test_a_verb_without_its_group_is_shown_with_it(danube: Danube) -> None:
    assert "did you mean reports lag or subscriptions lag?" in danube("lag").err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--versio",), "danube has no option '--versio'; did you mean --version?"),
        (("topics", "--hlep"), "danube topics has no option '--hlep'; did you mean --help?"),
        (("produce", "t", "-f", "/nowhere/x"), "-f /nowhere/x does not exist. Name a file, or - for stdin"),
        (("produce", "t", "-f", "/tmp"), "-f /tmp is a folder. Name a file, or - for stdin"),
        (("produce", "t", "-f", ""), "--file must be a path, not ''"),
        (("up", "--config", "no.toml"), "No such file or directory. danube config init no.toml writes one"),
        (("up", "--port-offset", "60000"), "which is no port. Offsets from -6649 to 15484 work"),
        (("up", "--port-offset", "-7000"), "which is no port. Offsets from -6649 to 15484 work"),
        (
            ("config", "init", "/nowhere/x.toml"),
            "the folder /nowhere does not exist. Make it, or name another",
        ),
    ],
)
def test_an_error_names_the_word_the_value_and_the_remedy(
    danube: Danube, words: tuple[str, ...], says: str
) -> None:
    ran = danube(*words)
    assert ran.code == 2
    assert says in ran.err


def test_near_miss_of_a_verb_is_suggested_also_in_json(danube: Danube) -> None:
    ran = danube("topics", "lits", "--json")
    assert ran.code == 2
    assert ran.error["code"] == "INVALID_ARGUMENT"
    assert ran.error["details"]["suggestion"] == "list"
    assert ran.error["next"][0]["command"] == "danube topics --help"


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "list", "--nope"],
        ["produce"],
        ["topics", "describe"],
        ["topics", "list", "--limit", "many"],
        ["consume", "logs", "--format", "yaml"],
        ["topics", "list", "--timeout", "soon"],
        ["topics", "list", "--broker", "localhost"],
        ["topics", "list", "--output", "yaml"],
        ["mcp", "--transport", "pigeon"],
        ["rpc"],
        ["bench", "e2e", "--assert", "import os"],
        ["bench", "e2e", "--sub-type", "exclusiv"],
        ["bench", "e2e", "--ack-delay", "soon"],
        ["bench", "e2e", "--ack-delay", "1m"],
        ["bench", "latency", "--keys", "10"],
        ["bench", "e2e", "--each", "--sub-type", "shared"],
        ["bench", "topics", "--broker", "http://127.0.0.1:6650"],
        ["bench", "move", "--broker", "http://127.0.0.1:6650"],
        ["bench", "topics", "--topics", "10", "--messages", "10"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_2_with_an_error_object(danube: Danube, words: list[str]) -> None:
    ran = danube(*words, "--json")
    assert ran.code == 2
    assert ran.error["code"] == "INVALID_ARGUMENT"
    assert ran.out == ""


def test_common_flags_may_stand_before_the_command(danube: Danube) -> None:
    ran = danube("--json", "--admin", "http://127.0.0.1:1", "topics", "list", "--timeout", "1s")
    assert ran.code == 3
    assert ran.error["code"] == "UNAVAILABLE"
    assert ran.error["retryable"] is True


def test_unreachable_broker_is_3_for_every_kind_of_command(danube: Danube) -> None:
    nowhere = ["--broker", "http://127.0.0.1:1", "--admin", "http://127.0.0.1:1", "--timeout", "1s", "--json"]
    for words in (
        ["topics", "list"],
        ["produce", "logs", "-m", "x"],
        ["consume", "logs", "--exit"],
        ["rpc", "topics.list"],
    ):
        ran = danube(*words, *nowhere)
        assert (ran.code, ran.error["code"]) == (3, "UNAVAILABLE"), (words, ran)


def test_bad_names_are_refused_before_anything_is_dialled(danube: Danube) -> None:
    for words in (["produce", "bad name!", "-m", "x"], ["consume", "bad name!"]):
        ran = danube(*words, "--json", "--broker", "http://127.0.0.1:1")
        assert (ran.code, ran.error["code"]) == (2, "INVALID_NAME")
        assert ran.error["details"]["field"] == "topic"


def test_json_is_recognised_before_parsing() -> None:
    assert wants_json(["topics", "list", "--json"])
    assert wants_json(["topics", "list", "--output", "json"])
    assert wants_json(["topics", "list", "--output=json"])
    assert not wants_json(["produce", "t", "--", "--json"])
    assert not wants_json(["topics", "list", "--output", "table"])


def test_exit_code_comes_from_the_errors_class(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        def body() -> int:
            raise error

        return guarded(body, as_json=False)

    assert fail(TopicNotFound()) == 1
    assert fail(InvalidArgument()) == 2
    assert fail(DiskFull()) == 3
    assert fail(ExceptionGroup("two", [ValueError("x"), ConsumerBusy("taken")])) == 1
    assert fail(KeyboardInterrupt()) == 130
    assert "Traceback" not in capfd.readouterr().err


def test_defect_of_ours_is_internal_without_a_stack() -> None:
    error = cluster_error(ZeroDivisionError("division by zero"))
    assert isinstance(error, Internal)
    assert "ZeroDivisionError" in error.message


def test_errors_lose_control_characters() -> None:
    assert printable("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert printable("a\nb", keep="\n") == "a\nb"


def test_closed_pipe_ends_quietly_with_0() -> None:
    process = subprocess.Popen(
        command_line("config", "init", "-"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before it has written anything
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 0
    assert said == b""


def test_help_into_a_closed_pipe_ends_quietly_too() -> None:
    for words in (["--help"], ["produce", "--help"]):
        process = subprocess.Popen(command_line(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        process.stderr.close()
        assert (process.wait(30), said) == (0, b""), words


def test_run_never_raises() -> None:
    assert run(["topics", "list", "--limit"]) == 2


@pytest.mark.parametrize(
    ("words", "message", "field"),
    [
        (["topics", "list", "--limit", "0"], "--limit must be 1 or more, not '0'", "limit"),
        (["topics", "list", "--limit", "1001"], "--limit must be 1000 or less, not '1001'", "limit"),
        (["produce", "t", "--count", "many"], "--count must be an integer, not 'many'", "count"),
        (["produce", "t", "--rate", "fast"], "--rate must be a number, not 'fast'", "rate"),
    ],
)
def test_a_number_that_is_none_is_refused_in_our_own_words(
    danube: Danube, words: list[str], message: str, field: str
) -> None:
    ran = danube(*words, "--json")
    assert (ran.code, ran.error["message"], ran.error["details"]["field"]) == (2, message, field)


def test_a_choice_that_is_none_names_the_choices(danube: Danube) -> None:
    ran = danube("produce", "t", "--compression", "gzip", "--json")
    assert ran.code == 2
    assert ran.error["message"] == "--compression must be one of none, lz4, zstd, not 'gzip'"
