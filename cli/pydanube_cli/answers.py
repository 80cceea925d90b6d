"""Show answers of operations: plans with the question whether to apply them, findings, rows of tables, paths.

Of `danube objects list --format paths|glob|sql`, `paths` is exact at any moment: only listed objects are the
topic. `glob` is one pattern for each folder, for tools that take no list. While a compaction's sources still
exist it matches them too (docs/cold-tier.md). `sql` is all those patterns as one list of texts,
for `read_parquet(…)`: a topic with partitions has several folders.

Calls that take minutes have no deadline unless the user gave one. On a terminal a line on stderr shows the
progress of such a call, which a thread reads from `brokers.status`. The line is removed when the answer
comes. The progress of an interrupted replay is read from the copies in the target: each names its original
message.
"""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO, TypeVar

from pydanube_admin.engine.declaration import Declared
from pydanube_admin.wording.radius import lost_text, radius_text
from pydanube_core.errors import ClusterError, Conflict
from pydanube_core.names import REPLAYED_FROM

from pydanube_cli.command import Common
from pydanube_cli.failures import printable
from pydanube_cli.render import cell, print_json

MAX_DIFF_LINES: Final = 30


def consents(operation: Declared, arguments: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Show the plan on stderr, and read the user's consent."""
    describe(operation, arguments, plan)
    undo = "it can be undone for a while" if plan.get("reversible") else "this cannot be undone"
    print(f"{undo}. Type yes to do it: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def describe(operation: Declared, arguments: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Print the plan on stderr."""
    radius, command = plan["blast_radius"], operation.command_line(arguments)
    would = (
        f"would destroy: {lost_text(radius, plan.get('later'))}"
        if plan.get("effect") == "destroy"
        else f"would touch: {radius_text(radius)}"
    )
    _print_plan(f"{command} {would}", plan, sys.stderr)


def _print_plan(would: str, plan: Mapping[str, Any], stream: TextIO) -> None:
    print(would, file=stream)
    if plan.get("later"):
        print(f"{plan['later']}.", file=stream)
    for line in _diff_lines(plan):
        print(line, file=stream)


def show_plan(
    operation: Declared, arguments: Mapping[str, Any], plan: Mapping[str, Any], common: Common
) -> None:
    """Print the plan on stdout, with the command that applies it."""
    if common.as_json:
        print_json(plan)
        return
    _print_plan(f"{plan['operation']} would touch: {radius_text(plan['blast_radius'])}", plan, sys.stdout)
    print(
        f"it {'can' if plan.get('reversible') else 'cannot'} be undone. Until {plan['expires_at']}, to do exactly this:"
    )
    print(f"  {operation.command_line(arguments)}{common.where} --plan-token {plan['plan_token']}")


def _diff_lines(plan: Mapping[str, Any]) -> list[str]:
    """`  topics/default/orders/policies/max_publish_rate: – → 1000`, one a difference."""
    lines = [
        f"  {cell('path', change.get('path'))}: {cell('', change.get('before'))} → {cell('', change.get('after'))}"
        for change in plan["diff"][:MAX_DIFF_LINES]
    ]
    more = len(plan["diff"]) - len(lines)
    return [*lines, f"  and {more} more"] if more > 0 else lines


WIDTH: Final = 80


def print_diagnosis(result: Mapping[str, Any]) -> None:
    """Print findings. Only long lines are cut: commands stay whole, so that they can be pasted."""
    subject = ", ".join(f"{name} {cell(name, value)}" for name, value in result["subject"].items())
    print(_wrapped(f"{result['verdict']}: {subject}", ""))
    for finding in result["findings"]:
        print()
        print(f"{finding['severity']}  {printable(finding['rule'])}  ({finding['confidence']:.0%} sure)")
        print(_wrapped(finding["summary"], "  "))
        numbers = [
            f"{name}={cell(name, value)}" for name, value in finding["evidence"].items() if value is not None
        ]
        print(_wrapped("evidence: " + "  ".join(numbers), "  "))
        for name, value in finding["untrusted"].items():
            print(_wrapped(f"written by others: {name}={cell(name, value)}", "  "))
        for unseen in finding["unobservable"]:
            print(_wrapped(f"not to be seen from here: {unseen}", "  "))
        for call in finding["next"]:
            print(_wrapped(f"next: {call['why']}", "  "))
            print(f"    {printable(call['command'])}")
    if result["omitted"]:
        print(f"\nand {result['omitted']} findings more: --json has the counts by rule")
    if not result["findings"]:
        print("nothing found")
    for unseen in result["unobservable"]:
        print(_wrapped(f"not looked at: {unseen}", ""))


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False
    )


MOST_CHARS: Final = 60  # of a payload; `--json` has it whole


def row_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row: `key`, `payload` and `reason` of a message, or the subject of a finding, beside the item's own fields."""
    row = dict(item)
    if isinstance(fenced := item.get("untrusted"), Mapping):
        reason = fenced.get("reason") or (fenced.get("attributes") or {}).get("x-failure-reason")
        for name, value in {"key": fenced.get("key"), "reason": reason, "payload": _payload(fenced)}.items():
            if value is not None:  # a freeze has no key, and a line of a log no reason
                row.setdefault(name, value)
    if isinstance(subject := item.get("subject"), Mapping):
        row["subject"] = " ".join(str(value) for value in subject.values() if value is not None)
    return row


def _payload(fenced: Mapping[str, Any]) -> str | None:
    text, encoded = fenced.get("text"), fenced.get("base64")
    if "text" in fenced and text is None:
        return "null"
    if isinstance(text, str):
        return text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + "…"
    return None if not isinstance(encoded, str) else f"base64 {encoded[:MOST_CHARS]}"


_PAGE: Final = 1000

Ask = Callable[[dict[str, Any]], dict[str, Any]]


def all_paths(ask: Ask, arguments: Mapping[str, Any]) -> list[str]:
    """Return every path of the list, in order. All pages, unless the caller gave `limit` or `page`."""
    given = dict(arguments)
    follow = "limit" not in given and "page" not in given
    if follow:
        given["limit"] = _PAGE
    found: list[str] = []
    while True:
        page = ask(given)
        found += [item["path"] for item in page["items"]]
        if not follow or page["next_page"] is None:
            return found
        given["page"] = page["next_page"]


def lines_of(paths: list[str], form: str) -> list[str]:
    """Return the lines of a format: paths as they are, one glob for each folder, or the globs as one SQL list."""
    if form == "paths":
        return paths
    folders = dict.fromkeys(path.rpartition("/")[0] for path in paths)
    globs = [f"{folder}/*.parquet" for folder in folders]
    if form == "sql" and globs:
        quoted = ("'" + glob.replace("'", "''") + "'" for glob in globs)
        return [f"[{', '.join(quoted)}]"]
    return globs


T = TypeVar("T")

NO_DEADLINE_S: Final = 7 * 86_400.0
_INTERVAL_S: Final = 0.5


def with_progress(work: Callable[[], T], progress: Callable[[], str]) -> T:
    """Run `work`, and show its line of progress on a terminal as long as it takes. An empty line is not shown."""
    if not sys.stderr.isatty():
        return work()
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(ended, progress), daemon=True)
    watcher.start()
    try:
        return work()
    finally:
        ended.set()
        watcher.join()


