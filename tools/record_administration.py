"""Record the walk that ends docs/administration.md: its commands are run against a broker of their own, and what they answer is put in.

    python tools/record_administration.py

A line that begins with `$` in the page's plan below is run; `{name}` in it is what an earlier answer held. The broker knows
a subscription's status after some samples, and calls an absent consumer a warning after `stuck_after`: commands with `until`
are run again until their answer has come so far, because a reader's broker has watched for longer than a recording takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.broker_process import BrokerProcess, client_environment, danube_command  # noqa: E402

PAGE: Final = ROOT / "docs" / "administration.md"
MOST_LINES: Final = 40
COLUMNS: Final = 100
MOST_WAIT_S: Final = 60.0  # for an answer with its pattern

# Text stays; a line with `$` becomes a block with its answer. `NAME=PATTERN` after ` ## ` keeps the first group, and
# `until PATTERN` runs the command again until its answer has the pattern.
PLAN: Final = """\
## A walk

<!-- From here on recorded by tools/record_administration.py from a running broker; do not edit. -->

One story: billing is behind. The same operations are on every face: the command line shown here,
[JSON-RPC](interface.md#9-json-rpc), MCP, Python (`from pydanube.admin import connect_admin`), and, for the original's own
tool, `danube_admin` over gRPC.

### Billing is behind

$ danube subscriptions lag --topic logs ## until SLOW

No consumer is attached to this subscription. The diagnosis gives its evidence, and the causes that it ruled out:

$ danube runbook diagnose_consumer_lag --topic logs --subscription billing ## until warning: no_consumers

### A remedy, as a plan

Billing does not need the backlog. Skipping it is destructive, so it needs a plan. A script gets the
refusal with the plan in it. `--dry-run` returns the plan alone and changes nothing:

$ danube subscriptions seek logs billing --to latest --dry-run ## token=--plan-token (\\S+)

### Apply it

The token applies the plan once, for the principal that made it, as long as the values that the plan depends on have not changed.

$ danube subscriptions seek logs billing --to latest --plan-token {token} --json ## call=call_id": "(\\w+)

Verified:

$ danube subscriptions lag --topic logs

The same token again is refused:

$ danube subscriptions seek logs billing --to latest --plan-token {token}

### Take it back

It was a mistake: billing did need them. The `call_id` of the change undoes it, cursor and all.

$ danube changes undo {call}

$ danube subscriptions lag --topic logs ## until SLOW

### Who did what

$ danube audit query --topic logs --limit 6

$ danube audit verify

### Other tasks

`danube runbook` lists the other prepared tasks: health, schemas, dead letters, capacity, a new topic. A runbook only names
operations. A step that changes something shows its plan and waits for a confirmation.

$ danube runbook setup_new_topic --namespace default --use-case queue --topic jobs --yes
"""


def main() -> int:
    settings = {"DANUBE_DIAGNOSIS__SAMPLE_INTERVAL": "200ms", "DANUBE_DIAGNOSIS__WINDOW": "4s"}
    with (
        tempfile.TemporaryDirectory(prefix="danube-recording-") as folder,
        BrokerProcess(Path(folder), environment=settings) as broker,
    ):
        env = client_environment(
            {
                "DANUBE_BROKER_URL": broker.url,
                "DANUBE_ADMIN_ENDPOINT": broker.admin,
                "DANUBE_PRINCIPAL": "ann@example",
            }
        )
        answer("danube produce logs -m invoice --count 500", env)
        answer("danube consume logs -s billing --count 10 --for 10s", env)
        answer("danube produce logs -m invoice --count 1500", env)
        page, _, _ = PAGE.read_text(encoding="utf-8").partition(PLAN.splitlines()[0] + "\n")
        PAGE.write_text(page + recorded(env), encoding="utf-8")
    return 0


def recorded(env: dict[str, str]) -> str:
    kept: dict[str, str] = {}
    lines = []
    for line in PLAN.splitlines():
        if not line.startswith("$ "):
            lines.append(line)
            continue
        command, _, keep = line[2:].partition(" ## ")
        for name, value in kept.items():
            command = command.replace("{" + name + "}", value)
        until = keep.removeprefix("until ") if keep.startswith("until ") else ""
        text, code = answer(command, env)
        deadline = time.monotonic() + MOST_WAIT_S
        while re.search(until, text) is None:
            assert time.monotonic() < deadline, f"{command} never answered {until}:\n{text}"
            time.sleep(0.5)
            text, code = answer(command, env)
        if keep and not until:
            name, _, pattern = keep.partition("=")
            found = re.search(pattern, text)
            assert found is not None, f"{command} answered no {name}:\n{text}"
            kept[name] = found[1]
        shown = text.rstrip().splitlines()
        more = [f"… and {len(shown) - MOST_LINES} lines more"] if len(shown) > MOST_LINES else []
        body = [f"$ {command}", *shown[:MOST_LINES], *more, *([f"(exit code {code})"] if code else [])]
        lines += ["```console", *(part.rstrip() for part in body), "```"]
    return "\n".join(lines) + "\n"


def answer(command: str, env: dict[str, str]) -> tuple[str, int]:
    """Run a command in a terminal of `COLUMNS` columns; return what a person sees there, and the exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [*danube_command(), *shlex.split(command)[1:]],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = bytearray()
    with contextlib.suppress(OSError):  # a terminal that nobody has open ends with an error
        while chunk := os.read(ours, 65_536):
            said += chunk
    os.close(ours)
    code = process.wait(60)
    # A line that is written again, as progress is, shows what it held last
    lines = said.decode().replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines), code


if __name__ == "__main__":
    sys.exit(main())
