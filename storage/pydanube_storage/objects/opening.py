"""Open the store of a URL: a folder, `file://…`, `memory://name`, or a place in an object store (`CLOUDS`)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from configparser import ParsingError, RawConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydanube_core.errors import InvalidArgument, MissingExtra
from pydanube_core.extras import install_command

from pydanube_storage.objects.local import LocalStore
from pydanube_storage.objects.protocol import ObjectStore
from pydanube_storage.objects.remote import FsspecStore
from pydanube_storage.objects.retrying import Retry

_CONNECT_TIMEOUT_S: Final = 5.0
_ENDPOINT: Final = re.compile(
    r"https?://([^/@\s]*@)?(\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?(/.*)?"
)
#: as botocore, which takes more names than AWS has, because compatible stores use others
_REGION: Final = re.compile(r"(?![0-9]+$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_ENDPOINT_RULE: Final = "http://host:port or https://host"
_REGION_RULE: Final = "a region such as eu-central-1"
_ROLE: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/\S+")
#: S3 requires at least three, other stores do not
_BUCKET: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,63}")
_GCS_BUCKET: Final = re.compile(r"[a-z0-9._-]{3,222}")
_CONNECTION: Final = re.compile(
    r"(?:^|;)(AccountName|BlobEndpoint|UseDevelopmentStorage)=[^;]", re.IGNORECASE
)
_CONTAINER: Final = re.compile(r"(?=.{3,63}$)(\$(root|web|logs)|[a-z0-9](-?[a-z0-9])*)")
#: fields of `StoreOptions` that not every kind of store supports
_OPTIONS: Final = (
    "endpoint", "region", "path_style", "profile", "role", "anonymous", "encryption", "kms_key",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """The URL of a store and how to reach it. Keys and tokens are not here: s3fs, gcsfs and adlfs find them as every tool
    of that cloud does, in the environment or on the machine.

    `encryption`: server-side encryption of written objects: `AES256`, or `aws:kms` with the bucket's key or `kms_key`.
    `role` is assumed with the keys of the profile, else of the environment, else of the machine.
    """

    url: str
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    profile: str | None = None
    role: str | None = None
    anonymous: bool = False
    encryption: str | None = None
    kms_key: str | None = None
    timeout_s: float = 20.0  # for one answer, and for all attempts of a call together
    spool: str = ""  # this writer's part of the spool if several write to a local folder

    def __post_init__(self) -> None:
        if self.anonymous and (self.profile or self.role):
            raise InvalidArgument(
                "tier.anonymous uses no credentials, tier.profile and tier.role give some: choose one",
                field="tier.anonymous",
                value=True,
            )
        if self.kms_key is not None and self.encryption != "aws:kms":
            raise InvalidArgument(
                "tier.kms_key is for tier.encryption = aws:kms", field="tier.kms_key", value=self.kms_key
            )
        cloud = CLOUDS.get(urlsplit(self.url).scheme)
        if cloud is None:
            return
        for field in _OPTIONS:
            value = getattr(self, field)
            if value not in (None, False) and field not in cloud.takes:
                raise InvalidArgument(
                    f"tier.{field} is not for {cloud.place}, whose account and keys are in the environment: leave it out",
                    field=f"tier.{field}",
                    value=value,
                )

        self._check_forms(cloud)
        cloud.check(self)

    def _check_forms(self, cloud: Cloud) -> None:
        """Raise `InvalidArgument` for a setting that no store of this kind accepts. Needs no network."""
        bucket = urlsplit(self.url).netloc
        for field, value, fits, wanted in (
            ("endpoint", self.endpoint, _is_endpoint, _ENDPOINT_RULE),
            ("region", self.region, _REGION.fullmatch, _REGION_RULE),
            ("role", self.role, _ROLE.fullmatch, "arn:aws:iam::<12 digits>:role/<name>"),
            # `check_url` refuses a password and does not show it
            ("url", None if "@" in bucket else bucket or None, cloud.bucket.fullmatch, cloud.bucket_rule),
        ):
            if value is not None and not fits(value):
                raise InvalidArgument(
                    f"tier.{field} {value!r} cannot work: write {wanted}", field=f"tier.{field}", value=value
                )


def _is_endpoint(value: str) -> bool:
    found = _ENDPOINT.fullmatch(value)
    return found is not None and 0 < int(found["port"] or 1) < 65_536


def _check_s3(options: StoreOptions) -> None:
    """Refuse an unknown profile, and values of the environment that AWS's library refuses at each call."""
    known = _profiles()
    if known is not None and options.profile is not None and options.profile not in known:
        raise InvalidArgument(
            f"tier.profile {options.profile!r} is in neither file of AWS's profiles: write one of "
            f"{', '.join(sorted(known)) or 'none'}, or add it",
            field="tier.profile",
            value=options.profile,
            allowed=sorted(known),
        )
    environment = os.environ
    if options.endpoint is None:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            if value := environment.get(name):
                _check_variable(options, name, fits=_is_endpoint(value), wanted=_ENDPOINT_RULE)
                break
    if options.region is None and (value := environment.get("AWS_DEFAULT_REGION")):
        _check_variable(options, "AWS_DEFAULT_REGION", fits=_REGION.fullmatch(value), wanted=_REGION_RULE)
    if options.profile is not None:
        return
    for name in ("AWS_DEFAULT_PROFILE", "AWS_PROFILE"):
        if (value := environment.get(name)) and options.role is None and known is not None:
            wanted = f"a profile of AWS's files ({', '.join(sorted(known)) or 'they have none'})"
            _check_variable(options, name, fits=value in known, wanted=wanted)
            break
    if environment.get("AWS_ACCESS_KEY_ID") and not options.anonymous:
        fits = bool(environment.get("AWS_SECRET_ACCESS_KEY"))
        _check_variable(options, "AWS_ACCESS_KEY_ID", fits=fits, wanted="AWS_SECRET_ACCESS_KEY beside it")


