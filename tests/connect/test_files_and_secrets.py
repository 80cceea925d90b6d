"""A connector's file is checked whole; each mistake is one sentence with file, key, value and remedy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydanube_connect.file import declared, read_file
from pydanube_connect.references import References
from pydanube_connect.running import clean_error, read_files
from pydanube_core.errors import ClusterError, InvalidArgument, MissingExtra

GOOD = {"name": "a", "connector": "http-sink", "topic": "t", "settings": {"url": "http://x/"}}


def refused(**changes: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        declared(GOOD | changes, path="a.toml")
    return caught.value


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'name = "a"\nconnector = "http-sink"\ntopics = ["t", "/ns/u"]\n[settings]\nurl = "http://x/"\n'
        '[delivery]\nbatch_age = "250ms"\nbatch_bytes = "1MiB"\non_error = "dead_letter"\n[shape]\nselect = ["id"]\n'
    )
    found = read_file(file)
    assert found.topics == ("/default/t", "/ns/u")
    assert (found.delivery.batch_age, found.delivery.batch_bytes) == (0.25, 1 << 20)
    assert found.subscription == "connect-a"


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"settings": {"url": "http://x/", "metod": "PUT"}}, "settings.metod", "Did you mean method?"),
        ({"settings": {"url": "http://x/", "method": "GET"}}, "settings.method", "'GET'"),
        ({"settings": {}}, "settings.url", "Add url"),
        ({"settings": {"url": "ftp://x"}}, "settings.url", "begins with http://"),
        ({"delivery": {"on_eror": "stop"}}, "delivery.on_eror", "Did you mean on_error?"),
        ({"delivery": {"batch_size": 0}}, "delivery.batch_size", "= 0"),
        ({"delivery": {"batch_size": "many"}}, "delivery.batch_size", "'many'"),
        ({"delivery": {"batch_age": "soon"}}, "delivery.batch_age", "90s"),
        ({"shape": {"select": ["a"], "drop": ["b"]}}, "shape", "exclude each other"),
        ({"shape": {"topic": "x"}}, "shape.topic", "Remove it from a sink"),
        ({"connector": "http-snik"}, "connector", "Did you mean http-sink?"),
        ({"connector": "json:JSONDecoder"}, "connector", "Derive the class"),
        ({"connector": "nowhere:Sink"}, "connector", "nowhere"),
        ({"topic": None}, "topic", 'Add topic = "orders"'),
        ({"topic": "/a/b/c"}, "topic", "/a/b/c"),
        ({"topic": {"name": "t", "partitions": 2}}, "topic", "a sink reads one"),
        ({"topics": ["u"]}, "topics", "exclude each other"),
        ({"name": "no spaces"}, "name", "no spaces"),
        ({"extra": 1}, "extra", "unknown key"),
    ],
)
def test_a_mistake_names_file_key_and_remedy(changes: dict[str, Any], key: str, said: str) -> None:
    error = refused(**changes)
    assert error.details["field"] == key
    assert error.message.startswith("a.toml: ")
    assert key.rpartition(".")[2] in error.message
    assert said in error.message
    assert "\n" not in error.message


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "b.toml"
    broken.write_text('topic = "t"\n[topic]\npartitions = 3\n')
    with pytest.raises(InvalidArgument, match="one table"):
        read_file(broken)
    with pytest.raises(InvalidArgument, match="No such file"):
        read_file(tmp_path / "none.toml")
    twice = tmp_path / "c.toml"
    twice.write_text('name = "a"\nconnector = "http-sink"\ntopic = "t"\n[settings]\nurl = "http://x"\n')
    with pytest.raises(InvalidArgument, match="both declare a"):
        read_files([str(twice), str(twice)])


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("httpx", "pydanube_connect.http"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match="connect-http") as caught:
        declared(GOOD, path="a.toml")
    assert "a.toml" in caught.value.message


def test_references_are_resolved_and_their_values_removed_from_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("API_HOST", "internal.example")
    (tmp_path / "key").write_text("s3cret-value\n")
    found = declared(
        GOOD
        | {
            "settings": {
                "url": "http://${env:API_HOST}/",
                "headers": {"X-Key": f"k ${{file:{tmp_path}/key}}"},
            }
        },
        path="a.toml",
    )
    assert found.settings.url == "http://internal.example/"
    assert found.settings.headers == {"X-Key": "k s3cret-value"}
    error = clean_error(ValueError("refused: s3cret-value at internal.example"), found)
    assert "s3cret" not in str(error) + repr(error.details)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "s3cret" not in repr(found.references)
    with caplog.at_level(logging.DEBUG):
        assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [("${env:NOT_THERE}", "the environment has no NOT_THERE"), ("${file:/none}", "/none cannot be read"),
     ("${vault:x}", "is no reference"), ("${PATH}", "is no reference")],
)  # fmt: skip
def test_a_reference_to_nothing_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ClusterError, match=r"a\.toml: settings\.headers\.k") as caught:
        References().resolve({"headers": {"k": text}}, file="a.toml", field="settings")
    assert said in caught.value.message


def test_a_wrong_secret_is_not_shown() -> None:
    error = refused(connector="webhook-source", settings={"listen": "127.0.0.1:0", "token": ["s3cret-value"]})
    assert "s3cret" not in str(error) + repr(error.details)
