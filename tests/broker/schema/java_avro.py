"""Avro's own library, for holding verdicts against it: `tests/broker/schema/java`, compiled where Java and Maven are."""

from __future__ import annotations

import base64
import copy
import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Case", "JavaAvro", "renamed"]

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>pydanube</groupId><artifactId>avro-verdicts</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.avro</groupId><artifactId>avro</artifactId><version>1.12.0</version>
</dependency></dependencies></project>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    writer: Any
    reader: Any
    data: Sequence[bytes]


class JavaAvro:
    """Args: folder: for the library and what is compiled; used again where it is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @staticmethod
    def is_there() -> bool:
        return all(shutil.which(program) for program in ("java", "javac", "mvn"))

    def prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "pom.xml").write_text(POM)
        libraries = self._folder / "lib"
        if not any(libraries.glob("avro-*.jar")):
            self._run("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libraries}")
        source = Path(__file__).parent / "java" / "AvroVerdicts.java"
        self._run("javac", "-cp", f"{libraries}/*", "-d", str(self._folder), str(source))

    def verdicts(self, cases: Sequence[Case]) -> list[str]:
        """ "read", or what was in the way."""
        lines = [
            "\t".join(
                (
                    _encoded(json.dumps(case.writer).encode()),
                    _encoded(json.dumps(case.reader).encode()),
                    ",".join(map(_encoded, case.data)),
                )
            )
            for case in cases
        ]
        done = self._run(
            "java",
            "-Xmx512m",
            "-cp",
            f"{self._folder}:{self._folder}/lib/*",
            "AvroVerdicts",
            given="\n".join(lines),
        )
        return done.splitlines()

    def _run(self, *words: str, given: str = "") -> str:
        done = subprocess.run(
            words, cwd=self._folder, input=given, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def renamed(schema: Any, seed: int) -> Any:
    """The schema with other names, aliases and namespaces in places, some of which lead astray."""
    roll = random.Random(seed)
    made = copy.deepcopy(schema)
    records: list[dict[str, Any]] = []
    work = [made]
    while work:
        one = work.pop()
        if isinstance(one, list):
            work += one
        elif isinstance(one, dict):
            if "name" in one and roll.random() < 0.3:
                match roll.randrange(3):
                    case 0:
                        one["namespace"] = "space"
                    case 1:
                        one["aliases"] = [roll.choice(["R0", "E1", "F1", "space.R0", one["name"]])]
                    case _ if one["type"] != "record":  # others may refer to a record
                        one["aliases"] = [one["name"]] if roll.random() < 0.7 else []
                        one["name"] = "Renamed"
            if one.get("type") == "record":
                records.append(one)
                work += [field["type"] for field in one["fields"]]
            work += [one[word] for word in ("items", "values") if word in one]
    for record in records:
        names = [field["name"] for field in record["fields"]] + ["f0", "f1"]
        for field in record["fields"]:
            if roll.random() < 0.25:
                field["aliases"] = roll.sample(names, roll.randrange(1, 3))
            if roll.random() < 0.3 and field["type"] in ("int", "long", "float", "double"):
                field["default"] = 1
    return made
