"""The generator: committed code is current, drift is seen, and surprises in protoc's output stop the run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "gen_protos.py"
GENERATED = ROOT / "core" / "pydanube_core" / "generated"

PROTO = 'syntax = "proto3";\npackage a;\nmessage A { string text = 1; }\n'


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def gen_protos() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_protos", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_code_is_what_the_sources_give() -> None:
    done = run("--check")
    assert done.returncode == 0, f"run tools/gen_protos.py\n{done.stdout}{done.stderr}"


def test_check_shows_edited_missing_and_left_over_files_and_touches_none(tmp_path: Path) -> None:
    for path in GENERATED.glob("*_pb2.py*"):
        shutil.copy(path, tmp_path)
    edited, missing, left_over = (tmp_path / f"danube_{name}_pb2.py" for name in ("ops", "schema", "old"))
    edited.write_text(edited.read_text().replace("danube.ops", "danube.oops"))
    missing.unlink()
    left_over.write_text("stale = True\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    done = run("--check", "--output", tmp_path)

    assert done.returncode == 1
    assert "drifted" in done.stderr
    changed = {line for line in done.stdout.splitlines() if line.startswith(("--- ", "+++ "))}
    assert changed == {
        "--- committed/danube_ops_pb2.py",
        "+++ regenerated/danube_ops_pb2.py",
        "--- /dev/null",
        "+++ regenerated/danube_schema_pb2.py",
        "--- committed/danube_old_pb2.py",
        "+++ /dev/null",
    }
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert run("--output", tmp_path).returncode == 0
    assert run("--check", "--output", tmp_path).returncode == 0
    assert not left_over.exists()


def test_new_source_is_picked_up_and_may_import_a_sibling(tmp_path: Path, gen_protos: ModuleType) -> None:
    (tmp_path / "a.proto").write_text(PROTO)
    (tmp_path / "b.proto").write_text(
        'syntax = "proto3";\npackage b;\nimport "a.proto";\nmessage B { a.A inner = 1; }\n'
    )
    files = gen_protos.generate(tmp_path)
    assert files.keys() == {"a_pb2.py", "a_pb2.pyi", "b_pb2.py", "b_pb2.pyi"}
    assert "from pydanube_core.generated import a_pb2 as a__pb2\n" in files["b_pb2.py"]
    assert "from pydanube_core.generated import a_pb2 as _a_pb2\n" in files["b_pb2.pyi"]
    assert "_pb2_grpc" not in "".join(files)


def test_no_module_mentions_the_default_pool() -> None:
    for path in GENERATED.glob("*_pb2.py"):
        text = path.read_text()
        assert "_pool.POOL.AddSerializedFile(" in text
        assert "Default()" not in text
        assert "symbol_database" not in text


def test_source_that_needs_googles_types_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.proto").write_text(
        'syntax = "proto3";\npackage a;\nimport "google/protobuf/timestamp.proto";\n'
        "message A { google.protobuf.Timestamp at = 1; }\n"
    )
    done = run("--sources", tmp_path, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "private pool" in done.stderr
    assert not (tmp_path / "out").exists()


def test_syntax_error_leaves_the_output_alone(tmp_path: Path) -> None:
    (tmp_path / "a.proto").write_text(PROTO.replace("=", "≠"))
    done = run("--sources", tmp_path, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "a.proto" in done.stderr
    assert not (tmp_path / "out").exists()


def test_folder_without_sources_is_refused(tmp_path: Path) -> None:
    done = run("--sources", tmp_path)
    assert done.returncode == 2
    assert "no .proto files" in done.stderr


def test_unexpected_output_of_protoc_is_refused(gen_protos: ModuleType) -> None:
    with pytest.raises(gen_protos.GenerationError, match="protoc's output has changed"):
        gen_protos.rewrite("a_pb2.py", "DESCRIPTOR = somewhere_else()\n")


def test_another_compiler_is_refused(
    gen_protos: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gen_protos, "version", lambda name: "1.0.0")
    (tmp_path / "a.proto").write_text(PROTO)
    with pytest.raises(gen_protos.GenerationError, match=r"needs grpcio-tools .*, found 1\.0\.0"):
        gen_protos.generate(tmp_path)


def test_code_for_a_newer_runtime_than_promised_is_refused(
    gen_protos: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin = gen_protos.pin
    monkeypatch.setattr(gen_protos, "pin", lambda pattern: "5.0.0" if "protobuf" in pattern else pin(pattern))
    (tmp_path / "a.proto").write_text(PROTO)
    with pytest.raises(gen_protos.GenerationError, match=r"promises 5\.0\.0"):
        gen_protos.generate(tmp_path)
