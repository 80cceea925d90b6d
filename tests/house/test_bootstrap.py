"""tools/bootstrap and ./danube in a copy of their own: which interpreter, when the environment is made, what is said.

Real installations need PyPI and half a minute; `.ci/run` in a fresh clone is their test. Here the interpreters on the
PATH are small scripts, and the environment is a real, empty one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

FILES = ("tools/bootstrap", "tools/environment.py", "danube", "pyproject.toml")
OLD = "#!/bin/sh\ncase $1 in -V) echo 'Python 3.9.2';; *) exit 3;; esac\n"
NO_ENSUREPIP = "#!/bin/sh\ncase $3 in *print*) echo 3.12;; *) exit 4;; esac\n"
SHIM_OF_NOTHING = "#!/bin/sh\necho 'no such version' >&2; exit 127\n"


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Path:
    """A clone with the scripts only."""
    folder = tmp_path / "clone"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, folder / name)
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH of our own: the few tools the scripts may count on, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cksum", "dirname", "readlink", "cat", "sleep"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def run(command: list[str | Path], path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={"PATH": str(path), "HOME": os.environ.get("HOME", "/"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def stamp_of(clone: Path) -> str:
    with (clone / "pyproject.toml").open("rb") as file:
        sums = subprocess.run(["cksum"], stdin=file, capture_output=True, text=True, check=True).stdout
    return f"4 {sums.strip()} {clone.resolve()}"


def finish(clone: Path, level: str) -> None:
    """Give the clone an environment that looks finished; its danube prints its arguments."""
    programs = clone / ".venv" / "bin"
    programs.mkdir(parents=True)
    put(programs, "danube", '#!/bin/sh\necho "danube: $*"\n')
    put(programs, "python", "#!/bin/sh\nexit 1\n")
    (clone / ".venv" / f".stamp-{level}").write_text(stamp_of(clone) + "\n", encoding="utf-8")


def test_old_interpreter_is_named_with_what_is_needed(clone: Path, programs: Path) -> None:
    put(programs, "python3", OLD)
    done = run([clone / "tools" / "bootstrap", "run"], programs)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer; python3 is Python 3.9.2" in done.stderr
    assert "PYTHON=" in done.stderr
    assert done.stdout == ""


def test_missing_ensurepip_names_the_package_to_install(clone: Path, programs: Path) -> None:
    put(programs, "python3", NO_ENSUREPIP)
    done = run([clone / "tools" / "bootstrap", "run"], programs)
    assert done.returncode == 1
    assert "apt-get install python3.12-venv" in done.stderr


def test_no_interpreter_at_all_is_said(clone: Path, programs: Path) -> None:
    done = run([clone / "tools" / "bootstrap", "run"], programs)
    assert done.returncode == 1
    assert "found none on the PATH" in done.stderr


def test_first_interpreter_that_works_is_taken(clone: Path, programs: Path) -> None:
    put(programs, "python3", OLD)
    put(programs, "python3.13", SHIM_OF_NOTHING)
    put(programs, "python3.12", '#!/bin/sh\ncase $2 in -c) exit 0;; esac\necho "took 3.12: $3"\n')
    done = run([clone / "tools" / "bootstrap", "dev"], programs)
    assert done.returncode == 0
    assert "took 3.12: dev" in done.stderr  # stdout is for the command's own data


def test_unknown_level_is_refused(clone: Path, programs: Path) -> None:
    done = run([clone / "tools" / "bootstrap", "everything"], programs)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_matching_stamp_starts_the_command_without_any_interpreter(
    clone: Path, programs: Path, tmp_path: Path
) -> None:
    finish(clone, "run")
    link = tmp_path / "elsewhere"
    link.symlink_to(clone / "danube")
    for program in (clone / "danube", link):
        done = run([program, "produce", "two words"], programs)
        assert (done.returncode, done.stdout, done.stderr) == (0, "danube: produce two words\n", "")


@pytest.mark.parametrize("change", ["pyproject", "moved", "no stamp"])
def test_stamp_of_another_state_is_not_trusted(
    change: str, clone: Path, programs: Path, tmp_path: Path
) -> None:
    finish(clone, "run")
    match change:
        case "pyproject":
            with (clone / "pyproject.toml").open("a", encoding="utf-8") as file:
                file.write("# another dependency\n")
        case "moved":
            clone = clone.rename(tmp_path / "moved")
        case _:
            (clone / ".venv" / ".stamp-run").unlink()
    done = run([clone / "danube", "--version"], programs)
    assert done.returncode == 1
    assert "found none on the PATH" in done.stderr, "it went on to look for an interpreter"


@pytest.fixture
def fake_pip(clone: Path, programs: Path) -> Path:
    """An environment whose pip writes down that it was called; the interpreter that makes it is the real one."""
    venv.create(clone / ".venv", with_pip=False, symlinks=True)
    site = next((clone / ".venv" / "lib").glob("python3*")) / "site-packages"
    pip = site / "pip"
    pip.mkdir()
    (pip / "__init__.py").write_text("", encoding="utf-8")
    (pip / "__main__.py").write_text(
        "import os, pathlib, sys, time\n"
        "if '--version' in sys.argv: sys.exit()\n"
        "calls = pathlib.Path(os.environ['CALLS'])\n"
        "with calls.open('a') as file: file.write(sys.argv[sys.argv.index('-e') + 1] + '\\n')\n"
        "print('Collecting something')\n"
        "if os.environ.get('FAIL'): print('no route to host'); sys.exit(7)\n",
        encoding="utf-8",
    )
    (programs / "python3").symlink_to(sys.executable)
    return pip


def test_environment_without_stamp_is_mended_in_place_and_stamped(
    fake_pip: Path, clone: Path, programs: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    variables = {"CALLS": str(calls), "PYTHON": sys.executable}
    done = run([clone / "tools" / "bootstrap", "dev"], programs, **variables)
    assert done.returncode == 0, done.stderr
    assert calls.read_text(encoding="utf-8") == f"{clone.resolve()}[dev]\n"
    assert fake_pip.exists(), "what was there is kept"
    # dev holds what run needs, so neither is installed again.
    for level in ("dev", "run"):
        again = run([clone / "tools" / "bootstrap", level], programs, **variables)
        assert (again.returncode, again.stderr) == (0, "")
    assert len(calls.read_text(encoding="utf-8").splitlines()) == 1


def test_failed_installation_leaves_no_stamp_and_shows_why(
    fake_pip: Path, clone: Path, programs: Path, tmp_path: Path
) -> None:
    variables = {"CALLS": str(tmp_path / "calls"), "PYTHON": sys.executable}
    done = run([clone / "tools" / "bootstrap", "run"], programs, FAIL="1", **variables)
    assert done.returncode == 1
    assert "no route to host" in done.stderr
    assert not (clone / ".venv" / ".stamp-run").exists()
    assert not (clone / ".venv" / ".installing").exists(), "pip ended by itself: nothing is torn"
    assert run([clone / "tools" / "bootstrap", "run"], programs, **variables).returncode == 0


def test_concurrent_commands_install_once(
    fake_pip: Path, clone: Path, programs: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    environ = {"PATH": str(programs), "HOME": "/", "CALLS": str(calls), "PYTHON": sys.executable}
    several = [
        subprocess.Popen(
            [clone / "tools" / "bootstrap", "dev"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]
    assert [process.wait(timeout=60) for process in several] == [0, 0, 0, 0]
    assert len(calls.read_text(encoding="utf-8").splitlines()) == 1


UV = """#!/bin/sh
echo "$1" >>"$CALLS"
for last; do :; done
case $1 in venv) exec "$PYTHON" -I -m venv --without-pip "$last" ;; esac
case $2 in install) [ -z "${FAIL:-}" ] ;; esac
"""


@pytest.mark.parametrize("damage", ["interrupted", "no interpreter"])
def test_torn_environment_is_made_anew_with_uv_where_there_is_one(
    damage: str, fake_pip: Path, clone: Path, programs: Path, tmp_path: Path
) -> None:
    if damage == "interrupted":
        (clone / ".venv" / ".installing").touch()
    else:
        for path in (clone / ".venv" / "bin").glob("python*"):
            path.unlink()
    put(programs, "uv", UV)
    calls = tmp_path / "calls"
    done = run([clone / "tools" / "bootstrap", "run"], programs, CALLS=str(calls), PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert not fake_pip.exists(), "nothing of the torn environment is left"
    assert calls.read_text(encoding="utf-8").split() == ["venv", "pip"]
    assert (clone / ".venv" / ".stamp-run").exists()
    assert not (clone / ".venv" / ".installing").exists()


def test_pip_is_asked_when_uv_fails(fake_pip: Path, clone: Path, programs: Path, tmp_path: Path) -> None:
    put(programs, "uv", UV.replace('[ -z "${FAIL:-}" ]', "exit 9"))
    calls = tmp_path / "calls"
    done = run([clone / "tools" / "bootstrap", "run"], programs, CALLS=str(calls), PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert calls.read_text(encoding="utf-8").splitlines() == [
        "pip",
        f"{clone.resolve()}[broker,mcp,tui,cluster,security]",
    ]
