"""Compiles `.proto` text to descriptors with protoc, in a process of its own.

The compiler is C++ and its input is untrusted, so a crash or a hang must fail a registration, not the broker. Its
result is stored with the version, so that later uses of the version do not need the compiler.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pydanube_core.errors import MissingExtra, Overloaded, SchemaInvalid
from pydanube_core.extras import install_command

TIMEOUT_S: Final = 20.0
_FILE: Final = "schema.proto"
_PLACED: Final = re.compile(rf"^{re.escape(_FILE)}:(\d+):(\d+): (?!warning)(.*)$", re.MULTILINE)
_MESSAGE: Final = re.compile(rf"^{re.escape(_FILE)}: (?!warning)(.*)$", re.MULTILINE)


def compile_proto(text: bytes) -> bytes:
    """Return a serialized FileDescriptorSet: the imports from `google/protobuf`, then the file. Blocking.

    Raises:
        SchemaInvalid: `details["path"]` is `line 3, column 7`. Imports other than Google's own are refused.
        MissingExtra: grpcio-tools is not installed.
        Overloaded: the compiler did not finish in 20 s.
    """
    try:
        source = text.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"byte {error.start}", "the text is not UTF-8") from None
    spec = importlib.util.find_spec("grpc_tools")
    if spec is None or spec.origin is None:
        raise MissingExtra(f"Protobuf schemas need the compiler: {install_command('schema')}", extra="schema")
    included = Path(spec.origin).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="danube-protoc-") as folder:
        target = Path(folder) / "out.bin"
        (Path(folder) / _FILE).write_text(source, encoding="utf-8", newline="")
        command = [
            sys.executable,
            "-I",
            "-m",
            "grpc_tools.protoc",
            "-I.",  # relative, so that errors name `schema.proto`
            f"-I{included}",
            "--include_imports",
            f"--descriptor_set_out={target}",
            _FILE,
        ]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Overloaded(
                f"the Protobuf compiler did not answer in {TIMEOUT_S:.0f} s. Try again", retry_after_ms=5000
            ) from None
        if done.returncode != 0 or not target.exists():
            raise _refused(done.stderr.decode("utf-8", "replace"))
        return target.read_bytes()


def _refused(output: str) -> SchemaInvalid:
    placed = _PLACED.search(output)
    if placed is not None:
        return _bad(f"line {placed[1]}, column {placed[2]}", placed[3])
    plain = _MESSAGE.search(output)
    return _bad(
        "", plain[1] if plain is not None else output.strip().split("\n", 1)[0] or "the compiler failed"
    )


def _bad(path: str, why: str) -> SchemaInvalid:
    hint = ""
    if "not found" in why and ".proto" in why:
        hint = ". A schema is one file: put the messages in it (google/protobuf/*.proto can be imported)"
    return SchemaInvalid(
        f"the Protobuf schema is wrong{' at ' + path if path else ''}: {why[:300]}{hint}",
        field="schema_definition",
        path=path or "/",
        value=None,
    )