def waiting(operation: str) -> Callable[[], str]:
    """Return the line of a call that usually takes milliseconds. It begins after a second."""
    begun_s = time.monotonic()

    def line() -> str:
        passed_s = time.monotonic() - begun_s
        return f"waiting for the answer to {operation}, {passed_s:.0f} s" if passed_s >= 1 else ""

    return line


def _watch(ended: threading.Event, progress: Callable[[], str]) -> None:
    shown = 0
    while not ended.wait(_INTERVAL_S):
        try:
            line = progress()
        except ClusterError:
            continue  # the call itself reports the error
        if line:
            sys.stderr.write("\r" + line.ljust(shown))
            sys.stderr.flush()
            shown = len(line)
    if shown:
        sys.stderr.write("\r" + " " * shown + "\r")
        sys.stderr.flush()


def progress_line(status: Mapping[str, Any], operation: str) -> str:
    """Return `objects verify /default/logs: 12 of 340 objects, 3 s`, empty if the broker reports nothing."""
    for work in status.get("tier", {}).get("work", ()):
        if work["operation"] == operation:
            of = "" if work["total"] is None else f" of {work['total']:,}"
            words = operation.replace(".", " ").replace("_", "-")
            return f"{words} {work['topic']}: {work['done']:,}{of} {work['unit']}, {work['running_s']:.0f} s"
    return ""


