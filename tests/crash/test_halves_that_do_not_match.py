"""A data directory of which one half is gone or from another day: the broker names it and touches nothing.

What the metadata does not name counts as deleted, and a journal without a segment as new. So a lost or an old
`metadata.sqlite`, or a lost journal, must stop the start: otherwise messages are gone without a word, and their topics'
ids are given out again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerDied, BrokerProcess

pytestmark = pytest.mark.timeout(300)


def _refused(broker: BrokerProcess, *words: str) -> None:
    """It does not start, exits with 5, and says these words; what it was given is as before."""
    files = {path: path.stat().st_size for path in (broker.data_dir / "journal").glob("*")}
    with pytest.raises(BrokerDied) as died:
        broker.start()
    assert died.value.exit_code == 5, died.value.log
    last_life = died.value.log.rpartition("--- life")[2]
    for word in ("CORRUPT_JOURNAL", *words):
        assert word in last_life
    assert "Traceback" not in last_life
    assert {path: path.stat().st_size for path in (broker.data_dir / "journal").glob("*")} == files


def _stored(broker: BrokerProcess, topic: str) -> int:
    return broker.command("consume", topic, "--exit", "--format", "raw").stdout.count(b"\n")


def _move(files: list[Path], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        shutil.move(file, folder / file.name)


def _back(folder: Path, to: Path) -> None:
    for file in folder.iterdir():
        shutil.move(file, to / file.name)
    folder.rmdir()


def test_a_lost_half_or_an_older_one_is_refused_until_it_is_back(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    # A tier that cannot be written to: everything has to come from the journal.
    broker = make_broker(
        face="broker",
        environment={"DANUBE_TIER__URL": "/proc/nothing", "DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB"},
    )
    broker.start()
    broker.command("produce", "long", "-m", "x" * 100_000, "--count", "30")
    broker.command("produce", "first", "-m", "one")
    broker.kill()
    data = broker.data_dir

    def metadata() -> list[Path]:
        return sorted(data.glob("metadata.sqlite*"))

    old = tmp_path / "old"
    shutil.copytree(data, old)
    broker.start()
    broker.command("produce", "second", "-m", "two")
    broker.kill()

    # Gone: nothing is made in its place, since that would stand in the way of the one that is put back.
    away = tmp_path / "away"
    _move(metadata(), away)
    _refused(broker, "metadata.sqlite is missing")
    assert metadata() == []

    # Empty, as a disk that was full leaves a copy.
    (data / "metadata.sqlite").touch()
    _refused(broker, "is older than the journal")
    for file in metadata():
        file.unlink()

    # From before the second topic. Starting it again and again does not help it along.
    for file in old.glob("metadata.sqlite*"):
        shutil.copy(file, data)
    _refused(broker, "is older than the journal")
    _refused(broker, "is older than the journal")
    for file in metadata():
        file.unlink()
    _back(away, data)

    # The journal is gone.
    _move(list((data / "journal").iterdir()), away)
    _refused(broker, "the journal is missing")
    assert list((data / "journal").iterdir()) == []
    _back(away, data / "journal")

    # Its oldest segment is.
    oldest = min((data / "journal").glob("*.journal"))
    _move([oldest], away)
    _refused(broker, "oldest segments are missing", "of topic /default/long")
    _back(away, data / "journal")

    broker.start()
    assert _stored(broker, "long") == 30
    for topic, text in (("first", "one"), ("second", "two")):
        assert broker.command("consume", topic, "--exit", "--format", "raw").stdout == f"{text}\n".encode()
    assert broker.stop() == 0

    # Nothing to restore from: said by a file, it starts with the rest, once.
    oldest.unlink()
    (data / "journal" / "ACCEPT_LOSS").touch()
    broker.start()
    assert "messages_lost topic=/default/long first=0 " in broker.log()
    left = _stored(broker, "long")
    assert 0 < left < 30
    broker.kill()
    assert not (data / "journal" / "ACCEPT_LOSS").exists()
    broker.start()
    assert _stored(broker, "long") == left
    assert broker.stop() == 0
    broker.check_log(allow=["CORRUPT_JOURNAL"])
