"""The audit goes to a file of the broker's machine, or to a topic, as it is; again, it goes on where it ended."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube.wire.ops_channel import OpsChannel
from pydanube_core.errors import InvalidArgument, InvalidName
from pydanube_core.ops_call import call_request

from tests.cli.test_locks_live import Locked, give, locked_broker


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    async with locked_broker(tmp_path) as made:
        await give(made, "admin", "admin")
        yield made


async def on_the_machine(locked: Locked, operation: str, /, **arguments: Any) -> dict[str, Any]:
    """Call an operation as the operator on the broker's machine."""
    channel = OpsChannel(f"unix:{locked.broker.data_dir.path.absolute()}/admin.sock")
    try:
        request = call_request(operation, arguments, principal="", face="cli")
        found: dict[str, Any] = json.loads(await channel.call(request, timeout_s=30))
        return found
    finally:
        await channel.aclose()


exists, read, write = (
    Path.exists,
    Path.read_text,
    Path.write_text,
)  # of files in memory, about: they block nobody


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_file_goes_on_where_it_ended_and_has_the_whole_chain(locked: Locked, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first = await on_the_machine(locked, "audit.export", to=str(path), limit=3)
    assert (first["records"], first["complete"]) == (3, False)
    await on_the_machine(locked, "audit.export", to=str(tmp_path / "all.jsonl"))
    torn = (tmp_path / "all.jsonl").read_bytes().splitlines()[3][:40]
    with path.open("ab") as file:
        file.write(torn)  # of a crash within a record
    again = await on_the_machine(locked, "audit.export", to=str(path))
    assert again["complete"]
    await locked.call("admin", "topics.create", topic="/default/orders")
    last = await on_the_machine(locked, "audit.export", to=str(path))
    found = lines(path)
    assert [each["seq"] for each in found] == list(range(last["next_seq"]))
    assert all(one["hash"] == other["prev_hash"] for one, other in itertools.pairwise(found))
    assert "topics.create" in {each["operation"] for each in found}
    [head] = lines(path.with_name("audit.jsonl.head"))
    assert (head["seq"], head["hash"], head["mac"]) == tuple(found[-1][key] for key in ("seq", "hash", "mac"))
    assert path.stat().st_mode & 0o077 == 0


async def test_a_topic_gets_each_record_as_it_is(locked: Locked, tmp_path: Path) -> None:
    await locked.call("admin", "topics.create", topic="/default/audit-copy")
    said = await locked.call("admin", "audit.export", into="/default/audit-copy", from_seq=0)
    rest = await locked.call("admin", "audit.export", into="/default/audit-copy", from_seq=said["next_seq"])
    await on_the_machine(locked, "audit.export", to=str(tmp_path / "same.jsonl"), limit=rest["next_seq"])
    async with (
        connect(locked.broker.broker_url, token=locked.tokens["admin"]) as client,
        client.reader("/default/audit-copy", stop="head") as reader,
    ):
        got = [json.loads(message.payload) async for message in reader]
    assert got == lines(tmp_path / "same.jsonl")


async def test_it_is_not_for_everybody_and_writes_nothing_that_is_something_else(
    locked: Locked, tmp_path: Path
) -> None:
    await give(locked, "viewer", "viewer")
    await give(locked, "auditor", "viewer,producer", "namespace", "default")
    file, other = tmp_path / "x.jsonl", tmp_path / "other.txt"
    path = str(file)
    assert await locked.code("viewer", "audit.export", {"into": "/default/x"}) == "PERMISSION_DENIED"
    assert await locked.code("auditor", "audit.export", {"into": "/default/x"}) == "PERMISSION_DENIED"
    assert (
        await locked.code("admin", "audit.export", {"to": path}) == "PERMISSION_DENIED"
    )  # not over the network
    assert not await anyio.Path(file).exists()
    assert await locked.code("admin", "audit.export", {"into": "/system/audit"}) == "PERMISSION_DENIED"
    await anyio.Path(other).write_text("something else\n")
    with pytest.raises(InvalidArgument, match="holds something else"):
        await on_the_machine(locked, "audit.export", to=str(other))
    with pytest.raises(InvalidArgument, match="a file"):
        await on_the_machine(locked, "audit.export")
    assert await anyio.Path(other).read_text() == "something else\n"


def names(folder: Path, name: str) -> list[str]:
    return [each.name for each in folder.glob(f"{name}*")]


NOT_OURS = {
    "json.json": b'{"seq": 7, "hash": "x", "prev_hash": "y"}',
    "binary.bin": bytes(range(256)) * 1600,
    "seq.jsonl": b'{"seq": 5}\n',
    "empty": b"",
}


@pytest.mark.parametrize("name", NOT_OURS)
async def test_a_file_that_is_no_audit_stays_as_it_is(locked: Locked, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(NOT_OURS[name])
    with pytest.raises(InvalidArgument, match="holds something else"):
        await on_the_machine(locked, "audit.export", to=str(path))
    assert path.read_bytes() == NOT_OURS[name]
    assert names(tmp_path, name) == [name]


async def test_a_path_is_only_for_the_operator_at_the_socket_whatever_face_a_call_claims(
    tmp_path: Path,
) -> None:
    """`face="cli"` in a raw call over the network made the broker write to any path as its own user."""
    async with locked_broker(tmp_path, **{"auth.mode": "optional"}) as locked:
        for operation, arguments in (
            ("audit.export", {}),
            ("objects.export", {"topic": "/default/t"}),
        ):
            if operation == "objects.export":
                await locked.call("nobody", "topics.create", topic="/default/t")
            target = tmp_path / f"{operation}.out"
            assert (
                await locked.code("nobody", operation, {**arguments, "to": str(target)}) == "INVALID_ARGUMENT"
            )
            assert not target.exists()
        said = await locked.call("nobody", "audit.export", to="bare.jsonl")
        assert Path(said["to"]).parent == locked.broker.data_dir.path / "exports"


async def test_a_long_name_is_refused_before_anything_is_written(locked: Locked) -> None:
    with pytest.raises(InvalidName, match="bytes"):
        await on_the_machine(locked, "audit.export", to="n" * 250)
    assert not list((locked.broker.data_dir.path / "exports").glob("*"))
