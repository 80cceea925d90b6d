"""How long imports of the SDK and commands take, from `exec` to the end of the process.

    python benchmarks/starts.py [--runs 21] [--modules 15] [--beside "PYTHON -c 'from aiokafka import AIOKafkaProducer'"]

Prints the median and the least of wall-clock and processor time of each start, in turns so that a busy moment is shared by all.
A broker of its own answers the commands. `--modules` names the modules of `from pydanube import connect` that take the longest
by themselves. Bytecode goes into a folder of its own: without any (PYTHONDONTWRITEBYTECODE), the compiler would be measured.
"""

from __future__ import annotations

import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import parser_of
from tests.support.broker_process import BrokerProcess, client_environment, danube_command

CONNECT: Final = "from pydanube import connect"
IMPORTS: Final = (
    "pass",
    "import asyncio, ssl",
    "import pydanube",
    CONNECT,
    "import pydanube.sync",
    "import pydanube.admin",
)
COMMANDS: Final = (
    "--version",
    "topics list",
    "subscriptions lag",
    "doctor",
    "produce starts -m x",
    "consume starts --exit",
)
LINE: Final = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")


def start_ms(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the wall-clock and processor milliseconds of one process."""
    begun = time.perf_counter()
    child = subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.stderr is not None
    with child.stderr:
        if child.returncode:
            raise SystemExit(f"{words} ended with {child.returncode}: {child.stderr.read().decode()[-2000:]}")
    return wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def longest_modules(count: int, environment: dict[str, str]) -> list[tuple[float, str]]:
    """Return the milliseconds and names of the modules that take longest by themselves, medians of five starts."""
    taken: dict[str, list[int]] = {}
    for _ in range(5):
        words = [sys.executable, "-X", "importtime", "-c", CONNECT]
        told = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stderr
        for found in LINE.finditer(told):
            taken.setdefault(found[2], []).append(int(found[1]))
    return sorted(((statistics.median(each) / 1e3, name) for name, each in taken.items()), reverse=True)[
        :count
    ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--modules", type=int, default=0)
    parser.add_argument(
        "--beside", action="append", default=[], help="one more command to measure, repeatable"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder), memory=True) as broker:
        environment = client_environment(
            {
                "DANUBE_ADMIN_ENDPOINT": broker.admin,
                "DANUBE_BROKER_URL": broker.url,
                "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
            }
        )
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        starts = {f'python -c "{program}"': [sys.executable, "-c", program] for program in IMPORTS}
        starts |= {f"danube {words}": [*danube_command(), *words.split()] for words in COMMANDS}
        starts |= {words: shlex.split(words) for words in options.beside}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
        for run in range(options.runs + 1):  # the first run writes the bytecode and does not count
            for name, words in starts.items():
                one = start_ms(words, environment)
                if run:
                    taken[name].append(one)
        print(
            f"{'wall-clock ms':>18} {'processor ms':>16}\n{'median':>11} {'least':>6} {'median':>9} {'least':>6}"
        )
        for name, each in taken.items():
            (wall, wall_min), (used, used_min) = (
                (statistics.median(values), min(values)) for values in zip(*each, strict=True)
            )
            print(f"{wall:11.0f} {wall_min:6.0f} {used:9.0f} {used_min:6.0f}  {name}")
        for ms, module in longest_modules(options.modules, environment) if options.modules else []:
            print(f"{ms:8.1f} ms  {module}")


if __name__ == "__main__":
    main()
