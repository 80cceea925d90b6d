"""Stores that are away, full, refuse, or cut a body: typed errors that name the place and the way out."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydanube_core.errors import CorruptObject, InvalidArgument, StoreUnavailable
from pydanube_storage.objects import LocalStore, ObjectName, StoreOptions, open_store, remote
from pydanube_storage.objects.remote import FsspecStore
from pydanube_storage.objects.retrying import Retry

from tests.support.broker_process import free_ports
from tests.support.s3_server import S3Server


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def retry(self, budget_s: float) -> Retry:
        return Retry(budget_s=budget_s, monotonic=lambda: self.now, sleep=self.sleep, jitter=lambda: 1.0)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Flaky:
    """A file system that fails its first calls."""

    def __init__(self, *errors: Exception | bytes) -> None:
        self.answers: list[Exception | bytes] = list(errors)
        self.calls = 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def store_over(fs: Any, retry: Retry) -> FsspecStore:
    return FsspecStore(fs, "bucket/prefix", url="s3://bucket/prefix", retry=retry)


def test_a_store_that_comes_back_within_the_budget_is_waited_for() -> None:
    clock, fs = Clock(), Flaky(OSError("503 Slow Down"), TimeoutError(), b"data")
    store = store_over(fs, clock.retry(10))
    assert store.read("k", 0, 4) == b"data"
    assert fs.calls == 3
    assert clock.now == pytest.approx(0.3)
    store.close()


def test_a_store_that_stays_away_costs_the_budget_and_names_bucket_key_cause_remedy() -> None:
    clock, fs = Clock(), Flaky(OSError("503 Slow Down"))
    store = store_over(fs, clock.retry(10))
    with pytest.raises(StoreUnavailable) as caught:
        store.read("k", 0, 4)
    assert 5 < clock.now <= 10
    details = caught.value.details
    assert (details["bucket"], details["key"]) == ("bucket", "k")
    assert "503" in details["cause"]
    assert details["remedy"]
    store.close()


class Refused(Exception):
    """As botocore's `ClientError`."""

    def __init__(self, code: str) -> None:
        super().__init__("An error occurred")
        self.response = {"Error": {"Code": code, "Message": "m"}}


@pytest.mark.parametrize(
    ("code", "says", "again"),
    [
        ("InvalidObjectState", "archived", False),
        ("RequestTimeTooSkewed", "clock", False),
        ("AuthorizationHeaderMalformed", "tier.region", False),
        ("PermanentRedirect", "tier.endpoint", False),
        ("QuotaExceeded", "quota", False),
        ("XMinioStorageFull", "space", False),
        ("InvalidAccessKeyId", "key", False),
        ("KMS.DisabledException", "disabled", False),
        ("AccountProblem", "disabled", False),
        ("NoSuchBucket", "make the bucket bucket", False),
        ("ExpiredToken", "renew", False),
        ("SlowDown", "limits the rate of calls", True),
        ("InternalError", "tier.endpoint, the network", True),
    ],
)
def test_the_code_of_the_store_has_its_own_remedy_and_only_what_may_pass_is_retried(
    code: str, says: str, again: bool
) -> None:
    clock, error = Clock(), OSError(5, "as s3fs translates it")
    error.__cause__ = Refused(code)
    fs = Flaky(error)
    store = store_over(fs, clock.retry(10))
    with pytest.raises(StoreUnavailable) as caught:
        store.read("k", 0, 4)
    assert says in caught.value.details["remedy"]
    assert (fs.calls > 1) is again
    store.close()


def test_a_cut_body_is_asked_for_again_and_then_said_to_be_damaged() -> None:
    clock = Clock()
    store = store_over(Flaky(b"da", b"data"), clock.retry(10))
    assert store.read("k", 0, 4) == b"data"
    store.close()
    store = store_over(Flaky(b"da"), clock.retry(10))
    with pytest.raises(CorruptObject):
        store.read("k", 0, 4)
    store.close()


def test_wrong_credentials_are_not_tried_again_and_not_shown() -> None:
    clock, fs = Clock(), Flaky(PermissionError("Forbidden"))
    store = store_over(fs, clock.retry(10))
    with pytest.raises(StoreUnavailable, match="credentials"):
        store.read("k", 0, 4)
    assert fs.calls == 1
    store.close()


