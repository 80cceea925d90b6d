"""Completion: what the tables say, what the broker is asked for, and bash itself with its tab key."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from pydanube_cli.completion import names
from pydanube_cli.completion.command import SCRIPTS, install
from pydanube_cli.completion.press import complete, split_line

from tests.admin.real_broker import Administered
from tests.cli.running import Danube
from tests.support.broker_process import BrokerProcess
from tests.support.filled_cluster import add_subscription, add_topic

BREAKS = " \t\n\"'@><=;|&(:"
NOBODY = {"DANUBE_ADMIN_ENDPOINT": "http://127.0.0.1:1"}


def found(*words: str, env: dict[str, str] | None = None) -> list[str]:
    """Candidates without what they are for."""
    return [line.partition("\t")[0] for line in complete("zsh", words, env or NOBODY)]


def in_bash(line: str) -> list[str]:
    return complete("bash", (line, BREAKS), NOBODY)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("top",), ["words", "topics"]),
        (("topics", "tru"), ["words", "truncate"]),
        (("admin", "topics", "tru"), ["words", "truncate"]),
        (("--json", "topics", "tru"), ["words", "truncate"]),
        (("--admin", "http://h:1", "topics", "tru"), ["words", "truncate"]),
        (("topics", "create", "--du"), ["words", "--durability"]),
        (("topics", "create", "new", "--dispatch-strategy", ""), ["words", "reliable", "non_reliable"]),
        (("topics", "create", "--dispatch-strategy=n"), ["words", "--dispatch-strategy=non_reliable"]),
        (("topics", "create", "ord"), ["words"]),  # what does not exist yet
        (
            ("subscriptions", "seek", "t", "s", "--to", ""),
            ["words", "earliest", "latest", "offset:", "time:"],
        ),
        (("topics", "delete", "t", "--y"), ["words", "--yes"]),
        (("consume", "t", "--sub-type", "s"), ["words", "shared"]),
        (("produce", "t", "-f", ""), ["files"]),
        (("up", "--data-dir", "x"), ["folders"]),
        (("config", ""), ["words", "show", "init", "check"]),
        (("runbook", "plan"), ["words", "plan_capacity"]),
        (("rpc", "brokers.le"), ["words", "brokers.leader"]),
        (("completion", ""), ["words", "bash", "zsh", "fish"]),
        (("nonsense", ""), ["words"]),
        (("topics", "nonsense", "x", "-"), ["words"]),
        (("topics", "list", "--", "--js"), ["words"]),
        ((), ["words", *(line for line in found("")[1:])]),
    ],
)
def test_words(words: tuple[str, ...], expected: list[str]) -> None:
    assert found(*words) == expected


def test_every_command_and_operation_is_there() -> None:
    from pydanube_admin.registry import OPERATIONS
    from pydanube_cli.main import COMMANDS, GROUPS

    top = found("")[1:]
    assert {*COMMANDS, *GROUPS} <= set(top)
    for operation in OPERATIONS.values():
        group, verb = operation.words
        assert group in top
        assert verb in found(group, "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("danube to", ["danube", "to"]),
        ("danube topics ", ["danube", "topics", ""]),
        ("danube  -m 'two words' x", ["danube", "-m", "two words", "x"]),
        ('danube -m "a\\"b', ["danube", "-m", 'a"b']),
        ("danube a\\ b", ["danube", "a b"]),
        ("danube ''", ["danube", ""]),
        ("", [""]),
    ],
)
def test_a_line_is_split_as_a_shell_does(line: str, words: list[str]) -> None:
    assert split_line(line) == words


def test_bash_gets_the_part_after_its_break_character() -> None:
    assert in_bash("danube topics create x --durability=f") == ["words", "fsynced"]
    assert in_bash("danube subscriptions seek t s --to off") == ["words", "offset:"]
    assert in_bash("danube subscriptions seek t s --to offset:") == ["words", ""]


def test_names_of_every_kind_come_from_the_broker(
    portal: BlockingPortal, cluster: Administered, admin_url: str
) -> None:
    for topic in ("/default/orders-eu", "/sales/orders"):
        portal.call(add_topic, cluster, topic)
    portal.call(add_subscription, cluster, "/default/orders", "audit")
    env = {"DANUBE_ADMIN_ENDPOINT": admin_url}
    assert found("topics", "describe", "ord", env=env) == ["words", "orders", "orders-eu"]
    assert found("topics", "describe", "/sal", env=env) == ["words", "/sales/orders"]
    assert found("topics", "describe", "sales/", env=env) == ["words", "sales/orders"]
    assert found("topics", "describe", "", env=env) == ["words", "/sales/orders", "orders", "orders-eu"]
    assert found("consume", "orders", "-s", "", env=env) == ["words", "audit", "billing"]
    assert found("subscriptions", "purge", "orders", "b", env=env) == ["words", "billing"]
    assert found("subscriptions", "lag", "--topic=ord", env=env) == [
        "words",
        "--topic=orders",
        "--topic=orders-eu",
    ]
    assert found("namespaces", "get-policies", "", env=env)[0] == "words"
    assert "default" in found("namespaces", "get-policies", "d", env=env)
    assert found("topics", "describe", "o*", env=env) == ["words"]
    # The flag wins over the environment
    assert found("--admin", admin_url, "topics", "describe", "orders-", env=NOBODY) == ["words", "orders-eu"]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Somebody who accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_broker_that_does_not_answer_ends_in_no_names(silent_port: int) -> None:
    begun = time.monotonic()
    env = {"DANUBE_ADMIN_ENDPOINT": f"http://127.0.0.1:{silent_port}"}
    assert found("topics", "describe", "o", env=env) == ["words"]
    taken = time.monotonic() - begun
    assert names.DEADLINE_S * 0.9 <= taken < names.DEADLINE_S + 1.0


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense", "http://[::1]:1", "http://h:99999"])
def test_no_broker_is_no_error(address: str) -> None:
    assert found("topics", "describe", "o", env={"DANUBE_ADMIN_ENDPOINT": address}) == ["words"]


def test_the_tab_key_imports_neither_the_operations_nor_grpc() -> None:
    """They take longer to import than a key may."""
    program = (
        "import sys, json; sys.argv = ['danube', '__complete', 'zsh', 'topics', 'describe', 'o']\n"
        "from pydanube_cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **NOBODY},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    modules = json.loads(done.stdout.splitlines()[-1])
    loaded = {name.split(".")[0] for name in modules}
    assert {name for name in modules if name.startswith("pydanube.")} <= {
        "pydanube.principal",
        "pydanube.addresses",
    }
    assert not loaded & {
        "grpc",
        "pydantic",
        "pydanube_admin",
        "pydanube_core",
        "asyncio",
    }


class Terminal:
    """An interactive bash whose keys we press."""

    def __init__(self, script: Path, env: dict[str, str]) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], env)
        self.pid = pid
        self.type(f"PS1='> '; bind 'set bell-style none'; source {script}; echo rea''dy\n")
        self.wait_for("ready\r\n> ")

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str, seconds: float = 60.0) -> str:
        seen, until = "", time.monotonic() + seconds
        while text not in seen:
            left = until - time.monotonic()
            assert left > 0, f"{text!r} did not come: {seen!r}"
            if select.select([self._fd], [], [], left)[0]:
                seen += re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]|\x07", "", os.read(self._fd, 4096).decode())
        return seen

    def close(self) -> None:
        os.close(self._fd)
        os.waitpid(self.pid, 0)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_tab_in_bash_completes_words_names_and_files(
    broker: BrokerProcess, live: Danube, tmp_path: Path
) -> None:
    assert live("topics", "create", "tab-orders").code == 0
    assert live("subscriptions", "create", "tab-orders", "tab-billing").code == 0
    script = tmp_path / "danube.bash"
    script.write_text(SCRIPTS["bash"])
    (tmp_path / "tab-file.toml").write_text("")
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "COLUMNS": "200",
        "DANUBE_ADMIN_ENDPOINT": broker.admin,
    }
    terminal = Terminal(script, env)
    try:
        for typed, completed in (
            ("danube subscr\t", "danube subscriptions "),
            ("purge tab-o\t", "purge tab-orders "),
            ("tab-b\t", "tab-billing "),
            ("--dr\t", "--dry-run "),
        ):
            terminal.type(typed)
            terminal.wait_for(completed)
        terminal.type("\x15danube subscriptions lag --topic=tab-\t")
        terminal.wait_for("--topic=tab-orders ")
        terminal.type(f"\x15danube config check --config {tmp_path}/tab-f\t")
        terminal.wait_for("/tab-file.toml ")
        terminal.type("\x15danube subscriptions seek a b --to off\tX")
        terminal.wait_for("--to offset:X")
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_valid(danube: Danube, shell: str, tmp_path: Path) -> None:
    ran = danube("completion", shell)
    assert ran.code == 0
    assert ran.out == SCRIPTS[shell]
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} on this machine to parse its script")
    script = tmp_path / "script"
    script.write_text(ran.out)
    subprocess.run([program, "-n", str(script)], check=True, timeout=60)


def test_installing_is_done_once_and_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("alias l=ls")
    script, start = install("bash", home=tmp_path, env={})
    assert install("bash", home=tmp_path, env={}) == [script]
    assert start.read_text() == f'alias l=ls\nsource "{script}"  # completion of danube\n'
    assert script.read_text() == SCRIPTS["bash"]
    (fish,) = install("fish", home=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path / "c")})
    assert fish == tmp_path / "c" / "fish" / "completions" / "danube.fish"
    _, zshrc = install("zsh", home=tmp_path, env={})
    assert zshrc == tmp_path / ".zshrc"


def test_install_from_the_command_names_the_shell_it_does_not_know(
    danube: Danube, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = danube("--install-completion")
    assert ran.code == 2
    assert "tcsh" in ran.err
    assert danube("--install-completion", "bash").code == 0
    assert (tmp_path / ".bashrc").exists()
