"""The adapter that belongs to a URL: a folder, `file://…`, `s3://bucket/prefix`, `memory://name`."""

from __future__ import annotations

import os
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Where, and how to reach it. Keys and tokens are not here: s3fs finds them as every AWS tool does.

    `encryption`: server-side, of what is written: `AES256`, or `aws:kms` with the bucket's key or `kms_key`. `role` is
    taken on with the keys of the profile, else of the environment, else of the machine.
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
    timeout_s: float = 20.0  # of one answer, and of all tries of a call together

    def __post_init__(self) -> None:
        if self.anonymous and (self.profile or self.role):
            raise InvalidArgument(
                "tier.anonymous asks without credentials, tier.profile and tier.role give some: choose one",
                field="tier.anonymous",
                value=True,
            )
        if self.kms_key is not None and self.encryption != "aws:kms":
            raise InvalidArgument(
                "tier.kms_key is for tier.encryption = aws:kms", field="tier.kms_key", value=self.kms_key
            )


def open_store(options: StoreOptions, *, retry: Retry | None = None) -> ObjectStore:
    """Open a store; nothing is asked of a remote one before its first use.

    Raises:
        InvalidArgument: a URL of another kind, or one with a password in it.
        MissingExtra: what the kind needs is not installed.
        StoreUnavailable: a local folder that cannot be made.
    """
    retry = retry or Retry(budget_s=options.timeout_s)
    check_url(options.url)
    parts = urlsplit(options.url)
    scheme = parts.scheme if "://" in options.url else ""
    if scheme in ("", "file"):
        return LocalStore(Path(unquote(parts.path) if scheme else options.url))
    root = (parts.netloc + parts.path).strip("/")
    if scheme == "memory":
        return FsspecStore(_fsspec("memory"), f"/{root}", url=options.url, retry=retry)
    return FsspecStore(_s3(options), root, url=f"s3://{root}", retry=retry, timeout_s=options.timeout_s)


def check_url(url: str) -> None:
    """Raise `InvalidArgument` for a URL of another kind than a store has, or one with a password in it."""
    parts = urlsplit(url)
    if parts.password or parts.username:
        raise InvalidArgument(
            "tier.url holds a user or password: use a profile or the environment, where no log shows them",
            field="tier.url",
            value=f"{parts.scheme}://…",
        )
    scheme = parts.scheme if "://" in url else "file"
    if scheme in ("s3", "s3a") and not parts.netloc:
        raise InvalidArgument("tier.url: write s3://bucket/prefix", field="tier.url", value=url)
    if scheme not in ("file", "memory", "s3", "s3a"):
        raise InvalidArgument(
            f"tier.url {url!r}: use a folder, s3://bucket/prefix or memory://name",
            field="tier.url",
            value=url,
        )


def _fsspec(protocol: str, **arguments: Any) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra(
            f"object stores need fsspec: {install_command('tier')}", extra="tier", module="fsspec"
        ) from error
    return fsspec.filesystem(protocol, **arguments)


def _s3(options: StoreOptions) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise MissingExtra(f"s3:// needs s3fs: {install_command('s3')}", extra="s3", module="s3fs") from error
    config: dict[str, Any] = {
        # Compatible stores often refuse the checksums that newer clients send with everything.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "connect_timeout": min(_CONNECT_TIMEOUT_S, options.timeout_s),
        "read_timeout": options.timeout_s,
        "retries": {"max_attempts": 1},  # `Retry` has the budget; two loops would multiply
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
    """A session that takes on `role`, by a profile that exists in memory only; it renews what expires by itself."""
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
