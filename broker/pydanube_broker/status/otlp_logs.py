"""Send the broker's log to a collector by OTLP over HTTP, beside stderr: the same events and fields.

Records go to OpenTelemetry's batch processor, which sends from a thread of its own, holds at most 2 048 of them, and
drops the rest. A collector that is away costs log records there, never the broker's time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydanube_core.errors import InvalidArgument, MissingExtra
from pydanube_core.extras import install_command

from pydanube_broker.status.log import record_fields

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import LoggerProvider

ANSWER_S: Final = 2.0  # seconds for the collector's answer. A stop waits for it once
# The log of the libraries that send is not sent, to prevent a loop.
_SENDERS: Final = ("opentelemetry", "urllib3", "requests")


class _Handler(logging.Handler):
    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._logger = provider.get_logger("pydanube")

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_SENDERS):
            return
        from opentelemetry._logs import SeverityNumber

        fields = record_fields(record)
        event = fields.pop("event")
        del fields["time"]
        self._logger.emit(
            timestamp=int(record.created * 1e9),
            severity_text=fields.pop("level"),
            severity_number=SeverityNumber[
                record.levelname.replace("WARNING", "WARN").replace("CRITICAL", "FATAL")
            ],
            event_name=event,
            body=fields.pop("message", event),
            attributes={key: _plain(value) for key, value in fields.items()},
        )


def _plain(value: Any) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)


@contextmanager
def otlp_logs(url: str | None, *, version: str) -> Iterator[None]:
    """Send the root logger's records to the collector at `url` for the block. None: nothing is sent.

    Raises:
        InvalidArgument: `url` is no address of HTTP.
        MissingExtra: the exporter is not installed.
    """
    if url is None:
        yield
        return
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(
            f"log.otlp is {url!r}: write the collector's address as http://host:4318",
            field="log.otlp",
            value=url,
        )
    try:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        raise MissingExtra(
            f"log.otlp needs OpenTelemetry's exporter: {install_command('otlp')}",
            extra="otlp",
            module="opentelemetry",
        ) from None
    # OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_HEADERS apply as usual.
    resource = Resource.create({"service.name": "danube", "service.version": version})
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPLogExporter(endpoint=url.rstrip("/") + "/v1/logs", timeout=ANSWER_S)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    handler = _Handler(provider)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        provider.shutdown()
