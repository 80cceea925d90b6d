"""`mqtt-source`: subscribe to an MQTT broker, 3.1.1 or 5, and publish each message.

The source subscribes with QoS 1 in a lasting session, and acknowledges a message after it is durable in the topic. The broker
delivers unacknowledged messages again, so delivery is at least once. QoS 2 is not used, because there the broker deletes its
copy at PUBREC, which paho sends before anything is stored. Messages that were sent with QoS 2 arrive with QoS 1.

paho reads the connection in a thread. While `max_waiting` messages wait, the thread reads no further, and so slows the broker.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

import anyio
from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from pydantic import Field, SecretStr, field_validator, model_validator
from pydanube_core.errors import InvalidArgument, PermissionDenied, Unauthenticated

from pydanube_connect.connector import Settings, Source
from pydanube_connect.records import Batch, Record, RetryLater

_WAIT_S: Final = 1.0  # seconds that one `read` waits for a message
_BATCH_MESSAGES: Final = 1_000
_ANSWER_S: Final = 10.0  # seconds that the broker has to answer CONNECT and SUBSCRIBE
_CREDENTIALS: Final = ("Bad user name or password", "Not authorized", "Bad authentication method")


class MqttSettings(Settings):
    """Settings of `mqtt-source`."""

    url: str = Field(description="mqtt://host:1883, or mqtts://host:8883 for TLS")
    subscribe: list[str] = Field(
        min_length=1, max_length=1_000, description="topic filters, also $share/GROUP/FILTER"
    )
    version: Literal["3.1.1", "5"] = Field(default="5", description="of the protocol")
    client_id: str | None = Field(
        default=None, max_length=200, description="names the session. Unset: danube-NAME"
    )
    username: str | None = Field(default=None)
    password: SecretStr | None = Field(default=None)
    ca: Path | None = Field(default=None, description="PEM file of the authority. Unset: the system's")
    cert: Path | None = Field(default=None, description="PEM file of this client's certificate")
    key: Path | None = Field(default=None, description="PEM file of its key")
    retained: bool = Field(
        default=True, description="whether messages that the broker retains are published too"
    )
    session_expiry_s: int = Field(
        default=604_800, ge=0, le=0xFFFFFFFE, description="how long MQTT 5 keeps messages while this is away"
    )
    keepalive_s: int = Field(default=60, ge=5, le=65_535)
    max_waiting: int = Field(
        default=1_000, ge=1, le=65_535, description="messages that are not acknowledged yet"
    )

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        found = urlsplit(url)
        if found.scheme not in ("mqtt", "mqtts") or not found.hostname or found.path not in ("", "/"):
            raise ValueError("write mqtt://host:port, or mqtts://host:port for TLS")
        if found.username is not None or found.password is not None:
            raise ValueError("write the credentials as username and password, not in the url")
        found.port  # noqa: B018  # raises ValueError
        return url

    @field_validator("subscribe")
    @classmethod
    def _are_filters(cls, filters: list[str]) -> list[str]:
        for one in filters:
            levels = one.split("/")
            wrong = [
                level
                for level in levels
                if ("+" in level and level != "+") or ("#" in level and level != "#")
            ]
            if not one or "\0" in one or wrong or "#" in levels[:-1]:
                raise ValueError(
                    f"{one!r} is no topic filter: + stands for a whole level, # for the last ones"
                )
            if levels[0] == "$share" and (len(levels) < 3 or not levels[1]):
                raise ValueError(f"{one!r}: a shared subscription is $share/GROUP/FILTER")
        return filters

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together")
        if urlsplit(self.url).scheme == "mqtt" and (self.ca or self.cert):
            raise ValueError("ca, cert and key are for TLS: write mqtts:// in url")
        if self.password is not None and self.username is None:
            raise ValueError("a password needs a username")
        return self


class MqttSource(Source[MqttSettings]):
    """Publishes the messages of its topic filters."""

    def __init__(self, settings: MqttSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        self._client: Client | None = None
        self._room = threading.Condition()
        self._new: deque[MQTTMessage] = deque()
        self._taken: dict[int, list[MQTTMessage]] = {}  # messages by the id of their batch
        self._lost: Exception | None = None
        self._closing = False
        self._arrived = anyio.Event()

    @property
    def waiting(self) -> int:
        """Messages that have arrived and are not read yet."""
        return len(self._new)

    async def open(self) -> None:
        await self._connect(self.settings.client_id or f"danube-{self.name}", lasting=True)
        await self._subscribe(self.settings.subscribe)

    async def check(self) -> list[str]:
        await self._connect(f"danube-{self.name}-check", lasting=False)
        return [f"{self.settings.url} takes the credentials"]

    async def sample(self, count: int) -> AsyncIterator[Batch]:
        # a session of its own, and none of the shared subscriptions, takes nothing from anyone
        await self._connect(f"danube-{self.name}-sample", lasting=False)
        await self._subscribe([_unshared(one) for one in self.settings.subscribe])
        while count > 0 and (batch := await self.read()) is not None:
            count -= len(batch)
            yield batch

    async def close(self) -> None:
        client, self._client = self._client, None
        with self._room:
            self._closing = True
            self._room.notify_all()
        if client is not None:
            client.disconnect()
            await anyio.to_thread.run_sync(client.loop_stop)
        self._new.clear()
        self._taken.clear()

    # -- reading ---------------------------------------------------------------------------------------------

    async def read(self) -> Batch | None:
        if not self._new and self._lost is None:
            self._arrived = anyio.Event()
            if not self._new:  # the thread may have put one before it saw the event
                with anyio.move_on_after(_WAIT_S):
                    await self._arrived.wait()
        if self._lost is not None:
            raise self._lost
        taken: list[MQTTMessage] = []
        with self._room:
            while self._new and len(taken) < _BATCH_MESSAGES:
                taken.append(self._new.popleft())
            self._room.notify_all()
        if not taken:
            return None
        batch = Batch([_record(message) for message in taken if self._is_wanted(message)])
        self._taken[id(batch)] = taken
        return batch

    async def stored(self, batch: Batch) -> None:
        taken = self._taken.pop(id(batch), ())
        # ids are of the connection: after its end another message may have them
        if self._client is not None and self._lost is None:
            for message in taken:
                self._client.ack(message.mid, message.qos)

    def _is_wanted(self, message: MQTTMessage) -> bool:
        return self.settings.retained or not message.retain

    # -- the connection --------------------------------------------------------------------------------------

    async def _connect(self, client_id: str, *, lasting: bool) -> None:
        settings = self.settings
        newer = settings.version == "5"
        client = Client(
            CallbackAPIVersion.VERSION2, client_id,
            protocol=MQTTv5 if newer else MQTTv311, clean_session=None if newer else not lasting,
            reconnect_on_failure=False, manual_ack=True,
        )  # fmt: skip
        if settings.username is not None:
            password = settings.password.get_secret_value() if settings.password is not None else None
            client.username_pw_set(settings.username, password)
        url = urlsplit(settings.url)
        if url.scheme == "mqtts":
            client.tls_set_context(self._tls())
        client.connect_timeout = _ANSWER_S
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        self._lost, self._closing = None, False

        def connected(_: Client, __: Any, ___: Any, reason: Any, ____: Any) -> None:
            loop.call_soon_threadsafe(_settle, answered, reason)

        def disconnected(_: Client, __: Any, ___: Any, reason: Any, ____: Any) -> None:
            loop.call_soon_threadsafe(self._end, client, str(reason))
            loop.call_soon_threadsafe(_settle, answered, reason)

        def arrived(_: Client, __: Any, message: MQTTMessage) -> None:
            with self._room:
                self._room.wait_for(lambda: len(self._new) < settings.max_waiting or self._closing)
                if self._closing:
                    return
                self._new.append(message)
            loop.call_soon_threadsafe(self._arrived.set)

        client.on_connect, client.on_disconnect, client.on_message = connected, disconnected, arrived
        properties = None
        if newer:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = settings.max_waiting
            properties.SessionExpiryInterval = settings.session_expiry_s if lasting else 0
        port = url.port or (8883 if url.scheme == "mqtts" else 1883)

        def dial() -> None:
            words: dict[str, Any] = {"clean_start": not lasting, "properties": properties} if newer else {}
            client.connect(str(url.hostname), port, settings.keepalive_s, **words)
            client.loop_start()

        try:
            await anyio.to_thread.run_sync(dial)
        except ssl.SSLError as error:
            raise RetryLater(
                reason=f"{settings.url} cannot be reached with TLS: {error}. Is settings.ca right?"
            ) from error
        except OSError as error:
            raise RetryLater(reason=f"{settings.url} cannot be reached: {error}") from error
        self._client = client
        reason = await _within(answered, f"{settings.url} did not answer")
        if reason.is_failure:
            raise self._refused(str(reason))

    def _tls(self) -> ssl.SSLContext:
        settings = self.settings
        try:
            context = _Tls(ssl.PROTOCOL_TLS_CLIENT)
            if settings.ca is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(settings.ca)
            if settings.cert is not None:
                context.load_cert_chain(settings.cert, settings.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(
                f"settings.ca, cert and key cannot be read: {error}. Give the paths of PEM files.",
                field="settings.ca", value=str(settings.ca),
            ) from error  # fmt: skip
        return context

    def _refused(self, reason: str) -> Exception:
        text = f"{self.settings.url} refuses the connection: {reason}"
        if reason in _CREDENTIALS:
            return Unauthenticated(f"{text}. Correct settings.username and settings.password.")
        if reason in ("Unsupported protocol version", "Client identifier not valid"):
            return InvalidArgument(
                f"{text}. Correct settings.version or settings.client_id.", field="settings", value=reason
            )
        return RetryLater(reason=text)

    def _end(self, client: Client, reason: str) -> None:
        if client is self._client and self._lost is None:
            self._lost = RetryLater(reason=f"the connection to {self.settings.url} ended: {reason}")
            self._arrived.set()

    async def _subscribe(self, filters: list[str]) -> None:
        client = self._client
        assert client is not None
        answered = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def subscribed(_: Client, __: Any, ___: int, reasons: list[Any], ____: Any) -> None:
            loop.call_soon_threadsafe(_settle, answered, reasons)

        client.on_subscribe = subscribed
        terms: list[Any] = [(one, 1) for one in filters]
        if self.settings.version == "5":
            # 1: retained messages only with a new subscription. 2: none
            handling = 1 if self.settings.retained else 2
            terms = [(one, SubscribeOptions(qos=1, retainHandling=handling)) for one in filters]
        client.subscribe(terms)
        reasons: list[Any] = await _within(answered, f"{self.settings.url} did not answer the subscription")
        for one, reason in zip(filters, reasons, strict=False):
            if reason.is_failure:
                raise PermissionDenied(
                    f"{self.settings.url} refuses the subscription {one!r}: {reason}. Grant it to the user, or correct "
                    "settings.subscribe.", field="settings.subscribe", value=one,
                )  # fmt: skip


class _Tls(ssl.SSLContext):
    """Closes a socket whose handshake fails. paho leaves it open."""

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*arguments, **{**options, "do_handshake_on_connect": True})


def _unshared(one: str) -> str:
    return one.split("/", 2)[2] if one.startswith("$share/") else one


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


async def _within(answered: asyncio.Future[Any], what: str) -> Any:
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await answered
    except TimeoutError:
        raise RetryLater(reason=f"{what} within {_ANSWER_S:.0f} s") from None


def _record(message: MQTTMessage) -> Record:
    try:
        topic = message.topic
    except UnicodeDecodeError:  # no broker that keeps to the protocol sends one
        topic = ""
    attributes = {"mqtt-topic": topic, "mqtt-qos": str(message.qos)}
    if message.retain:
        attributes["mqtt-retained"] = "true"
    properties: Mapping[str, Any] = vars(message.properties) if message.properties is not None else {}
    for name, attribute in (("ContentType", "content-type"), ("ResponseTopic", "mqtt-response-topic")):
        if name in properties:
            attributes[attribute] = properties[name]
    if "CorrelationData" in properties:
        attributes["mqtt-correlation"] = properties["CorrelationData"].hex()
    for name, value in properties.get("UserProperty", ()):
        attributes.setdefault(f"mqtt-user-{name}", value)
    return Record(bytes(message.payload), topic, attributes)
