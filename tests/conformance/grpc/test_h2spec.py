"""h2spec's cases (generic, http2, hpack) against a broker; what may fail stands in h2spec-exceptions.toml."""

from __future__ import annotations

import subprocess
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.grpc.go_tools import go_tool
from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

EXCEPTIONS: Final = Path(__file__).parents[1] / "h2spec-exceptions.toml"


def cases(report: Path) -> dict[str, bool]:
    """Case → whether it passed."""
    found = {}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for number, case in enumerate(suite.iter("testcase"), 1):
            package = case.get("package", "")
            found[f"{package}/{number}"] = case.find("failure") is None and case.find("error") is None
    return found


def test_every_case_passes_but_the_exceptions(tmp_path: Path) -> None:
    h2spec = go_tool("h2spec", "github.com/summerwind/h2spec/cmd/h2spec", "v2.2.1+incompatible")
    exceptions = {entry["case"]: entry for entry in tomllib.loads(EXCEPTIONS.read_text())["exception"]}
    assert len(exceptions) <= 5
    assert all(entry["section"] and entry["reason"] for entry in exceptions.values())
    with BrokerProcess(tmp_path) as broker:
        host, _, port = broker.url.removeprefix("http://").rpartition(":")
        report = tmp_path / "report.xml"
        command = [str(h2spec), "-h", host, "-p", port, "-o", "5", "-j", str(report)]
        ran = subprocess.run(command, capture_output=True, timeout=600, check=False)
    assert report.exists(), ran.stderr.decode(errors="replace")
    results = cases(report)
    assert len(results) > 140
    assert {name for name, passed in results.items() if not passed} == set(exceptions)
