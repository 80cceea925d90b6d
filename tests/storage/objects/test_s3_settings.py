"""How a broker reaches S3: credentials of every kind, encryption, and secrets that no message shows."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydanube_core.errors import InvalidArgument, StoreUnavailable
from pydanube_storage.objects import ObjectStore, StoreOptions, open_store

from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, running_s3_server

pytest.importorskip("s3fs")

ROLE = "arn:aws:iam::123456789012:role/danube"


def round_trip(store: ObjectStore) -> None:
    try:
        store.put("a/b", b"0123456789")
        assert store.read("a/b", 2, 5) == b"234"
        assert [fact.key for fact in store.list("a")] == ["a/b"]
        store.delete("a/b")
    finally:
        store.close()


@pytest.fixture
def without_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No credentials in the environment, none in files, no machine to ask."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


def test_a_profile_gives_the_keys(
    s3_server: S3Server, without_keys: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text(
        f"[danube]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    round_trip(open_store(s3_server.options("by-profile", profile="danube")))
    with pytest.raises(StoreUnavailable, match=r"tier\.profile"):
        round_trip(open_store(s3_server.options("by-profile", timeout_s=0.5)))


def test_a_public_store_is_asked_without_credentials(
    tmp_path: Path, without_keys: pytest.MonkeyPatch
) -> None:
    with running_s3_server(tmp_path / "public", public=True) as server:
        without_keys.delenv("AWS_ACCESS_KEY_ID", raising=False)
        without_keys.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
        round_trip(open_store(server.options("open", anonymous=True)))


class Sts(http.server.BaseHTTPRequestHandler):
    """The one call of a token service that taking on a role needs."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        body = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{ACCESS_KEY}</AccessKeyId><SecretAccessKey>{SECRET_KEY}</SecretAccessKey>"
            "<SessionToken>token</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
            f"<AssumedRoleUser><Arn>{ROLE}</Arn><AssumedRoleId>x</AssumedRoleId></AssumedRoleUser>"
            "</AssumeRoleResult></AssumeRoleResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def sts() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Sts)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_role_is_taken_on_with_the_keys_of_the_environment(
    s3_server: S3Server, without_keys: pytest.MonkeyPatch, sts: str
) -> None:
    without_keys.setenv("AWS_ACCESS_KEY_ID", "only-to-ask-for-the-role")
    without_keys.setenv("AWS_SECRET_ACCESS_KEY", "x")
    without_keys.setenv("AWS_ENDPOINT_URL_STS", sts)
    without_keys.setenv("AWS_DEFAULT_REGION", "us-east-1")
    round_trip(open_store(s3_server.options("by-role", role=ROLE)))
    assert "role%2Fdanube" in Sts.asked[-1]


def test_what_is_written_asks_for_encryption(s3_server: S3Server) -> None:
    with FaultyProxy(s3_server.endpoint) as proxy:
        for encryption, key in (("AES256", None), ("aws:kms", "some-key")):
            options = StoreOptions(
                url=f"s3://{BUCKET}/encrypted",
                endpoint=proxy.endpoint,
                region="us-east-1",
                path_style=True,
                encryption=encryption,
                kms_key=key,
            )
            round_trip(open_store(options))
            written = proxy.headers[-1]
            assert written["x-amz-server-side-encryption"] == encryption
            assert written.get("x-amz-server-side-encryption-aws-kms-key-id") == key


