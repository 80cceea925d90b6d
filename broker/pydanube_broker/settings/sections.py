"""The settings of a broker: names, defaults, and the source of each value (docs/interface.md#11-configuration).

Of three sources, later ones win: a TOML file, the environment (`DANUBE_<SECTION>__<KEY>`), flags. An unknown key is an
error, because a misspelt limit that is silently ignored is found out in production. Durations are seconds (float),
sizes are bytes (int), both written as `90s` or `64MiB`. Models are frozen, and made by `load`.

They are plain pydantic models. The sources of pydantic-settings do not keep file lines and variable names, and the
environment is an argument here, so that tests and `config show` need not touch the process's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydanube_core.errors import InsecureBind, InvalidArgument
from pydanube_core.http_hosts import is_loopback

from pydanube_broker.settings.advertised import check_advertised
from pydanube_broker.settings.security import Auth, Tls
from pydanube_broker.settings.values import (
    MEMORY_DIR,
    Choice,
    Count,
    DataDir,
    Duration,
    FilePath,
    Limit,
    Port,
    QuotaOfNamespace,
    QuotaOfPrincipal,
    Secret,
    Section,
    ServerName,
    ShortDuration,
    SigningKey,
    Size,
    Switch,
    Text,
    ValueKind,
    WebUrls,
    choice,
    format_value,
)

PoisonPolicy = Annotated[str, *choice("dead_letter", "block", "drop")]
DefaultDurability = Annotated[str, *choice("fsynced", "stored")]
Profile = Annotated[str, *choice("default", "full")]
Confirm = Annotated[str, *choice("auto", "human")]
AuditReads = Annotated[str, *choice("sampled", "all", "none")]
Encryption = Annotated[str, *choice("AES256", "aws:kms")]
Level = Annotated[str, *choice("debug", "info", "warning", "error")]
Format = Annotated[str, *choice("text", "json")]


class Server(Section):
    """Addresses and ports. Port 0 means any free one."""

    name: ServerName | None = Field(
        default=None, description="the broker's name for people. If unset, host:port of its clients' port"
    )
    host: Text = Field(default="127.0.0.1", description="address to listen on")
    grpc_port: Port = Field(default=6650, description="gRPC for producers and consumers")
    admin_port: Port = Field(default=50051, description="gRPC for administration")
    metrics_port: Port = Field(default=9040, description="HTTP: /metrics, /healthz, /readyz, /status")
    http_port: Port = Field(default=8765, description="HTTP: MCP and JSON-RPC (`danube up` only)")
    advertised_url: Text | None = Field(
        default=None, description="address that clients dial, if it differs from host and grpc_port"
    )
    connect_url: Text | None = Field(
        default=None,
        description="of several brokers: one address that stands for all of them. Clients dial only this one",
    )
    zone: Text | None = Field(
        default=None,
        description="of several brokers: the rack or the zone of a cloud that fails as a whole. Partitions of "
        "a topic spread over zones",
    )
    peer_memory_bytes: Size = Field(
        default=256 << 20,
        description="memory for incomplete requests and unread answers of all connected clients together",
    )
    connections_per_address: Count | None = Field(
        default=None,
        description="maximum connections per client address and port. If unset, as many as the port has room for",
    )
    ops_on_grpc_port: Switch = Field(
        default=True, description="operations on the clients' port too, so that one address is enough"
    )
    insecure_bind: Switch = Field(
        default=False, description="allow a public host without TLS and authentication"
    )


class Data(Section):
    """Where the broker keeps its data."""

    dir: DataDir = Field(
        default=Path("danube-data"), description=f'data directory; "{MEMORY_DIR}" keeps everything in memory'
    )
    min_free_bytes: Size = Field(
        default=1 << 30,
        description="publishing stops below this much free disk. If unset, smaller on small disks",
    )

    @property
    def memory(self) -> bool:
        return self.dir is None


EMBEDDED: Final = "embedded"
# Ports of every broker. http_port belongs to `danube up`
OWN_PORTS: Final = (
    "grpc_port",
    "admin_port",
    "metrics_port",
)
# Secrets that must not be in a file, a log or the list of processes.
ENVIRONMENT_ONLY: Final = frozenset({"metadata.user", "metadata.password"})


class Metadata(Section):
    """The store of metadata: topics, their owners, policies."""

    url: Text = Field(
        default=EMBEDDED,
        description="embedded (in the data directory), or etcd://host:port[,host:port…]/prefix, or etcds:// for TLS",
    )
    user: Text | None = Field(default=None, description="user name for etcd, only from the environment")
    password: Secret | None = Field(
        default=None, description="its password, only from the environment", repr=False
    )
    ca: FilePath | None = Field(
        default=None, description="PEM file with the authority of etcd's certificates. It turns TLS on"
    )
    cert: FilePath | None = Field(default=None, description="PEM file with the certificate for etcd")
    key: FilePath | None = Field(default=None, description="PEM file with its private key")
    prefix: Text | None = Field(
        default=None, description="prefix of the keys on etcd, if url has none. /danube if unset"
    )


with warnings.catch_warnings():  # pydantic has an old method with the name of `copy`
    warnings.filterwarnings("ignore", message='Field name "copy"')

    class Journal(Section):
        """The journal, which is the write-ahead log."""

        segment_bytes: Size = Field(
            default=64 << 20,
            description="largest size of a journal file, from 16MiB to 1GiB. After a start it begins with 16MiB",
        )
        tail_cache_bytes: Size = Field(default=128 << 20, description="memory for the newest messages")
        retention_bytes: Size | None = Field(
            default=None, description="delete the oldest messages beyond this size. Never if unset"
        )
        retention_age: Duration | None = Field(
            default=None, description="delete messages older than this. Never if unset"
        )
        copy: Switch = Field(  # type: ignore[assignment]
            default=False, description="copy the journal to the object store as it is written"
        )
        stored_linger: Duration = Field(
            default=0.1, description="how long records gather before they are copied"
        )


class Topics(Section):
    """Settings of topics in general."""

    auto_create: Switch = Field(default=True, description="producers create the topics they name")
    max_message_bytes: Size = Field(default=4_000_000, description="largest message")


class Quota(Section):
    """Quotas of each namespace and principal without one of its own (docs/security.md#tenants)."""

    namespace: QuotaOfNamespace | None = Field(
        default=None, description="as topics=100, bytes_in_per_s=10MiB"
    )
    principal: QuotaOfPrincipal | None = Field(default=None, description="as connections=50, producers=20")


class Policies(Section):
    """Limits of topics for which neither the topic nor its namespace sets one; 0 means no limit."""

    durability: DefaultDurability = Field(
        default="fsynced",
        description="durability of reliable topics that are created without one. stored needs tier.url",
    )
    max_producers_per_topic: Limit = Field(default=0, description="producers connected to a topic")
    max_subscriptions_per_topic: Limit = Field(default=0, description="subscriptions of a topic")
    max_consumers_per_topic: Limit = Field(default=0, description="consumers connected to a topic")
    max_consumers_per_subscription: Limit = Field(default=0, description="consumers of a subscription")
    max_publish_rate: Limit = Field(default=0, description="messages per second and topic")
    max_subscription_dispatch_rate: Limit = Field(default=0, description="messages/s and subscription")
    max_message_size: Limit = Field(default=0, description="bytes. topics.max_message_bytes holds as well")
    alert_unread_messages: Limit = Field(
        default=0, description="alert if a subscription has more unread messages than this"
    )
    alert_unread_age_s: Limit = Field(
        default=0, description="alert if the oldest unread message of a subscription is older than this"
    )


class Delivery(Section):
    """Failure policy of subscriptions that have none of their own."""

    max_unacked_messages: Count = Field(
        default=1000,
        description="messages in flight to one official consumer, unless its subscription has a window of its own",
    )
    ack_timeout: ShortDuration = Field(
        default=30.0, description="an unacknowledged message returns after this"
    )
    max_redelivery_count: Limit = Field(
        default=5, description="redeliveries before the poison policy applies"
    )
    poison_policy: PoisonPolicy = Field(default="block", description="fate of a message after that")


class Tier(Section):
    """The cold tier: object storage."""

    url: Text | None = Field(
        default=None,
        description="place of the objects: a folder, s3://, gs:// or az://…. objects/ in the data directory if unset",
    )
    flush_bytes: Size = Field(default=32 << 20, description="a topic is flushed at this size")
    flush_age: ShortDuration = Field(default=60.0, description="or at this age")
    object_bytes: Size = Field(default=128 << 20, description="compaction merges objects up to this size")
    endpoint: Text | None = Field(
        default=None, description="address of a store that is compatible with S3 or Google's"
    )
    region: Text | None = Field(default=None, description="region of the store")
    path_style: Switch | None = Field(default=None, description="bucket in the path instead of the host name")
    profile: Text | None = Field(default=None, description="credentials profile")
    role: Text | None = Field(
        default=None, description="ARN of a role to assume, with the keys of the profile or the environment"
    )
    anonymous: Switch = Field(default=False, description="use a public store without credentials")
    encryption: Encryption | None = Field(
        default=None, description="server-side encryption of written objects"
    )
    kms_key: Text | None = Field(default=None, description="key id for aws:kms. The bucket's own if unset")
    take_over: Limit | None = Field(
        default=None,
        description="take over the store from this incarnation of a lost owner, which the refusal names. 0: the objects are gone",
    )
    check_interval: ShortDuration = Field(
        default=60.0,
        description="time between two checks of objects in the background. A check is two requests of at most 64 KiB",
    )
    timeout: ShortDuration = Field(
        default=20.0, description="longest time for an answer of the store, and for all tries of a call"
    )


BalanceMode = Annotated[str, *choice("off", "suggest", "act")]
OnLoss = Annotated[str, *choice("wait", "take_over")]


class Admin(Section):
    """Settings of plans and undo."""

    plan_ttl: ShortDuration = Field(default=600.0, description="a plan can be applied for this long")
    undo_grace: ShortDuration = Field(default=86_400.0, description="a change can be undone for this long")
    compat_destructive: Switch = Field(
        default=True, description="danube_admin may destroy in one recorded, undoable step"
    )
    audit_reads: AuditReads = Field(
        default="sampled",
        description="reads in the audit: all, none, or sampled, which is one a minute of equal reads",
    )
    audit_retention: Duration | None = Field(
        default=None,
        description="audit records older than this may be deleted. If unset, only journal.retention_* deletes them",
    )
    audit_key: FilePath | None = Field(
        default=None,
        description="file of the key for the MACs of audit records, by default beside the data directory",
    )


class Cluster(Section):
    """Several brokers on one metadata store."""

    on_loss: OnLoss = Field(
        default="wait",
        description="when this broker is lost: its fsynced topics wait for it, or other brokers take_over them from its copy",
    )


class Balance(Section):
    """The load manager of several brokers."""

    mode: BalanceMode = Field(default="suggest", description="off, suggest moves, or act, which begins them")
    interval: ShortDuration = Field(
        default=60.0, description="time between two observations. Rates are taken over it"
    )
    cooldown: ShortDuration = Field(default=600.0, description="a topic that moved stays for this long")
    max_moves: Count = Field(default=20, description="maximum concurrent moves of topics")
    floor: Size = Field(
        default=1 << 20, description="bytes a second. A broker with less traffic is never too busy"
    )


class Diagnosis(Section):
    """Sampling and hysteresis of findings and alerts."""

    sample_interval: ShortDuration = Field(default=5.0, description="time between two samples")
    window: ShortDuration = Field(default=300.0, description="rates are taken over this long")
    stuck_after: ShortDuration = Field(default=300.0, description="no progress for this long is stuck")
    open_after: Count = Field(default=2, description="samples before an alert opens")
    close_after: Count = Field(default=3, description="samples before it closes")


class Alerts(Section):
    """Alerts are sent to these addresses, in the form of Alertmanager's webhooks."""

    webhook: WebUrls | None = Field(default=None, description="URLs that take alerts. None are sent if unset")
    webhook_secret: SigningKey | None = Field(
        default=None, description="whsec_ and base64: requests are signed as Standard Webhooks are"
    )


class Telemetry(Section):
    """The broker's records of itself in the object store; they need the cold tier's extra."""

    enabled: Switch = Field(default=True, description="write telemetry")
    sample_interval: ShortDuration = Field(
        default=5.0, description="time between two samples, no shorter than diagnosis.sample_interval"
    )
    flush_age: ShortDuration = Field(default=60.0, description="samples are written after this")
    keep: ShortDuration = Field(default=30 * 86_400.0, description="thinned to a sample a minute until then")
    keep_downsampled: ShortDuration = Field(
        default=400 * 86_400.0, description="thinned to a sample an hour until then, then deleted"
    )
    downsample_after: ShortDuration = Field(
        default=2 * 86_400.0, description="every sample is kept until then"
    )


class Mcp(Section):
    """Settings of the MCP face."""

    profile: Profile = Field(default="default", description="set of tools")
    confirm: Confirm = Field(
        default="auto", description="auto, or human: a person confirms each plan that destroys"
    )
    read_only: Switch = Field(default=False, description="list and carry out reads only")
    toolsets: Text | None = Field(
        default=None,
        description="sets of tools to list beside the profile's: topics, subscriptions, schemas, brokers, messages, "
        "security, connectors, docs, links, with commas between",
    )


class Metrics(Section):
    """Settings of the metrics for Prometheus."""

    topic_series_limit: Count = Field(
        default=1000, description="maximum number of topics with series of their own"
    )


class Log(Section):
    """The log goes to stderr, and to a collector if one is named."""

    level: Level = Field(default="info", description="least severity that is logged")
    format: Format = Field(default="text", description="form of a line")
    otlp: Text | None = Field(
        default=None, description="send the log to this OpenTelemetry collector too, as http://host:4318"
    )


class SourceKind(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENV = "env"
    FLAG = "flag"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a value. `where` is `danube.toml:12`, the variable or the flag."""

    kind: SourceKind
    where: str = ""
    line: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case SourceKind.DEFAULT:
                return "default"
            case SourceKind.FILE:
                return self.where
            case SourceKind.ENV | SourceKind.FLAG:
                return f"{self.kind.value} {self.where}"


DEFAULT_SOURCE: Final = Source(kind=SourceKind.DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One setting as `config show` and the documentation list it."""

    section: str
    key: str
    kind: ValueKind
    words: tuple[str, ...]  # of a choice
    value: str | int | bool | None
    default: str | int | bool | None
    description: str
    source: Source

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"


class Settings(BaseModel):
    """All sections. `Settings()` gives the defaults; `load_settings` gives everything else."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    server: Server = Server()
    tls: Tls = Tls()
    auth: Auth = Auth()
    data: Data = Data()
    metadata: Metadata = Metadata()
    journal: Journal = Journal()
    topics: Topics = Topics()
    policies: Policies = Policies()
    quota: Quota = Quota()
    delivery: Delivery = Delivery()
    tier: Tier = Tier()
    admin: Admin = Admin()
    cluster: Cluster = Cluster()
    balance: Balance = Balance()
    diagnosis: Diagnosis = Diagnosis()
    alerts: Alerts = Alerts()
    telemetry: Telemetry = Telemetry()
    mcp: Mcp = Mcp()
    metrics: Metrics = Metrics()
    log: Log = Log()

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)

    @property
    def sources(self) -> Mapping[str, Source]:
        """`section.key` → source, of the values that are not defaults."""
        return self._sources

    def source(self, name: str) -> Source:
        """Return the source of the value of `section.key`."""
        return self._sources.get(name, DEFAULT_SOURCE)

    def is_set(self, name: str) -> bool:
        """Return whether the value of `section.key` was set, even to its default."""
        return name in self._sources

    def with_sources(self, sources: Mapping[str, Source]) -> Self:
        copy = self.model_copy()
        copy._sources = dict(sources)
        return copy

    def entries(self) -> Iterator[Entry]:
        """Yield every setting in the order of the documentation."""
        defaults = Settings()
        for section, model in sections().items():
            for key, field in model.model_fields.items():
                kind, words = field_kind(field.metadata, field.annotation)
                value = getattr(getattr(self, section), key)
                default = getattr(getattr(defaults, section), key)
                if (section, key) == ("data", "dir"):
                    value = MEMORY_DIR if value is None else value
                yield Entry(
                    section=section,
                    key=key,
                    kind=kind,
                    words=words,
                    value=format_value(value, kind),
                    default=format_value(default, kind),
                    description=field.description or "",
                    source=self.source(f"{section}.{key}"),
                )

    def check_startable(self) -> None:
        """Check that a broker can be started with these settings.

        Raises:
            InsecureBind: a public address, no TLS with authentication, and no `insecure_bind`.
            InvalidArgument: incomplete settings of TLS, two equal ports, or an advertised address that some client
                could not dial.
        """
        tls = self.tls
        if (tls.cert is None) != (tls.key is None) or (tls.client_ca is not None and tls.cert is None):
            missing = "tls.key" if tls.cert is not None else "tls.cert"
            # Configured certificates must never result in plain text.
            raise InvalidArgument(
                f"{missing} is missing: tls.cert and tls.key go together, and tls.client_ca goes with both",
                field=missing,
                value=None,
            )
        ports = [(name, port) for name in OWN_PORTS if (port := getattr(self.server, name))]
        for i, (name, port) in enumerate(ports):
            if other := next((one for one, same in ports[:i] if same == port), None):
                raise InvalidArgument(
                    f"server.{name} is {port}, and so is server.{other}: give each a port of its own",
                    field=f"server.{name}",
                    value=port,
                )
        if self.cluster.on_loss == "take_over" and not self.journal.copy:
            raise InvalidArgument(
                "cluster.on_loss = take_over needs journal.copy = true: without a copy of this broker's journal no other "
                "broker can take its topics over",
                field="cluster.on_loss",
                value=self.cluster.on_loss,
            )
        if self.policies.durability == "stored" and self.tier.url is None:
            raise InvalidArgument(
                "policies.durability = stored needs an object store: set tier.url",
                field="policies.durability",
                value=self.policies.durability,
            )
        if self.server.advertised_url is not None:
            check_advertised(self.server.advertised_url, secure=tls.cert is not None)
        if self.server.connect_url is not None:
            check_advertised(self.server.connect_url, secure=tls.cert is not None, field="server.connect_url")
        if tls.cert is not None and not (
            tls.admin or self.server.insecure_bind or is_loopback(self.server.host)
        ):
            raise InsecureBind(
                f"refused to listen on {self.server.host} with tls.admin = false: tokens of administrators would travel "
                "as plain text. Leave tls.admin on, use --host 127.0.0.1, or --insecure-bind behind a proxy with TLS",
                field="tls.admin",
                value=False,
            )
        locked = self.auth.mode == "required" and tls.cert is not None
        if not locked and not self.server.insecure_bind and not is_loopback(self.server.host):
            raise InsecureBind(
                f"refused to listen on {self.server.host}: without TLS and authentication any client that reaches the "
                "port can read and destroy everything. Turn both on with `danube security init`, use --host 127.0.0.1, "
                "or --insecure-bind inside a container whose ports are not published",
                field="server.host",
                value=self.server.host,
            )


def sections() -> dict[str, type[Section]]:
    """Return section name → model, in the order of the documentation."""
    found: dict[str, type[Section]] = {}
    for name, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, Section)
        found[name] = field.annotation
    return found


def field_kind(metadata: list[Any], annotation: Any) -> tuple[ValueKind, tuple[str, ...]]:
    """Return the kind and the words of a field. For `X | None` they are in the union's member."""
    facts = [*metadata]
    for member in getattr(annotation, "__args__", ()):
        facts += getattr(member, "__metadata__", ())
    kind = next(fact for fact in facts if isinstance(fact, ValueKind))
    words = next((fact.words for fact in facts if isinstance(fact, Choice)), ())
    return kind, words
