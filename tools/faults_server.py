"""A pytest plugin for tools/faults.py: collects tests once, then runs chosen ones in forks, each with or without a fault.

Importing pytest, its plugins and the product takes longer than most tests, so one process does it once per room. Each
request is a line of JSON on a pipe, and the fork that serves it changes nothing in this process:

    {"tests": [node id], "report": path, "environment": {name: value}, "limit_s": seconds,
     "fault": null | {"path", "line"}, "cover": null | {"settings": path, "tests": path}}

The fork writes a line per test to `report`: {"test", "outcome": passed|failed|skipped}. It ends at the first failed test,
unless it covers. With a fault, the file at `path` has it already: processes that tests start read it from there. In the
fork the code of the function around `line` is replaced, which other modules hold as well. The answer is a line:

    {"status": "ended" | "time" | "not replaced"}

"not replaced": Python cannot put this code into the existing function. The test process has to import it then.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, BinaryIO, Final

import coverage
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine

from tools.faults_cover import Contexts

PIPES: Final = "PYDANUBE_MUTANTS_PIPES"  # in the environment: descriptors to read requests from, to answer to
_LOOK_S: Final = 0.02  # seconds between looks whether a fork has ended
#: of its time: a fork that covers begins no further test then, and keeps what it has
_COVERED_SHARE: Final = 0.8
SHRINKING_S: Final = 1
_NOT_REPLACED: Final = 3  # exit status of a fork


class Outcomes:
    """Writes the outcome of each test, and notes whether one has failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.when == "teardown":
            self.failed = self.failed or report.failed
            line = {"test": report.nodeid, "outcome": report.outcome}
            if report.failed:
                line["why"] = f"({report.when}) {report.longreprtext[-2000:]}"
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


class Server:
    """Answers requests in place of running the collected tests."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._answer(tests=list(items))
        for line in self._requests:
            request = json.loads(line)
            sys.stdout.flush()
            fork = os.fork()
            if not fork:
                status = 1
                try:
                    status = serve(session, items, request)
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            self._answer(status=until_ended(fork, request["limit_s"]))
        return True

    def _answer(self, **answer: Any) -> None:
        self._answers.write(json.dumps(answer).encode() + b"\n")
        self._answers.flush()


def until_ended(fork: int, limit_s: float) -> str:
    """Wait for a fork and kill it, with its process group, after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(fork, os.WNOHANG)
        if ended:
            # another status: it hung until faulthandler ended it, or a fault took it along
            return {0: "ended", _NOT_REPLACED: "not replaced"}.get(os.waitstatus_to_exitcode(status), "time")
        time.sleep(_LOOK_S)
    os.killpg(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    return "time"


def serve(session: pytest.Session, items: Mapping[str, pytest.Item], request: Mapping[str, Any]) -> int:
    """Run the tests of a request, in a fork. Return its exit status."""
    os.setsid()
    started = time.monotonic()
    os.environ.update(request["environment"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    tempfile.tempdir = None  # the environment has another one
    if request["fault"] is not None and not put_in(request["fault"]["path"], request["fault"]["line"]):
        return _NOT_REPLACED
    outcomes = Outcomes(Path(request["report"]))
    session.config.pluginmanager.register(outcomes)
    measuring = None
    if request["cover"] is not None:
        session.config.pluginmanager.register(Contexts(Path(request["cover"]["tests"])))
        measuring = coverage.Coverage(config_file=request["cover"]["settings"])
        measuring.start()
    chosen = [items[test] for test in request["tests"] if test in items]
    for item, following in zip(chosen, [*chosen[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        late = time.monotonic() > started + request["limit_s"] * _COVERED_SHARE
        if late if request["cover"] is not None else outcomes.failed:
            break
    if measuring is not None:
        measuring.stop()
        measuring.save()
    return 0


def put_in(path: str, line: int) -> bool:
    """Replace the code of the function around a line by what the file has now. Return False if Python cannot.

    A module that is not imported yet has no functions, and will be imported from the file.
    """
    source = Path(path).read_bytes()
    where = function_around(ast.parse(source), line)
    new = next(code for code in _codes(compile(source, path, "exec")) if _place(code) == where)
    functions = [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType and each.__code__.co_filename == path and _place(each.__code__) == where
    ]
    try:
        for function in functions:
            function.__code__ = new
    except ValueError:  # it has other free variables
        return False
    return True


def function_around(tree: ast.Module, line: int) -> tuple[str, int]:
    """Return name and first line of the outermost function around a line. A line inside it may have moved, not those."""
    body: list[ast.stmt] = tree.body
    while True:
        for node in body:
            decorators = getattr(node, "decorator_list", [])
            first = min((each.lineno for each in decorators), default=node.lineno)
            if first <= line <= (node.end_lineno or first):
                break
        else:
            raise ValueError(f"no function around line {line}")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return node.name, first
        body = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Let property tests report the first failure that they find: making it smaller takes minutes, and changes no verdict."""
    phases = (Phase.explicit, Phase.generate)
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "faults",
        deadline=None,
        derandomize=True,
        suppress_health_check=slow,
        phases=phases,
        report_multiple_bugs=False,
    )
    settings.load_profile("faults")  # tests/conftest.py keeps a profile that is not the default
    engine.MAX_SHRINKING_SECONDS = SHRINKING_S  # for tests with settings of their own


def pytest_configure(config: pytest.Config) -> None:
    if pipes := os.environ.pop(PIPES, None):
        requests, answers = map(int, pipes.split(","))
        config.pluginmanager.register(Server(os.fdopen(requests, "rb"), os.fdopen(answers, "wb")))
