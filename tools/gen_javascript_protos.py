"""Generate clients/javascript/src/generated from core/pydanube_core/proto, or check that it is up to date.

    python tools/gen_javascript_protos.py            write danube.ts and danube_schema.ts
    python tools/gen_javascript_protos.py --check    write nothing; print a diff and exit with 1 if a file differs

protoc is the one inside grpcio-tools, its plugin is ts-proto from the client's node_modules (`npm ci`). Where that is not
installed, `--check` compares the digest of the sources that each file has in its first line.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "core" / "pydanube_core" / "proto"
CLIENT: Final = ROOT / "clients" / "javascript"
OUTPUT: Final = CLIENT / "src" / "generated"
PLUGIN: Final = CLIENT / "node_modules" / ".bin" / "protoc-gen-ts_proto"
NAMES: Final = ("danube", "danube_schema")
OPTIONS: Final = (
    "forceLong=bigint",  # exact: offsets and ids have 64 bits
    "outputServices=generic-definitions",
    "outputClientImpl=false",
    "outputJsonMethods=false",
    "outputPartialMethods=false",
    "oneof=unions-value",
    "useMapType=true",  # an attribute may be called __proto__
    "env=node",
    "esModuleInterop=true",
)

sys.path.insert(0, str(ROOT))
from tools.generated_files import write_or_compare  # noqa: E402


def head(name: str) -> str:
    digest = hashlib.sha256((SOURCES / f"{name}.proto").read_bytes()).hexdigest()
    return f"// Written by tools/gen_javascript_protos.py from {name}.proto, sha256 {digest}\n"


def generate() -> dict[Path, str]:
    """Return path → text of the generated modules.

    Raises:
        SystemExit: protoc failed; its messages are on stderr.
    """
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="gen-javascript-") as folder:
        words = ["protoc", f"--proto_path={SOURCES}", f"--plugin=protoc-gen-ts_proto={PLUGIN}"]
        words += [f"--ts_proto_out={folder}", f"--ts_proto_opt={','.join(OPTIONS)}"]
        if protoc.main([*words, *(f"{name}.proto" for name in NAMES)]) != 0:
            raise SystemExit("gen_javascript_protos: protoc failed, see its messages above")
        return {
            OUTPUT / f"{name}.ts": head(name) + Path(folder, f"{name}.ts").read_text(encoding="utf-8")
            for name in NAMES
        }


def check_digests() -> int:
    drifted = [
        name
        for name in NAMES
        if (OUTPUT / f"{name}.ts").read_text(encoding="utf-8").partition("\n")[0] != head(name).rstrip()
    ]
    for name in drifted:
        print(
            f"{name}.ts has another source than {name}.proto: npm ci, then tools/gen_javascript_protos.py",
            file=sys.stderr,
        )
    return 1 if drifted else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the protobuf modules of the JavaScript client.")
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 on a difference")
    check = parser.parse_args().check
    if not PLUGIN.exists():
        if check:
            return check_digests()
        print("gen_javascript_protos: run `npm ci` in clients/javascript first", file=sys.stderr)
        return 2
    return write_or_compare(generate(), check=check, remedy="run tools/gen_javascript_protos.py")


if __name__ == "__main__":
    raise SystemExit(main())
