"""Add an operation to a copy of this tree by the steps of ARCHITECTURE.md, and report the files that changed.

    python tools/add_operation.py

The copy gets one module of an area and its test. Then the generators run, and the tests that compare the list of
operations with something else. Exit status 1 if one of them fails: its output names the place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = (
    *("core", "storage", "broker", "client", "admin_core", "mcp_server", "tui", "connect", "cli"),
    "spark_diagnostics",
)
MODULE: Final = "admin_core/pydanube_admin/operations/topic_owner.py"
TEST: Final = "tests/admin/test_topic_owner.py"
HAND_EDITED: Final = {
    MODULE: '''\
"""Read which broker owns a topic."""

from __future__ import annotations

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.models import Effect, Result, TopicRequest
from pydanube_admin.engine.operation import Example, operation
from pydanube_admin.operations.topics import find_topic


class TopicOwner(Result):
    topic: str
    owner: str | None  # broker id


@operation(
    "topics.owner",
    effect=Effect.READ,
    tool="get_topic_owner",
    summary="Show which broker owns a topic.",
    examples=(Example({"topic": "orders"}, "its broker"),),
)
async def topic_owner(context: Context, request: TopicRequest) -> TopicOwner:
    own = (await find_topic(context, request.topic)).own
    return TopicOwner(topic=own.topic, owner=own.owner)
''',
    TEST: """\
from __future__ import annotations

from pydanube_admin.registry import OPERATIONS


def test_the_owner_is_in_the_result() -> None:
    assert set(OPERATIONS["topics.owner"].result.model_fields) == {"topic", "owner"}
""",
}
GENERATORS: Final = (
    ("tools/gen_admin_client.py",),
    ("tools/gen_docs.py",),
)
#: tests that compare the list of operations with another one
TESTS: Final = (
    TEST,
    "tests/admin/test_registry.py",
    "tests/admin/test_typed_client.py",
    "tests/cli/test_lock_tables.py::test_the_tables_have_a_line_for_everything",
    "tests/house/test_interface_page.py",
)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="danube-operation-") as folder:
        copy = Path(folder)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(copy / name) for name in PACKAGES),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

        def run(*words: str) -> str:
            done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
            return done.stdout

        _copy(copy)
        run("git", "init", "-q")
        run("git", "add", "-A")
        for name, text in HAND_EDITED.items():
            (copy / name).write_text(text, encoding="utf-8")
        for words in GENERATORS:
            run(sys.executable, *words)
        run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
        changed = run("git", "diff", "--name-only").splitlines()
    print("edited by hand:", *sorted(HAND_EDITED), sep="\n  ")
    print("generated:", *sorted(set(changed) - set(HAND_EDITED)), sep="\n  ")
    return 0


def _copy(to: Path) -> None:
    """Copy the tracked and the new files of this tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to / name)


if __name__ == "__main__":
    sys.exit(main())