def test_a_real_server_refuses_wrong_credentials(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some-other-secret")
    store = open_store(s3_server.options("refused"))
    with pytest.raises(StoreUnavailable) as caught:
        store.put("k", b"x")
    assert "credentials" in caught.value.message
    assert "some-other-secret" not in caught.value.to_json()
    store.close()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    pytest.importorskip("s3fs")
    (port,) = free_ports(1)
    options = StoreOptions(
        url="s3://b/p", endpoint=f"http://127.0.0.1:{port}", anonymous=True, path_style=True
    )
    clock = Clock()
    store = open_store(options, retry=clock.retry(0.2))
    with pytest.raises(StoreUnavailable) as caught:
        store.put("k", b"x")
    assert caught.value.details["bucket"] == "b"
    store.close()


def test_a_full_disk_leaves_no_object_and_no_spooled_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="free space"):
        store.put("a", b"x")
    monkeypatch.undo()
    assert list(store.list("")) == []
    assert list(store.spool.iterdir()) == []


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for empty, the store would be said to be lost, and what is newer than the catalog not be adopted."""
    store = LocalStore(tmp_path)
    store.put_new("cluster/owner/1.json", b"{}")
    look = os.scandir

    def none_left(path: Any) -> Any:
        if str(path).endswith("owner"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", none_left)
    with pytest.raises(StoreUnavailable, match="Too many open files"):
        list(store.list("cluster"))
    with pytest.raises(StoreUnavailable, match="Too many open files"):
        list(store.list("cluster/owner"))
    assert list(store.list("elsewhere")) == []


def test_a_local_object_is_never_replaced(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"first")
    with pytest.raises(StoreUnavailable):
        store.put("a", b"second")
    assert store.read("a", 0, 5) == b"first"


def test_a_local_put_syncs_the_file_before_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    events: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def sync(fd: int) -> None:
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        real_sync(fd)

    def link(*names: Any) -> None:
        events.append("name")
        real_link(*names)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    store.put("folder/a", b"x")
    assert events == ["folder", "file", "name", "folder"]


@pytest.mark.parametrize("url", ["ftp://x/y", "s3://user:password@bucket/x", "s3://", "gs://", "az:///x"])
def test_a_url_of_another_kind_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        open_store(StoreOptions(url=url))
    assert "password@" not in caught.value.to_json()


def test_object_names_round_trip_and_sort_by_offset() -> None:
    name = ObjectName(start=7, end=1_000, epoch=3, generation=0, random="ab12")
    assert str(name) == "00000000000000000007-1000-3-0-ab12.parquet"
    assert ObjectName.parse(f"some/folder/{name}") == name
    assert ObjectName.parse("00000000000000000007-1000-3-0-ab12.parquet.tmp") is None
    assert ObjectName.parse("7-8-3-0-ab.parquet") is None


def test_a_put_that_the_store_does_not_take_in_ends_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("s3fs")
    monkeypatch.setattr(remote, "SLOWEST_BYTES_PER_S", 100 << 20)
    monkeypatch.setattr(remote, "ATTEMPT_S", 2.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with socket.socket() as deaf:  # takes the connection, and nothing that is sent
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        store = open_store(
            StoreOptions(
                url="s3://bucket/x", endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}", region="us-east-1",
                path_style=True, timeout_s=1.0,
            )
        )  # fmt: skip
        spooled = store.spool / "object.parquet.tmp"
        spooled.write_bytes(bytes(20 << 20))
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable) as failed:
            store.put("k", spooled)
        assert time.monotonic() - begun < 30
        assert failed.value.details["remedy"]
        assert list(store.spool.iterdir()) == []
        store.close()


def test_a_failed_upload_leaves_nothing_in_the_spool(tmp_path: Path) -> None:
    class Refusing:
        def put_file(self, source: str, path: str) -> None:
            raise PermissionError("403")

    store = store_over(Refusing(), Clock().retry(1))
    spooled = store.spool / "object.parquet.tmp"
    spooled.write_bytes(b"x")
    with pytest.raises(StoreUnavailable):
        store.put("k", spooled)
    assert list(store.spool.iterdir()) == []
    store.close()


def test_spools_of_processes_that_are_gone_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    left = tmp_path / f"danube-spool-{int(done.stdout)}-abc"
    left.mkdir()
    (left / "x.parquet.tmp").write_bytes(b"x")
    mine = store_over(Flaky(b""), Clock().retry(1))
    other = store_over(Flaky(b""), Clock().retry(1))
    assert not left.exists()
    assert mine.spool.exists(), "of a process that lives"
    mine.close()
    other.close()


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_spool_that_is_removed_at_run_time_is_made_again(tmp_path: Path, kind: str) -> None:
    store = LocalStore(tmp_path / "objects") if kind == "local" else store_over(Flaky(b""), Clock().retry(1))
    store.spool.rmdir()
    assert store.spool.is_dir()
    if kind == "local":
        store.spool.rmdir()
        store.put("a/b", b"x")
        assert store.read("a/b", 0, 1) == b"x"
    store.close()


def test_a_store_whose_folder_is_gone_is_not_made_anew_under_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "objects")
    store.spool.rmdir()
    (tmp_path / "objects").rmdir()  # unmounted
    with pytest.raises(StoreUnavailable):
        store.put("a/b", b"x")
    assert not (tmp_path / "objects").exists()


def test_a_folder_store_keeps_no_folder_without_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "objects", spool="1")
    for key in ("c/topics/default/a/1/x", "c/topics/default/a/1/y", "c/topics/default/b/2/x"):
        store.put(key, b"1")
    store.delete("c/topics/default/a/1/x")
    assert store.folders("c/topics/default") == ["a", "b"]
    store.delete("c/topics/default/a/1/y")
    assert store.folders("c/topics/default") == ["b"]
    store.delete("c/topics/default/b/2/x")
    assert store.folders("") == []
    assert (tmp_path / "objects").is_dir()
    store.put("c/topics/default/a/1/x", b"2")
    assert store.read("c/topics/default/a/1/x", 0, 1) == b"2"


def test_objects_are_stored_while_their_folder_is_removed(tmp_path: Path) -> None:
    """Several brokers write to one folder: a delete in one of them must not fail a put in another."""

    def writer(number: int) -> int:
        store = LocalStore(tmp_path / "objects", spool=str(number))
        for each in range(150):
            key = f"c/topics/default/a/1/{number}-{each}"
            store.put(key, b"1")
            assert store.read(key, 0, 1) == b"1"
            store.delete(key)
        return number

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(writer, range(4))) == [0, 1, 2, 3]
    assert LocalStore(tmp_path / "objects", spool="9").folders("") == []