def _check_variable(options: StoreOptions, name: str, *, fits: object, wanted: str) -> None:
    if not fits:
        raise InvalidArgument(
            f"tier.url {options.url!r} cannot work: {name} is {os.environ[name]!r}: write {wanted}, or unset it",
            field="tier.url",
            value=options.url,
        )


def _check_google(options: StoreOptions) -> None:
    """Refuse an unreadable key file. gcsfs would ignore it and use another identity."""
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not path or options.anonymous:
        return
    try:
        kind = json.loads(Path(path).read_bytes())["type"]
        assert isinstance(kind, str)
    except (OSError, ValueError, LookupError, TypeError, AssertionError) as error:
        raise InvalidArgument(
            f"tier.url {options.url!r} cannot work: GOOGLE_APPLICATION_CREDENTIALS is {path!r}, which is no key file of "
            f"Google ({type(error).__name__}): write the path of one, or unset it",
            field="tier.url",
            value=options.url,
        ) from error


def _check_azure(options: StoreOptions) -> None:
    connection = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if connection is None and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        missing = "neither AZURE_STORAGE_CONNECTION_STRING nor AZURE_STORAGE_ACCOUNT_NAME is set"
    elif connection is not None and _CONNECTION.search(connection) is None:
        missing = "AZURE_STORAGE_CONNECTION_STRING names no account (AccountName=… or BlobEndpoint=…)"
    else:
        return
    raise InvalidArgument(
        f"tier.url {options.url!r} cannot work: {missing}: write one of both into the broker's environment",
        field="tier.url",
        value=options.url,
    )


