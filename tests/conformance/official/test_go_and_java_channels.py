"""The libraries under the official Go and Java clients, grpc-go and grpc-java, over TLS with a token.

The clients themselves are in no registry that can be reached from here. What they do about locks is little: a channel with
the authority's certificate, `AuthService/Authenticate` with the API key, and the token of its answer with each call. The
programs under `channels/` open such channels; the calls of a client's life are made by the test. TLS there is Go's own and
Netty's, neither of which is OpenSSL as in the broker and in the other clients.
"""

from __future__ import annotations

import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest
from google.protobuf.message import Message
from pydanube_core.generated import danube_pb2 as pb

from tests.conformance.grpc.go_tools import go_program
from tests.conformance.official.locked import Locked
from tests.support.pinned_packages import TOOLS

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first of each builds its program

SOURCES: Final = Path(__file__).with_name("channels")
PATIENCE_S: Final = 90.0


class Refused(Exception):
    """A call ended with a status that is not OK."""


class Channel:
    """One running program; it ends with the block."""

    def __init__(self, program: Sequence[str], target: str, ca: str) -> None:
        self.token = "-"
        self._process = subprocess.Popen(
            [*program, target, ca], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def call(self, method: str, request: Message, *answers: Message) -> None:
        """Make the call `danube.METHOD`; `answers` are filled with the first messages that come. Raises `Refused`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        hexes = request.SerializeToString().hex()
        self._process.stdin.write(f"danube.{method} {len(answers)} {self.token} {hexes}\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], PATIENCE_S)[0], f"{method}: no answer"
        verdict, _, rest = self._process.stdout.readline().strip().partition(" ")
        if verdict != "ok":
            raise Refused(rest)
        for answer, found in zip(answers, rest.split(" "), strict=True):
            answer.ParseFromString(bytes.fromhex(found))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def java_program() -> list[str]:
    if not all(shutil.which(each) for each in ("java", "javac", "mvn")):
        pytest.skip("NOT RUN: grpc-java needs Java and Maven, and they are not here")
    folder, source = TOOLS / "java-channel", SOURCES / "java"
    libraries = folder / "lib"
    if not any(libraries.glob("grpc-stub-*.jar")):
        words = ["mvn", "-q", "-B", "-f", str(source), "dependency:copy-dependencies", f"-DoutputDirectory={libraries}"]  # fmt: skip
        fetched = subprocess.run(words, capture_output=True, text=True, check=False)
        if fetched.returncode:
            pytest.skip(f"NOT RUN: grpc-java cannot be fetched: {fetched.stdout.strip()[-300:]}")
    words = ["javac", "-cp", f"{libraries}/*", "-d", str(folder), str(source / "Channel.java")]
    subprocess.run(words, check=True)
    return ["java", "-Xmx256m", "-cp", f"{folder}:{libraries}/*", "Channel"]


@pytest.fixture(scope="module", params=["go", "java"])
def program(request: pytest.FixtureRequest) -> list[str]:
    return [str(go_program("channel", SOURCES / "go"))] if request.param == "go" else java_program()


@pytest.fixture
def channel(program: list[str], locked: Locked) -> Iterator[Channel]:
    target = locked.broker.url.removeprefix("https://")
    with Channel(program, target, locked.ca) as opened:
        yield opened


def test_messages_pass_for_the_token_that_an_api_key_is_given(
    channel: Channel, locked: Locked, topic: str
) -> None:
    given = pb.AuthResponse()
    channel.call("AuthService/Authenticate", pb.AuthRequest(api_key=locked.token), given)
    channel.token = given.token
    producer, consumer, stored = pb.ProducerResponse(), pb.ConsumerResponse(), pb.MessageResponse()
    reliable = pb.DispatchStrategy.Value("Reliable")
    channel.call(
        "ProducerService/CreateProducer",
        pb.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=reliable),
        producer,
    )
    found = pb.TopicLookupResponse()
    channel.call("Discovery/TopicLookup", pb.TopicLookupRequest(topic=topic), found)
    assert found.broker_url.startswith("https://")  # TLS with whoever is named there, too
    channel.call(
        "ConsumerService/Subscribe",
        pb.ConsumerRequest(
            topic_name=topic, consumer_name="c", subscription="s", subscription_type="Exclusive"
        ),
        consumer,
    )
    for payload in (b"a", b"b" * 100_000):  # the second is longer than a record of TLS
        msg_id = pb.MsgID(producer_id=producer.producer_id, topic_name=topic, broker_addr=found.broker_url)
        message = pb.StreamMessage(msg_id=msg_id, payload=payload, publish_time=int(time.time() * 1000))
        channel.call("ProducerService/SendMessage", message, stored)
    came: list[Any] = [pb.StreamMessage(), pb.StreamMessage()]
    channel.call(
        "ConsumerService/ReceiveMessages", pb.ReceiveRequest(consumer_id=consumer.consumer_id), came[0]
    )
    assert came[0].payload == b"a"
    acked = pb.AckRequest(msg_id=came[0].msg_id, subscription_name="s")
    channel.call("ConsumerService/Ack", acked, pb.AckResponse())
    channel.call(
        "ConsumerService/ReceiveMessages", pb.ReceiveRequest(consumer_id=consumer.consumer_id), came[1]
    )
    assert came[1].payload == b"b" * 100_000


def test_who_shows_nothing_or_may_not_is_told_so(channel: Channel, locked: Locked, topic: str) -> None:
    request = pb.ProducerRequest(producer_name="p", topic_name=topic)
    with pytest.raises(Refused, match=r"(?i)^unauthenticated"):
        channel.call("ProducerService/CreateProducer", request, pb.ProducerResponse())
    with pytest.raises(Refused, match=r"(?i)^unauthenticated"):
        channel.call("AuthService/Authenticate", pb.AuthRequest(api_key="danube_x_y"), pb.AuthResponse())
    channel.token = locked.stranger
    with pytest.raises(Refused, match=r"(?i)^permission_?denied"):
        channel.call("ProducerService/CreateProducer", request, pb.ProducerResponse())


def test_a_broker_whose_name_or_authority_is_not_proven_is_sent_nothing(
    program: list[str], locked: Locked, topic: str, tmp_path: Path
) -> None:
    port = locked.broker.url.rpartition(":")[2]
    other = tmp_path / "ca.crt"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-days", "2"]
    subprocess.run(
        [*make, "-keyout", str(tmp_path / "k"), "-out", str(other)], check=True, capture_output=True
    )
    request = pb.AuthRequest(api_key=locked.token)
    for target, ca in ((f"127.0.0.2:{port}", locked.ca), (f"127.0.0.1:{port}", str(other))):
        with Channel(program, target, ca) as unproven, pytest.raises(Refused, match=r"(?i)^unavailable"):
            unproven.call("AuthService/Authenticate", request, pb.AuthResponse())
