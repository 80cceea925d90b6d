"""Settings: three sources in order, every mistake named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from pydanube_broker.settings.load import load_settings, variable_of
from pydanube_broker.settings.sections import Settings, SourceKind
from pydanube_core.errors import InsecureBind, InvalidArgument


def write(folder: Path, text: str) -> Path:
    file = folder / "danube.toml"
    file.write_text(text)
    return file


def problems(
    file: Path | None = None, env: dict[str, str] | None = None, **flags: object
) -> list[dict[str, object]]:
    with pytest.raises(InvalidArgument) as caught:
        load_settings(file, env, {name.replace("__", "."): value for name, value in flags.items()})
    found: list[dict[str, object]] = caught.value.details["problems"]
    return found


def test_defaults_are_those_of_the_interface() -> None:
    shown = {entry.name: entry.value for entry in Settings().entries()}
    assert shown["server.grpc_port"] == 6650
    assert shown["server.admin_port"] == 50051
    assert shown["server.metrics_port"] == 9040
    assert shown["server.http_port"] == 8765
    assert shown["data.min_free_bytes"] == "1GiB"
    assert shown["journal.segment_bytes"] == "64MiB"
    assert shown["journal.tail_cache_bytes"] == "128MiB"
    assert shown["topics.auto_create"] is True
    assert shown["topics.max_message_bytes"] == 4_000_000
    assert shown["delivery.max_unacked_messages"] == 1000
    assert shown["delivery.ack_timeout"] == "30s"
    assert shown["delivery.max_redelivery_count"] == 5
    assert shown["delivery.poison_policy"] == "block"
    assert shown["tier.flush_bytes"] == "32MiB"
    assert shown["tier.flush_age"] == "1m"
    assert shown["tier.object_bytes"] == "128MiB"
    assert shown["admin.plan_ttl"] == "10m"
    assert shown["admin.undo_grace"] == "1d"
    assert shown["admin.compat_destructive"] is True
    assert shown["diagnosis.stuck_after"] == "5m"
    assert shown["metrics.topic_series_limit"] == 1000
    assert sum(name.startswith("policies.") for name in shown) == 10
    assert all(entry.source.kind is SourceKind.DEFAULT for entry in Settings().entries())


def test_flags_win_over_environment_wins_over_file_and_each_says_so(tmp_path: Path) -> None:
    file = write(tmp_path, '[server]\nhost = "::1"\ngrpc_port = 1\nadmin_port = 1\n\nmetrics_port = 1\n')
    env = {"DANUBE_SERVER__GRPC_PORT": "2", "DANUBE_SERVER__ADMIN_PORT": "2"}
    settings = load_settings(file, env, {"server.grpc_port": 3})
    server = settings.server
    assert (server.grpc_port, server.admin_port, server.metrics_port, server.http_port) == (3, 2, 1, 8765)
    assert str(settings.source("server.grpc_port")) == "flag --grpc-port"
    assert str(settings.source("server.admin_port")) == "env DANUBE_SERVER__ADMIN_PORT"
    assert str(settings.source("server.metrics_port")) == f"{file}:6"
    assert str(settings.source("server.http_port")) == "default"


def test_flag_that_was_not_given_changes_nothing() -> None:
    settings = load_settings(None, {}, {"server.host": None})
    assert settings.server.host == "127.0.0.1"
    assert not settings.is_set("server.host")


def test_explicitly_setting_a_default_is_remembered(tmp_path: Path) -> None:
    file = write(tmp_path, '[data]\nmin_free_bytes = "1GiB"\n')
    assert load_settings(file).is_set("data.min_free_bytes")
    assert not load_settings(None).is_set("data.min_free_bytes")


def test_every_setting_can_be_given_by_its_variable_in_its_shown_form() -> None:
    entries = [entry for entry in Settings().entries() if entry.default is not None]
    env = {variable_of(entry.section, entry.key): str(entry.default) for entry in entries}
    again = load_settings(None, env)
    assert {e.name: e.value for e in again.entries()} == {e.name: e.value for e in Settings().entries()}
    assert all(again.is_set(entry.name) for entry in entries)


def test_durations_and_sizes_take_units() -> None:
    settings = load_settings(
        None, {"DANUBE_TIER__FLUSH_AGE": "100ms", "DANUBE_JOURNAL__RETENTION_BYTES": "1.5GiB"}
    )
    assert settings.tier.flush_age == pytest.approx(0.1)
    assert settings.journal.retention_bytes == 3 << 29


def test_memory_instead_of_a_directory() -> None:
    settings = load_settings(None, {}, {"data.dir": ":memory:"})
    assert settings.data.memory
    assert settings.data.dir is None


def test_misspelt_key_names_line_and_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, '# ports\n[server]\nhost = "127.0.0.1"\ngrpc_prot = 6651\n')
    [problem] = problems(file)
    assert problem["line"] == 4
    assert problem["suggestion"] == "grpc_port"
    assert problem["key"] == "server.grpc_prot"
    assert problem["source"] == f"{file}:4"


def test_misspelt_section_and_misplaced_key_are_pointed_out(tmp_path: Path) -> None:
    file = write(tmp_path, "[delvery]\nack_timeout = 5\n[topics]\nsegment_bytes = 1\n")
    first, second = problems(file)
    assert (first["suggestion"], first["line"]) == ("[delivery]", 2)
    assert (second["suggestion"], second["line"]) == ("journal.segment_bytes", 4)


def test_unknown_variable_is_an_error_and_suggests_a_variable() -> None:
    [problem] = problems(None, {"DANUBE_SERVER__HSOT": "x", "DANUBE_BROKER_URL": "http://elsewhere"})
    assert problem["suggestion"] == "DANUBE_SERVER__HOST"


@pytest.mark.parametrize("variable", ["DANUBE_LOG_LEVEL", "DANUBE_LOGLEVEL", "DANUBE_LOG_LEVL"])
def test_a_variable_without_the_double_underscore_is_an_error_too(variable: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{variable}: .*did you mean DANUBE_LOG__LEVEL") as caught:
        load_settings(env={variable: "debug"})
    assert caught.value.details["problems"][0]["suggestion"] == "DANUBE_LOG__LEVEL"


def test_variables_of_others_are_let_be() -> None:
    theirs = (
        "PORT",
        "SERVICE_HOST",
        "SERVICE_PORT_GRPC",
        "PORT_6650_TCP_ADDR",
        "SERVER_PORT_6650_TCP",
        "HOME",
    )
    ours = ("BROKER_URL", "ADMIN_ENDPOINT", "PRINCIPAL", "CLUSTERS", "DEBUG", "TEST_SMALL_SEGMENTS")
    load_settings(env={f"DANUBE_{name}": "x" for name in (*theirs, *ours)})


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, '[server]\ngrpc_port = 70000\n[log]\nlevel = "loud"\n')
    found = problems(file, {"DANUBE_TIER__FLUSH_AGE": "99ms"}, data__min_free_bytes="lots")
    assert {problem["key"] for problem in found} == {
        "server.grpc_port",
        "log.level",
        "tier.flush_age",
        "data.min_free_bytes",
    }
    assert not any("pydantic" in str(problem) for problem in found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server.grpc_port", True),
        ("server.grpc_port", 1.5),
        ("server.grpc_port", "-1"),
        ("delivery.ack_timeout", True),
        ("delivery.ack_timeout", "5 parsecs"),
        ("journal.segment_bytes", 1.5),
        ("journal.retention_age", "x"),
        ("tier.path_style", "maybe"),
        ("diagnosis.open_after", 0),
        ("server.host", ["127.0.0.1"]),
        ("mcp.confirm", "never"),
    ],
)
def test_value_of_the_wrong_kind_is_refused(name: str, value: object) -> None:
    [problem] = problems(None, None, **{name.replace(".", "__"): value})
    assert problem["key"] == name
    assert str(problem["message"]).startswith(f"{name}: ")


def test_file_that_is_not_toml_names_the_line(tmp_path: Path) -> None:
    [problem] = problems(write(tmp_path, "[server]\nhost = \n"))
    assert problem["line"] == 2


def test_keys_inside_texts_of_several_lines_do_not_move_the_line_numbers(tmp_path: Path) -> None:
    file = write(tmp_path, '[tier]\nregion = """\nurl = 1\n"""\nulr = "s3://x"\n')
    [problem] = problems(file)
    assert (problem["line"], problem["suggestion"]) == (5, "url")


def test_dotted_keys_and_inline_tables_find_their_line(tmp_path: Path) -> None:
    first, second = problems(write(tmp_path, "server.grpc_prt = 1\n\nlog = {levle = 'info'}\n"))
    assert (first["line"], first["suggestion"]) == (1, "grpc_port")
    assert (second["line"], second["suggestion"]) == (3, "level")


def test_missing_file_is_an_invalid_argument(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot read"):
        load_settings(tmp_path / "none.toml")


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValidationError):
        Settings().server.host = "0.0.0.0"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "broker.example.org"])
def test_public_host_is_refused_unless_asked_for(host: str) -> None:
    with pytest.raises(InsecureBind):
        load_settings(None, {}, {"server.host": host}).check_startable()
    load_settings(None, {}, {"server.host": host, "server.insecure_bind": True}).check_startable()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "[::1]"])
def test_loopback_host_may_start(host: str) -> None:
    load_settings(None, {}, {"server.host": host}).check_startable()


@pytest.mark.parametrize(
    ("given", "missing"),
    [("tls.cert", "tls.key"), ("tls.key", "tls.cert"), ("tls.client_ca", "tls.cert")],
)
def test_half_of_what_tls_needs_is_refused_not_ignored(given: str, missing: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_settings(None, {}, {given: "/etc/some.pem"}).check_startable()
    assert caught.value.details["field"] == missing


def test_an_advertised_address_has_the_scheme_of_the_port() -> None:
    pair = {"tls.cert": "/etc/cert.pem", "tls.key": "/etc/key.pem"}
    for given, words in (
        ({"server.advertised_url": "http://b.example.org:6650", **pair}, "speaks TLS"),
        ({"server.advertised_url": "https://b.example.org:6650"}, "speaks no TLS"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            load_settings(None, {}, given).check_startable()
    load_settings(None, {}, {"server.advertised_url": "https://b.example.org:6650", **pair}).check_startable()


def test_a_journal_file_that_could_not_take_a_large_batch_is_refused(tmp_path: Path) -> None:
    [problem] = problems(write(tmp_path, '[journal]\nsegment_bytes = "8MiB"\n'))
    assert (problem["key"], problem["value"], problem["line"]) == ("journal.segment_bytes", 8 << 20, 2)
    assert "at least 16 MiB" in str(problem["message"])
    for too_large in ("2GiB", "1025MiB"):
        [problem] = problems(write(tmp_path, f'[journal]\nsegment_bytes = "{too_large}"\n'))
        assert "at most 1 GiB" in str(problem["message"])
    [problem] = problems(env={"DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB"})
    assert problem["source"] == "env DANUBE_JOURNAL__SEGMENT_BYTES"
    assert load_settings(env={"DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB"}).journal.segment_bytes == 16 << 20
    # tests of processes say so, code sets what it likes
    small = {"DANUBE_JOURNAL__SEGMENT_BYTES": "1MiB", "DANUBE_TEST_SMALL_SEGMENTS": "1"}
    assert load_settings(env=small).journal.segment_bytes == 1 << 20
    assert load_settings(overrides={"journal.segment_bytes": "1MiB"}).journal.segment_bytes == 1 << 20


def test_topics_are_taken_over_only_with_a_copy_of_the_journal() -> None:
    given = {"cluster.on_loss": "take_over"}
    with pytest.raises(InvalidArgument, match="needs journal"):
        load_settings(None, {}, given).check_startable()
    load_settings(None, {}, {**given, "journal.copy": True}).check_startable()


def test_topics_are_stored_by_default_only_with_an_object_store() -> None:
    given = {"policies.durability": "stored"}
    with pytest.raises(InvalidArgument, match="object store"):
        load_settings(None, {}, given).check_startable()
    load_settings(None, {}, {**given, "tier.url": "file:///objects"}).check_startable()
