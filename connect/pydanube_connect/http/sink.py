"""`http-sink`: write records to an HTTP API.

With one record per request, delivery is idempotent: `Idempotency-Key` is the record's topic, partition and offset. With
a batch per request, delivery is at least once, because a retry may divide the records into other batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final, Literal
from zlib import crc32

import anyio
import httpx
from pydantic import Field, field_validator
from pydanube_core.errors import ClusterError, InvalidArgument, Unauthenticated

from pydanube_connect.connector import PREVIEW_CHARS, Guarantee, Settings, Sink
from pydanube_connect.http.templates import Fill, body_template, text_template
from pydanube_connect.records import Batch, Record, Refused, RetryLater
from pydanube_connect.values import json_payload

#: HTTP statuses that a retry may change
_LATER: Final = frozenset({408, 409, 423, 425, 429})
#: HTTP statuses that concern the address and so every record, unless the record is part of the address
_ADDRESS: Final = frozenset({404, 405, 410, 501})
_SHOWN_CHARS: Final = 200


class HttpSettings(Settings):
    """Settings of `http-sink`."""

    url: str = Field(description="http:// or https://, with fields in braces: https://api/items/{id}")
    method: Literal["POST", "PUT", "PATCH"] = Field(default="POST", description="of requests with a body")
    delete_method: Literal["DELETE", "POST", "PUT", "PATCH"] | None = Field(
        default=None,
        description="of records without a value (deletions), sent without a body. Unset: the body is null",
    )
    headers: dict[str, str] = Field(default={}, description="added to each request. Secrets as ${env:NAME}")
    body: dict[str, Any] | str | None = Field(
        default=None,
        description="a table with fields in braces, sent as JSON, or a text. Unset: the value as JSON",
    )
    batch: Literal["one", "array", "lines"] = Field(
        default="one", description="one record a request, or a batch as a JSON array or as JSON lines"
    )
    concurrent: int = Field(
        default=1, ge=1, le=64, description="requests at a time. Records of one key stay in order"
    )
    timeout_s: float = Field(default=30.0, gt=0, le=3600, description="of one request")
    ca: str | None = Field(default=None, description="file of the authority of an https:// address, in PEM")
    html: bool = Field(
        default=False, description="accept answers in HTML. Otherwise they count as a wrong address"
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not re.match(r"https?://[^/\s{]", url):
            raise ValueError("the address begins with http:// or https:// and a host")
        text_template(url)
        return url


class HttpSink(Sink[HttpSettings]):
    """Sends records as requests."""

    decodes: ClassVar[bool] = True

    def __init__(self, settings: HttpSettings, *, name: str) -> None:
        super().__init__(settings, name=name)
        self._url = text_template(settings.url, in_url=True)
        self._body: Fill | None = None
        if isinstance(settings.body, str):
            text = text_template(settings.body)
            self._body = text if callable(text) else lambda _: text
        elif settings.body is not None:
            self._body = body_template(settings.body)
        if settings.batch != "one" and (callable(self._url) or isinstance(settings.body, str)):
            raise InvalidArgument(
                f'settings.batch = "{settings.batch}" sends many records to one address: write an url without fields and a '
                'body as a table, or batch = "one"', field="settings.batch", value=settings.batch,
            )  # fmt: skip
        self._client: httpx.AsyncClient | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.IDEMPOTENT if self.settings.batch == "one" else Guarantee.AT_LEAST_ONCE

    async def open(self) -> None:
        settings = self.settings
        try:
            verify: Any = httpx.create_ssl_context(verify=settings.ca) if settings.ca else True
        except OSError as error:
            raise InvalidArgument(
                f"settings.ca = {settings.ca!r} cannot be read: {error.strerror}. Give a file in PEM.",
                field="settings.ca", value=settings.ca,
            ) from None  # fmt: skip
        self._client = httpx.AsyncClient(
            headers=settings.headers, timeout=settings.timeout_s, verify=verify,
            limits=httpx.Limits(max_connections=settings.concurrent, max_keepalive_connections=settings.concurrent),
        )  # fmt: skip
        if not callable(self._url):
            self._judge_address(await self._sent("HEAD", self._url, None, {}))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def check(self) -> list[str]:
        await self.open()
        where = httpx.URL(self.settings.url.partition("{")[0])
        return [f"{where.scheme}://{where.netloc.decode()} answers"] if not callable(self._url) else []

    # -- writing ---------------------------------------------------------------------------------------------

    async def write(self, batch: Batch) -> None:
        if self.settings.batch != "one":
            await self._write_together(batch.records)
            return
        outcomes = _Outcomes()
        lists: list[list[Record]] = [[] for _ in range(self.settings.concurrent)]
        for record in batch.records:
            key = record.key.encode() if record.key is not None else str(record.offset).encode()
            lists[crc32(key) % len(lists)].append(record)
        async with anyio.create_task_group() as tasks:
            for records in filter(None, lists):
                tasks.start_soon(self._write_each, records, outcomes)
        outcomes.judge()

    async def _write_each(self, records: Sequence[Record], outcomes: _Outcomes) -> None:
        for record in records:
            try:
                await self._write_one(record)
                outcomes.written.append(record)
            except Refused as refused:
                outcomes.refused.append((record, refused.reason))
            except (RetryLater, ClusterError) as error:  # the records behind it wait, to keep their order
                outcomes.failure = outcomes.failure or error
                return

    async def _write_one(self, record: Record) -> None:
        url = self._url(record) if callable(self._url) else self._url
        method, content = self._content(record)
        answer = await self._sent(method, url, content, {"Idempotency-Key": record.id})
        why = self._judge(answer)
        if why is not None:
            raise Refused([record], why)

    def _content(self, record: Record) -> tuple[str, bytes | None]:
        settings = self.settings
        if record.value is None and settings.delete_method is not None:
            return settings.delete_method, None
        value = record.value if self._body is None else self._body(record)
        text = value if isinstance(value, str | bytes) else json_payload(value)
        return settings.method, text.encode() if isinstance(text, str) else text

    async def _write_together(self, records: Sequence[Record]) -> None:
        assert not callable(self._url)
        values = [record.value if self._body is None else self._body(record) for record in records]
        if self.settings.batch == "lines":
            content = b"".join(json_payload(value) + b"\n" for value in values)
        else:
            content = json_payload(values)
        answer = await self._sent(
            self.settings.method, self._url, content, {"Idempotency-Key": records[0].id}
        )
        why = self._judge(answer)
        if why is not None:
            raise Refused(None, why)

    async def _sent(
        self, method: str, url: str, content: bytes | None, headers: dict[str, str]
    ) -> httpx.Response:
        assert self._client is not None, "write is called between open and close"
        if content is not None and "content-type" not in {name.lower() for name in self.settings.headers}:
            kind = "application/x-ndjson" if self.settings.batch == "lines" else "application/json"
            headers["Content-Type"] = (
                "text/plain; charset=utf-8" if isinstance(self.settings.body, str) else kind
            )
        try:
            return await self._client.request(method, url, content=content, headers=headers)
        except httpx.InvalidURL as error:
            raise InvalidArgument(
                f"settings.url gives {url!r}: {error}", field="settings.url", value=url
            ) from None
        except httpx.HTTPError as error:
            raise RetryLater(
                reason=f"{self._host()} cannot be reached: {str(error) or type(error).__name__}"
            ) from error

    # -- judging answers -------------------------------------------------------------------------------------

    def _judge(self, answer: httpx.Response) -> str | None:
        """Return why the record is refused, or None if it was written.

        Raises:
            RetryLater: a retry may succeed.
            ClusterError: the API would refuse every record.
        """
        self._judge_address(answer)
        status = answer.status_code
        if answer.is_success:
            return None
        said = (
            f"{self._host()} answered {status} {answer.reason_phrase}: {answer.text[:_SHOWN_CHARS]}".rstrip(
                ": "
            )
        )
        if (status >= 500 and status not in _ADDRESS) or status in _LATER:
            raise RetryLater(_retry_after_s(answer), said)
        if status in _ADDRESS and not callable(self._url):
            raise InvalidArgument(
                f"{said}. Correct settings.url or settings.method.",
                field="settings.url",
                value=self.settings.url,
            )
        return said

    def _judge_address(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status in (401, 403, 407):
            raise Unauthenticated(
                f"{self._host()} refuses the credentials ({status} {answer.reason_phrase}). Correct settings.headers.",
                status=status,
            )
        if answer.is_redirect:
            raise InvalidArgument(
                f"{self._host()} redirects to {answer.headers.get('location', '')[:_SHOWN_CHARS]}. Write that address in "
                "settings.url.", field="settings.url", value=self.settings.url,
            )  # fmt: skip
        if (
            answer.is_success
            and not self.settings.html
            and answer.headers.get("content-type", "").startswith("text/html")
        ):
            raise InvalidArgument(
                f"{self._host()} answers HTML, as a login page or a proxy does, not an API. Correct settings.url, or set "
                "settings.html = true.", field="settings.url", value=self.settings.url,
            )  # fmt: skip

    def _host(self) -> str:
        return httpx.URL(self.settings.url.partition("{")[0]).host

    def preview(self, batch: Batch) -> list[str]:
        if self.settings.batch != "one":
            return [f"{self.settings.method} {self._url} with {len(batch)} records", *super().preview(batch)]
        return [self._shown(record)[:PREVIEW_CHARS] for record in batch]

    def _shown(self, record: Record) -> str:
        try:
            method, content = self._content(record)
            url = self._url(record) if callable(self._url) else self._url
        except Refused as refused:
            return f"refused: {refused.reason}"
        return f"{method} {url} {(content or b'').decode(errors='backslashreplace')}"


class _Outcomes:
    """Outcomes of the records of a batch."""

    def __init__(self) -> None:
        self.written: list[Record] = []
        self.refused: list[tuple[Record, str]] = []
        self.failure: RetryLater | ClusterError | None = None

    def judge(self) -> None:
        """Raise an error if a record was not written. The next attempt raises refusals with other reasons."""
        if self.refused:
            reason = self.refused[0][1]
            raise Refused(
                [record for record, why in self.refused if why == reason], reason, written=self.written
            )
        if isinstance(self.failure, RetryLater):
            raise RetryLater(self.failure.delay_s, str(self.failure), written=self.written) from self.failure
        if self.failure is not None:
            raise self.failure


def _retry_after_s(answer: httpx.Response) -> float | None:
    """Return `Retry-After` in seconds, from a number or a date (RFC 9110, 10.2.3)."""
    given = answer.headers.get("retry-after", "")
    if given.isascii() and given.isdigit():
        return float(given[:9])
    try:
        at = parsedate_to_datetime(given)
    except (ValueError, TypeError):
        return None
    return max(0.0, (at - datetime.now(UTC)).total_seconds()) if at.tzinfo is not None else None
