"""What makes a folder ours, what is in the way of it, and which formats are read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from pydanube_broker.home import data_dir
from pydanube_broker.home.data_dir import FORMAT_VERSION, DataDir
from pydanube_core.errors import DataDirForeign, FormatTooNew, InvalidArgument

from tests.broker.delivery.conftest import Opener

SEGMENTS = Path(__file__).parents[2] / "data" / "format-1" / "stopped"


def test_a_start_that_was_killed_at_any_moment_leaves_a_folder_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each rename and each call that makes something, what is there then is a data directory of ours."""

    class Killed(BaseException):
        pass

    calls, left = [0], [0]

    def counted(call: object) -> object:
        def wrapped(*args: object, **kwargs: object) -> object:
            calls[0] += 1
            if calls[0] == left[0]:
                raise Killed
            return call(*args, **kwargs)  # type: ignore[operator]

        return wrapped

    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(Path, "mkdir", counted(Path.mkdir))
    monkeypatch.setattr(data_dir, "sync_folder", counted(data_dir.sync_folder))
    stops = 0
    while True:
        folder = tmp_path / str(stops)
        stops += 1
        calls[0], left[0] = 0, stops
        try:
            with DataDir(folder):
                break
        except Killed:
            left[0] = 0
            with DataDir(folder) as opened:
                assert opened.broker_id
    assert stops > 8


def test_what_a_file_system_puts_into_a_fresh_volume_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with DataDir(tmp_path):
        pass
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").touch()
    with pytest.raises(DataDirForeign), DataDir(other):
        pass


def test_every_folder_above_a_new_data_directory_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    with DataDir(tmp_path / "a" / "b" / "data"):
        pass
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "data"):
        assert str(folder) in synced


@pytest.mark.anyio
async def test_a_directory_of_the_first_format_is_upgraded_when_it_was_understood(
    opened: Opener, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "format.json").write_text('{"format_version": 1}\n')
    with pytest.raises(InvalidArgument), DataDir(data, upgrade=False):
        pass
    shutil.copytree(SEGMENTS / "journal", data / "journal")
    # The fixture is a journal without metadata: it is refused, and left in the format it has.
    with pytest.raises(Exception, match=r"metadata\.sqlite is missing"):
        async with opened():
            pass
    assert json.loads((data / "format.json").read_text()) == {"format_version": 1}
    shutil.rmtree(data / "journal")
    async with opened():
        pass
    assert json.loads((data / "format.json").read_text()) == {"format_version": FORMAT_VERSION}
    (data / "format.json").write_text('{"format_version": 99}\n')
    with pytest.raises(FormatTooNew), DataDir(data):
        pass
