"""docs/interface.md#13-a-walk, the cold tier, typed as there, with a real DuckDB; good input, then bad input."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, client_environment, refusal
from tests.support.pinned_packages import ensure_package
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SETTINGS = {"DANUBE_TIER__FLUSH_AGE": "1s", "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB"}
LINES = [b"2026-01-31 12:%02d:%02d status installed lib%06d" % (i // 60 % 60, i % 60, i) for i in range(3000)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), environment=SETTINGS) as process:
        process.command("produce", "logs", stdin=b"\n".join(LINES) + b"\n")
        wait_until(lambda: tiered(process, "logs") == len(LINES))
        yield process


def wrong(broker: BrokerProcess, code: str, method: str, **params: Any) -> dict[str, Any]:
    error: dict[str, Any] = broker.rpc(method, **params)["error"]["data"]
    assert error["code"] == code, error
    return error


def tiered(broker: BrokerProcess, topic: str) -> int:
    return broker.ask("topics.describe", topic=topic)["tiered_offset"] or 0


def items(broker: BrokerProcess, topic: str, **given: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.ask("objects.list", topic=topic, **given)["items"]
    return found


def lines_of(broker: BrokerProcess, form: str) -> list[str]:
    return broker.command("objects", "list", "logs", "--format", form).stdout.decode().splitlines()


def refused(broker: BrokerProcess, exit_code: int, code: str, *words: str) -> dict[str, Any]:
    return refusal(broker.command(*words, "--json", check=False), exit_code, code)


def duckdb(statement: str) -> list[list[str]]:
    """Rows that the program `duckdb` prints."""
    program = next(path for path in ensure_package("duckdb-cli==1.5.6").rglob("duckdb") if path.is_file())
    program.chmod(0o755)
    done = subprocess.run(
        [str(program), "-csv", "-noheader", "-c", statement],
        capture_output=True,
        env=client_environment(),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [line.split(",") for line in done.stdout.decode().splitlines()]


def counts(*sources: str) -> list[tuple[int, int]]:
    """(rows, distinct offsets) of each."""
    found = duckdb(";".join(f'select count(*), count(distinct "offset") from {source}' for source in sources))
    return [(int(rows), int(offsets)) for rows, offsets in found]


# -- good input ----------------------------------------------------------------------------------------------


def test_objects_are_listed_with_paths_that_exist_and_verified(broker: BrokerProcess) -> None:
    found = broker.json_command("objects", "list", "logs")["items"]
    assert all(Path(item["path"]).is_file() for item in found)
    assert found[0]["start_offset"] == 0
    assert found[-1]["end_offset"] == len(LINES)
    assert {"messages", "bytes", "min_append_time", "max_append_time", "epoch", "committed"} <= found[
        0
    ].keys()
    verified = broker.json_command("objects", "verify", "logs")
    assert verified == {"checked": len(found), "damaged": [], "missing": [], "gaps": [], "duplicates": []}


def test_duckdb_reads_the_glob_as_it_is_printed(broker: BrokerProcess) -> None:
    (glob,) = lines_of(broker, "glob")
    assert glob.endswith("/*.parquet")
    ((rows, offsets, first),) = duckdb(
        f"""select count(*), count(distinct "offset"), min(append_time) from '{glob}'"""
    )
    assert (int(rows), int(offsets)) == (len(LINES), len(LINES))
    assert first.startswith("20")
    assert lines_of(broker, "paths") == [item["path"] for item in items(broker, "logs")]


def test_every_offset_is_there_once_before_during_and_after_compaction(make_broker: Any) -> None:
    with make_broker(environment={**SETTINGS, "DANUBE_TIER__FLUSH_AGE": "100ms"}) as broker:
        for run in range(2):
            broker.command("produce", "logs", "-m", "x" * 100, "--count", "500")
            wait_until(lambda sent=500 * (run + 1): tiered(broker, "logs") == sent)
        paths = [item["path"] for item in items(broker, "logs")]
        glob = f"{Path(paths[0]).parent}/*.parquet"
        assert broker.ask("objects.compact", topic="logs")["objects"] == 1
        merged = [item["path"] for item in items(broker, "logs")]
        exact = (1000, 1000)
        assert counts(f"read_parquet({paths})", f"'{glob}'", f"read_parquet({merged})") == [
            exact,  # a listing made before stays readable
            (2000, 1000),  # the sources are still there for it
            exact,
        ]
        assert len(broker.json_command("objects", "collect", "logs", "--yes")["deleted"]) == len(paths)
        assert counts(f"'{glob}'") == [exact]


def test_a_range_is_given_by_positions(broker: BrokerProcess) -> None:
    found = items(broker, "logs")
    words = ("objects", "list", "logs", "--from", "offset:0", "--until", "latest")
    assert broker.json_command(*words)["items"] == found
    assert items(broker, "logs", **{"from": "earliest", "until": "offset:1"}) == found[:1]
    assert items(broker, "logs", **{"from": "latest"}) == []
    assert items(broker, "logs", **{"from": "time:-1h"}) == found
    assert items(broker, "logs", until="time:-1h") == []
    assert broker.ask("objects.verify", topic="logs", until="offset:1")["checked"] == 1


def test_an_export_holds_every_message_also_those_not_tiered_yet(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.command("produce", "exported", stdin=b"\n".join(LINES[:1000]) + b"\n")
    table, lines = tmp_path / "all.parquet", tmp_path / "some.jsonl"
    said = broker.json_command("objects", "export", "exported", "--to", str(table))
    assert (said["messages"], said["path"], said["format"]) == (1000, str(table), "parquet")
    rows = pq.read_table(table)
    assert rows["payload"].to_pylist() == LINES[:1000]
    assert rows["offset"].to_pylist() == list(range(1000))
    assert said["bytes"] == table.stat().st_size
    words = (
        "objects",
        "export",
        "exported",
        "--format",
        "jsonl",
        "--from",
        "offset:10",
        "--until",
        "offset:20",
    )
    assert broker.json_command(*words, "--to", str(lines))["messages"] == 10
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [each["payload"].encode() for each in found] == LINES[10:20]
    assert [each["offset"] for each in found] == list(range(10, 20))
    assert sorted(tmp_path.iterdir()) == [table, lines]
    refused(broker, 1, "ALREADY_EXISTS", "objects", "export", "exported", "--to", str(table))
    begun = tmp_path / "begun.jsonl"
    part = ("objects", "export", "logs", "--to", str(begun), "--format", "jsonl", "--from", "offset:2990")
    assert broker.json_command(*part)["end_offset"] == len(LINES)
    # What the broker writes from its objects is the same file
    broker.ask("objects.export", topic="logs", to="same.jsonl", format="jsonl", **{"from": "offset:2990"})
    assert begun.read_bytes() == (broker.data_dir / "exports" / "same.jsonl").read_bytes()


def test_the_command_writes_the_audit_to_a_path_of_its_own_machine(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    first = broker.json_command("audit", "export", "--to", str(path), "--limit", "3")
    assert (first["records"], first["next_seq"], first["complete"]) == (3, 3, False)
    broker.ask("audit.export", to="walk.jsonl", limit=5)
    assert broker.json_command("audit", "export", "--to", str(path), "--limit", "2")["next_seq"] == 5
    assert path.read_bytes() == (broker.data_dir / "exports" / "walk.jsonl").read_bytes()
    other = tmp_path / "other.txt"
    other.write_bytes(b"mine\n")
    refused(broker, 2, "INVALID_ARGUMENT", "audit", "export", "--to", str(other))
    assert other.read_bytes() == b"mine\n"


def test_an_export_over_json_rpc_stays_in_the_data_directory(broker: BrokerProcess) -> None:
    there = broker.data_dir / "exports" / "once.parquet"
    assert broker.ask("objects.export", topic="logs", to="once.parquet")["path"] == str(there)
    assert pq.read_table(there).num_rows == len(LINES)
    for outside in ("/tmp/anywhere.parquet", "../up.parquet", ".."):
        assert (
            wrong(broker, "INVALID_ARGUMENT", "objects.export", topic="logs", to=outside)["details"]["field"]
            == "to"
        )


def test_a_replay_copies_a_range_and_says_of_each_what_it_is_a_copy_of(broker: BrokerProcess) -> None:
    words = ("topics", "replay", "logs", "--from", "offset:2990", "--to", "again")
    said = broker.json_command(*words)
    of_the_call = ("call_id", "plan_id", "undo_until", "undo_until_reason")
    assert {name: value for name, value in said.items() if name not in of_the_call} == {
        "topic": "/default/logs",
        "to": "/default/again",
        "messages": 10,
        "ranges": [{"topic": "/default/again", "messages": 10, "first_offset": 0, "last_offset": 9}],
    }
    done = broker.command("consume", "again", "--exit", "--json")
    copies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [copy["payload"].encode() for copy in copies] == LINES[2990:]
    assert [copy["attributes"]["x-replayed-from"] for copy in copies] == [
        f"/default/logs@{offset}" for offset in range(2990, 3000)
    ]
    more = broker.ask("topics.replay", topic="logs", to="again", **{"from": "offset:0", "until": "offset:5"})
    assert more["ranges"][0]["first_offset"] == 10
    assert broker.json_command(*words, "--dry-run")["blast_radius"]["messages"] == 10
    assert broker.ask("topics.describe", topic="again")["messages"] == 15


def test_partitions_are_replayed_one_by_one(broker: BrokerProcess) -> None:
    broker.command("produce", "many", "--partitions", "3", stdin=b"\n".join(LINES[:300]) + b"\n")
    assert broker.ask("topics.replay", topic="many", to="joined", **{"from": "earliest"})["messages"] == 300
    got = broker.command("consume", "joined", "--exit", "--format", "raw").stdout.splitlines()
    assert sorted(got) == sorted(LINES[:300])


def test_verify_and_status_name_what_runs(broker: BrokerProcess) -> None:
    tier = broker.status()["tier"]
    assert tier["work"] == []
    assert tier["objects_written"] >= 1


# -- bad input -----------------------------------------------------------------------------------------------


def test_positions_that_are_none_are_2_and_say_the_forms(broker: BrokerProcess) -> None:
    error = refused(broker, 2, "INVALID_ARGUMENT", "objects", "list", "logs", "--from", "yesterday")
    assert error["details"]["field"] == "from"
    for name, text in (("from", "42"), ("until", "time:soon"), ("from", "offset:999999")):
        error = wrong(broker, "INVALID_ARGUMENT", "objects.list", topic="logs", **{name: text})
        assert error["details"]["field"] == name


def test_a_format_with_json_is_2(broker: BrokerProcess) -> None:
    refused(broker, 2, "INVALID_ARGUMENT", "objects", "list", "logs", "--format", "paths")


def test_a_topic_that_is_not_there_is_1(broker: BrokerProcess) -> None:
    refused(broker, 1, "TOPIC_NOT_FOUND", "objects", "list", "nowhere", "--limit", "5")
    refused(broker, 1, "TOPIC_NOT_FOUND", "objects", "collect", "nowhere", "--yes")
    for method, more in (
        ("objects.verify", {}),
        ("objects.flush", {}),
        ("objects.compact", {}),
        ("objects.export", {"to": "x"}),
        ("topics.replay", {"from": "earliest", "to": "elsewhere"}),
    ):
        wrong(broker, "TOPIC_NOT_FOUND", method, topic="nowhere", **more)
    wrong(broker, "TOPIC_NOT_FOUND", "topics.describe", topic="elsewhere")


def test_an_export_never_replaces_a_file_and_needs_a_folder(broker: BrokerProcess, tmp_path: Path) -> None:
    there = tmp_path / "there.parquet"
    there.write_bytes(b"years of work")
    refused(broker, 1, "ALREADY_EXISTS", "objects", "export", "logs", "--to", str(there))
    assert there.read_bytes() == b"years of work"
    missing = str(tmp_path / "no" / "x.parquet")
    error = refused(broker, 2, "INVALID_ARGUMENT", "objects", "export", "logs", "--to", missing)
    assert error["details"]["field"] == "to"
    wrong(broker, "INVALID_ARGUMENT", "objects.export", topic="logs", to="x", format="csv")
    wrong(broker, "INVALID_ARGUMENT", "objects.export", topic="logs")
    assert list(tmp_path.iterdir()) == [there]


def test_a_replay_into_itself_or_into_a_topic_that_keeps_nothing_is_refused(broker: BrokerProcess) -> None:
    refused(broker, 2, "INVALID_ARGUMENT", "topics", "replay", "logs", "--from", "earliest", "--to", "logs")
    broker.ask("topics.create", topic="lossy", dispatch_strategy="non_reliable")
    for to, code in (
        ("logs-part-1", "INVALID_ARGUMENT"),
        ("bad name!", "INVALID_NAME"),
        ("lossy", "DISPATCH_MISMATCH"),
    ):
        wrong(broker, code, "topics.replay", topic="logs", to=to, **{"from": "earliest"})
    wrong(broker, "INVALID_ARGUMENT", "topics.replay", topic="logs", to="again")
    assert broker.ask("topics.describe", topic="logs")["messages"] == len(LINES)


def test_collecting_without_yes_is_4_and_changes_nothing(broker: BrokerProcess) -> None:
    error = refused(broker, 4, "PLAN_REQUIRED", "objects", "collect", "logs")
    assert error["details"]["plan"]["operation"] == "objects.collect"


def test_a_damaged_and_a_missing_object_show_in_verify(broker: BrokerProcess) -> None:
    broker.command("produce", "harmed", "-m", "x", "--count", "100")
    wait_until(lambda: tiered(broker, "harmed") == 100)
    path = Path(items(broker, "harmed")[0]["path"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    damaged = broker.ask("objects.verify", topic="harmed")["damaged"]
    assert [Path(each["path"]).name for each in damaged] == [path.name]
    path.unlink()
    found = broker.ask("objects.verify", topic="harmed")
    assert (found["checked"], len(found["missing"]), found["damaged"]) == (1, 1, [])


def test_segment_descriptors_are_the_committed_objects(broker: BrokerProcess) -> None:
    import grpc
    from pydanube_core.generated import danube_pb2 as pb

    found = items(broker, "logs")
    with grpc.insecure_channel(broker.url.removeprefix("http://")) as channel:
        ask_for = channel.unary_unary(
            "/danube.StorageService/ListSegmentDescriptors",
            request_serializer=pb.ListSegmentDescriptorsRequest.SerializeToString,
            response_deserializer=pb.ListSegmentDescriptorsResponse.FromString,
        )
        listed = ask_for(pb.ListSegmentDescriptorsRequest(topic="/default/logs"), timeout=60).segments
        behind = ask_for(
            pb.ListSegmentDescriptorsRequest(
                topic="/default/logs", after_offset=found[-1]["start_offset"] or 1
            ),
            timeout=60,
        ).segments
    assert [(each.segment_id, each.start_offset, each.end_offset + 1, each.size) for each in listed] == [
        (item["path"], item["start_offset"], item["end_offset"], item["bytes"]) for item in found
    ], "the first object, which begins at 0, is among them"
    assert len(behind) == 0, "only what begins behind the offset"