def test_settings_that_contradict_each_other_are_refused() -> None:
    for wrong in ({"anonymous": True, "role": ROLE}, {"anonymous": True, "profile": "p"}, {"kms_key": "k"}):
        with pytest.raises(InvalidArgument) as caught:
            StoreOptions(url="s3://bucket/p", **wrong)  # type: ignore[arg-type]
        assert caught.value.details["field"].startswith("tier.")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("endpoint", "s3.example.org"),
        ("endpoint", "http://"),
        ("endpoint", "ftp://s3.example.org"),
        ("endpoint", "http://s3.example.org:99999"),
        ("endpoint", "http://s3.example.org:0"),
        ("region", "eu central"),
        ("region", "-eu"),
        ("region", "123"),
        ("role", "danube"),
        ("role", "arn:aws:iam::12:role/x"),
        ("profile", "nobody"),
        ("url", "s3://b!/p"),
        ("url", "s3://../p"),
        ("url", f"s3://{'b' * 64}/p"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_without_the_network(
    setting: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("\ufeff[default]\n[profile danube]\nregion = eu\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    StoreOptions(
        url="s3://bucket/p", endpoint="https://[::1]:9000", region="eu-1", role=ROLE, profile="danube"
    )
    with pytest.raises(InvalidArgument) as caught:
        StoreOptions(**{"url": "s3://bucket/p", setting: value})  # type: ignore[arg-type]
    assert caught.value.details["field"] == f"tier.{setting}"
    assert "write" in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_PROFILE", "nobody"),
        ("AWS_ENDPOINT_URL", "s3.example.org"),
        ("AWS_ENDPOINT_URL_S3", "http://s3.example.org:99999"),
        ("AWS_DEFAULT_REGION", "eu central"),
        ("AWS_ACCESS_KEY_ID", "key-without-secret"),
    ],
)
def test_a_variable_that_cannot_work_is_refused_unless_a_setting_stands_for_it(
    name: str, value: str, without_keys: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile danube]\n")
    StoreOptions(url="s3://bucket/p")
    without_keys.setenv(name, value)
    with pytest.raises(InvalidArgument, match=name) as caught:
        StoreOptions(url="s3://bucket/p")
    assert caught.value.details["field"] == "tier.url"
    StoreOptions(url="s3://bucket/p", endpoint="http://[::1]:9000", region="eu", profile="danube")


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("credential_process = /nowhere/tool", "file"),
        (f"role_arn = {ROLE}\nsource_profile = nobody", "profile"),
        ("aws_access_key_id = x", "keys"),
        (f"role_arn = {ROLE}\nweb_identity_token_file = /nowhere/token", "file"),
    ],
)
def test_credentials_that_cannot_be_had_are_no_missing_object(
    profile: str, says: str, s3_server: S3Server, without_keys: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(f"[profile danube]\n{profile}\n")
    store = open_store(s3_server.options("none", profile="danube"))
    calls: list[Callable[[], object]] = [
        lambda: store.read("k", 0, 1),
        lambda: store.size("k"),
        lambda: list(store.list("")),
        lambda: store.folders(""),
        lambda: store.delete("k"),
        lambda: store.create("k", b"x"),
        lambda: store.put("k", b"x"),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert says in caught.value.details["remedy"]
    store.close()


def test_a_missing_bucket_is_no_empty_store(s3_server: S3Server) -> None:
    options = replace(s3_server.options("p"), url="s3://no-such-bucket/p")
    store = open_store(options)
    for call in (lambda: list(store.list("")), lambda: store.folders(""), lambda: store.read("k", 0, 1)):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert "make the bucket no-such-bucket" in caught.value.details["remedy"]
    store.close()


@pytest.fixture
def clouds_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No account or key of Google or Azure in the environment."""
    for name in (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_ACCOUNT_NAME",
    ):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("options", "environment", "field"),
    [
        ({"url": "gs://Bucket/p"}, {}, "tier.url"),
        ({"url": "gs://b/p"}, {}, "tier.url"),
        ({"url": "gs://bucket/p", "endpoint": "storage.example.org"}, {}, "tier.endpoint"),
        ({"url": "gs://bucket/p"}, {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/key.json"}, "tier.url"),
        ({"url": "gs://bucket/p"}, {"GOOGLE_APPLICATION_CREDENTIALS": "/dev/null"}, "tier.url"),
        ({"url": "az://container/p"}, {}, "tier.url"),
        ({"url": "az://container/p"}, {"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=x"}, "tier.url"),
        ({"url": "az://Container/p"}, {"AZURE_STORAGE_ACCOUNT_NAME": "a"}, "tier.url"),
        ({"url": "az://con--tainer/p"}, {"AZURE_STORAGE_ACCOUNT_NAME": "a"}, "tier.url"),
    ],
)
def test_a_setting_of_google_or_azure_that_cannot_work_is_refused_without_the_network(
    options: dict[str, str], environment: dict[str, str], field: str, clouds_environment: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        clouds_environment.setenv(name, value)
    with pytest.raises(InvalidArgument, match="cannot work") as caught:
        StoreOptions(**options)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field
    assert "write" in caught.value.message


def test_settings_of_google_and_azure_that_may_work_are_taken(
    clouds_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account"}')
    StoreOptions(url="gs://bucket.example.org/p")
    clouds_environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    StoreOptions(url="gs://bucket/p", endpoint="http://127.0.0.1:1")
    clouds_environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    StoreOptions(url="gs://bucket/p", anonymous=True)
    for connection in (
        "UseDevelopmentStorage=true",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=b;EndpointSuffix=core.windows.net",
        "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;SharedAccessSignature=s",
    ):
        clouds_environment.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        StoreOptions(url="az://container/p")
        StoreOptions(url="az://$root/p")


def test_a_setting_that_a_kind_of_store_does_not_have_is_refused(
    clouds_environment: pytest.MonkeyPatch,
) -> None:
    clouds_environment.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    StoreOptions(url="gs://bucket/p", endpoint="http://127.0.0.1:1", anonymous=True)
    StoreOptions(url="az://container/p", anonymous=True)
    for url, field, value in (
        ("gs://bucket/p", "region", "eu"),
        ("gcs://bucket/p", "profile", "p"),
        ("az://container/p", "endpoint", "http://127.0.0.1:1"),
        ("abfs://container/p", "role", ROLE),
    ):
        with pytest.raises(InvalidArgument, match="is not for") as caught:
            StoreOptions(url=url, **{field: value})  # type: ignore[arg-type]
        assert caught.value.details["field"] == f"tier.{field}"


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.HANG, Fault.CUT_BODY])
def test_a_bad_day_is_a_typed_error_in_time_and_no_secret_is_said(
    s3_server: S3Server, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with FaultyProxy(s3_server.endpoint) as proxy:
        options = StoreOptions(
            url=f"s3://{BUCKET}/bad-day",
            endpoint=proxy.endpoint,
            region="us-east-1",
            path_style=True,
            timeout_s=1.0,
        )
        store = open_store(options)
        store.put("k", b"0123456789")
        proxy.fault = fault
        with pytest.raises(StoreUnavailable) as caught:
            store.read("k", 0, 10)
        assert proxy.struck
        details = caught.value.details
        assert (details["bucket"], details["key"]) == (BUCKET, "k")
        assert details["cause"]
        assert details["remedy"]
        proxy.fault = None
        assert store.read("k", 0, 10) == b"0123456789"
        store.close()
    # What the library itself logs at debug level is not ours; a broker's log begins at info.
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("pydanube")]
    assert SECRET_KEY not in caught.value.to_json() + " ".join(ours)