Asker = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def outcome_of(task_id: str, ask: Asker) -> dict[str, Any]:
    """Wait until a task has ended, with its progress on a terminal, and return its result.

    Raises the task's error. `Conflict`: it was cancelled, or its broker ended.
    """
    is_seen, shown = sys.stderr.isatty(), 0
    while (task := ask("tasks.get", {"task_id": task_id}))["state"] == "running":
        line = ", ".join(_work_line(work) for work in task["work"][:3]) if is_seen else ""
        if line:
            sys.stderr.write("\r" + line.ljust(shown))
            sys.stderr.flush()
            shown = len(line)
        time.sleep(_INTERVAL_S)
    if shown:
        sys.stderr.write("\r" + " " * shown + "\r")
        sys.stderr.flush()
    if task["error"] is not None:
        raise ClusterError.from_dict(task["error"])
    if task["result"] is None:
        raise Conflict(
            f"the task {task_id} is {task['state']}: its steps under way continue, and danube brokers list and "
            "danube topics describe show how far that is",
            task_id=task_id,
            retryable=False,
        )
    return dict(task["result"])


def _work_line(work: Mapping[str, Any]) -> str:
    of = "" if work.get("total") is None else f" of {work['total']:,}"
    topic = f"{work['topic']}: " if work.get("topic") else ""
    return f"{topic}{work['done']:,}{of} {work['unit']}"


_SETTLED_S: Final = 0.3  # for records on their way into the journal to arrive
_LOOKS: Final = 10


class ReplayAccount:
    """The progress of a replay: created before it begins, read after an interruption.

    Args:
        ask: carries out an operation, by name and arguments.
        target: the topic that is written.
    """

    def __init__(self, ask: Asker, target: str) -> None:
        self._ask = ask
        self._target = target
        self._before = self._heads()

    def copied_until(self) -> dict[str, int]:
        """Return concrete topic → where to continue a replay, empty if no copy was made or found."""
        try:
            heads = self._heads()
            for _ in range(_LOOKS):
                time.sleep(_SETTLED_S)
                again = self._heads()
                if again == heads:
                    break
                heads = again
            found: dict[str, int] = {}
            for part, head in heads.items():
                if head == self._before.get(part, 0):
                    continue
                (last,) = self._ask(
                    "messages.peek", {"topic": part, "from": f"offset:{head - 1}", "limit": 1}
                )["items"]
                source, _, offset = str(last["untrusted"]["attributes"].get(REPLAYED_FROM, "")).rpartition(
                    "@"
                )
                if source:
                    found[source] = max(found.get(source, 0), int(offset) + 1)
            return found
        except (ClusterError, ValueError, KeyError):
            return {}

    def _heads(self) -> dict[str, int]:
        try:
            asked = self._ask("messages.peek", {"topic": self._target, "from": "latest", "limit": 1})
        except ClusterError:
            return {}  # the replay creates the topic
        return {part: int(offset) for part, offset in asked["next_offsets"].items()}