def _profiles() -> set[str] | None:
    """Return the profile names in the files that AWS's libraries read. None if a file is unreadable."""
    found: set[str] = set()
    for variable, usual in (
        ("AWS_CONFIG_FILE", "~/.aws/config"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ):
        parser = RawConfigParser(strict=False, default_section="")
        try:
            parser.read(os.path.expanduser(os.environ.get(variable, usual)), encoding="utf-8-sig")
        except (OSError, ValueError, ParsingError):
            return None
        found |= {name.removeprefix("profile ").strip() for name in parser.sections()}
    return found


def open_store(options: StoreOptions, *, retry: Retry | None = None) -> ObjectStore:
    """Open a store. No request goes to a remote store before its first use.

    Raises:
        InvalidArgument: the URL is of an unsupported kind, or contains a password.
        MissingExtra: the library for this kind is not installed.
        StoreUnavailable: the local folder cannot be created.
    """
    retry = retry or Retry(budget_s=options.timeout_s)
    check_url(options.url)
    parts = urlsplit(options.url)
    scheme = parts.scheme if "://" in options.url else ""
    if scheme in ("", "file"):
        return LocalStore(Path(unquote(parts.path) if scheme else options.url), spool=options.spool)
    root = (parts.netloc + parts.path).strip("/")
    if scheme == "memory":
        return FsspecStore(_fsspec("memory"), f"/{root}", url=options.url, retry=retry)
    cloud = CLOUDS[scheme]
    fs = _s3(options) if cloud.protocol == "s3" else _of_cloud(cloud, options)
    url = f"{cloud.place.partition(':')[0]}://{root}"
    return FsspecStore(fs, root, url=url, retry=retry, timeout_s=options.timeout_s)


def check_url(url: str) -> None:
    """Raise `InvalidArgument` for a URL that is not a store's, or that contains a password."""
    parts = urlsplit(url)
    if parts.password or parts.username:
        raise InvalidArgument(
            "tier.url holds a user or password: use a profile or the environment, where no log shows them",
            field="tier.url",
            value=f"{parts.scheme}://…",
        )
    scheme = parts.scheme if "://" in url else "file"
    if scheme in CLOUDS and not parts.netloc:
        raise InvalidArgument(f"tier.url: write {CLOUDS[scheme].place}", field="tier.url", value=url)
    if scheme not in ("file", "memory", *CLOUDS):
        places = ", ".join(dict.fromkeys(cloud.place for cloud in CLOUDS.values()))
        raise InvalidArgument(
            f"tier.url {url!r}: use a folder, {places} or memory://name", field="tier.url", value=url
        )


def _fsspec(protocol: str, *, extra: str = "tier", module: str = "fsspec", **arguments: Any) -> Any:
    try:
        import fsspec

        return fsspec.filesystem(protocol, **arguments)
    except ImportError as error:
        raise MissingExtra(
            f"{protocol} needs {module}: {install_command(extra)}", extra=extra, module=module
        ) from error


def _gcs(options: StoreOptions) -> dict[str, Any]:
    if options.endpoint is not None:
        # gcsfs reads this on import. It would otherwise call over gRPC, which only Google's own endpoint supports, and hang.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    token = {"token": "anon"} if options.anonymous else {}
    return {"endpoint_url": options.endpoint, "requests_timeout": options.timeout_s, **token}


def _azure(options: StoreOptions) -> dict[str, Any]:
    return {
        "anon": options.anonymous or None,
        "connection_timeout": min(_CONNECT_TIMEOUT_S, options.timeout_s),
        "read_timeout": options.timeout_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A kind of object store: its URLs, the library that reaches it, and its options.

    `check` raises `InvalidArgument` for options and environment variables that cannot work. It needs no network.
    """

    place: str
    protocol: str  # fsspec's name of the file system
    extra: str
    module: str
    bucket: re.Pattern[str]
    bucket_rule: str
    check: Callable[[StoreOptions], None]
    takes: tuple[str, ...] = ()  # fields of `StoreOptions` beside url and timeout
    arguments: Callable[[StoreOptions], dict[str, Any]] = lambda options: {}


_S3: Final = Cloud(
    place="s3://bucket/prefix", protocol="s3", extra="s3", module="s3fs", takes=_OPTIONS, check=_check_s3,
    bucket=_BUCKET, bucket_rule="a bucket of at most 63 letters, digits, dots, dashes and underscores",
)  # fmt: skip
_GCS: Final = Cloud(
    place="gs://bucket/prefix", protocol="gcs", extra="gcs", module="gcsfs",
    takes=("endpoint", "anonymous"), arguments=_gcs, check=_check_google,
    bucket=_GCS_BUCKET, bucket_rule="a bucket of 3 to 222 lower-case letters, digits, dots, dashes and underscores",
)  # fmt: skip
_AZURE: Final = Cloud(
    place="az://container/prefix", protocol="abfs", extra="azure", module="adlfs",
    takes=("anonymous",), arguments=_azure, check=_check_azure,
    bucket=_CONTAINER, bucket_rule="a container of 3 to 63 lower-case letters and digits, with single dashes between",
)  # fmt: skip
CLOUDS: Final[Mapping[str, Cloud]] = {
    "s3": _S3, "s3a": _S3, "gs": _GCS, "gcs": _GCS, "az": _AZURE, "abfs": _AZURE,
}  # fmt: skip


def _of_cloud(cloud: Cloud, options: StoreOptions) -> Any:
    """Return fsspec's file system for this kind."""
    return _fsspec(
        cloud.protocol, extra=cloud.extra, module=cloud.module,
        use_listings_cache=False, skip_instance_cache=True, **cloud.arguments(options),
    )  # fmt: skip


def _s3(options: StoreOptions) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise MissingExtra(f"s3:// needs s3fs: {install_command('s3')}", extra="s3", module="s3fs") from error
    config: dict[str, Any] = {
        # Compatible stores often refuse the checksums that newer clients send with every request.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "connect_timeout": min(_CONNECT_TIMEOUT_S, options.timeout_s),
        "read_timeout": options.timeout_s,
        "retries": {"max_attempts": 1},  # `Retry` has the budget. Two retry loops would multiply
    }
    if options.path_style is not None:
        config["s3"] = {"addressing_style": "path" if options.path_style else "virtual"}
    client = {"region_name": options.region} if options.region else {}
    more: dict[str, Any] = {"ServerSideEncryption": options.encryption} if options.encryption else {}
    if options.kms_key is not None:
        more["SSEKMSKeyId"] = options.kms_key
    fs = s3fs.S3FileSystem(
        anon=options.anonymous,
        endpoint_url=options.endpoint,
        profile=None if options.role else options.profile,
        session=None if options.role is None else _role_session(options.role, options.profile),
        client_kwargs=client,
        config_kwargs=config,
        s3_additional_kwargs=more or None,
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    fs.retries = 1
    return fs


def _role_session(role: str, profile: str | None) -> Any:
    """Return a session that assumes `role` by an in-memory profile and renews expiring credentials."""
    from aiobotocore.session import AioSession

    name = "danube-tier-role"
    if profile is not None:
        source = {"source_profile": profile}
    elif os.environ.get("AWS_ACCESS_KEY_ID"):
        source = {"credential_source": "Environment"}
    elif os.environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        source = {"credential_source": "EcsContainer"}
    else:
        source = {"credential_source": "Ec2InstanceMetadata"}
    session = AioSession()
    session.full_config["profiles"][name] = {"role_arn": role, "role_session_name": "danube-tier", **source}
    session.set_config_variable("profile", name)
    return session
