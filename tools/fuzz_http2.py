"""Feed the HTTP/2 connection with what libFuzzer thinks of, guided by the branches it reaches (`make fuzz`).

    .venv/bin/python -m tools.fuzz_http2 [-max_total_time=60] [any option of libFuzzer's]

Needs atheris, which is made for some Pythons on Linux only: `tools/gate.py` says "not run" where it is missing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]  # where there is no wheel, nothing is fuzzed

with atheris.instrument_imports(include=["pydanube_core.http2", "tests.broker.rpc", "hpack"]):
    from tests.broker.rpc.http2_conversations import beginnings, hold_a_conversation


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pydanube-fuzz-") as corpus:
        for number, seed in enumerate(beginnings()):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, "-max_len=4096", "-timeout=20", corpus], hold_a_conversation)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
