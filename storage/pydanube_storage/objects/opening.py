"""The adapter that belongs to a URL: a folder, `file://…`, `s3://bucket/prefix`, `memory://name`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydanube_core.errors import InvalidArgument, MissingExtra

from pydanube_storage.objects.local import LocalStore
from pydanube_storage.objects.protocol import ObjectStore
from pydanube_storage.objects.remote import FsspecStore
from pydanube_storage.objects.retrying import Retry

__all__ = ["StoreOptions", "open_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Where, and how to reach it. Keys and tokens are not here: s3fs finds them as every AWS tool does.

    `sse`: server-side encryption of what is written, `AES256` or `aws:kms`. A role is a profile with `role_arn`.
    """

    url: str
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    profile: str | None = None
    anonymous: bool = False
    sse: str | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 20.0


def open_store(options: StoreOptions, *, retry: Retry | None = None) -> ObjectStore:
    """Open a store; nothing is asked of a remote one before its first use.

    Raises:
        InvalidArgument: a URL of another kind, or one with a password in it.
        MissingExtra: what the kind needs is not installed.
        StoreUnavailable: a local folder that cannot be made.
    """
    parts = urlsplit(options.url)
    if parts.password or parts.username:
        raise InvalidArgument(
            "tier.url holds a user or password: use a profile or the environment, where no log shows them",
            field="tier.url",
            value=f"{parts.scheme}://…",
        )
    scheme = parts.scheme if "://" in options.url else ""
    if scheme in ("", "file"):
        return LocalStore(Path(unquote(parts.path) if scheme else options.url))
    root = (parts.netloc + parts.path).strip("/")
    if scheme == "memory":
        return FsspecStore(_fsspec("memory"), f"/{root}", url=options.url, retry=retry)
    if scheme in ("s3", "s3a"):
        if not parts.netloc:
            raise InvalidArgument("tier.url: write s3://bucket/prefix", field="tier.url", value=options.url)
        return FsspecStore(_s3(options), root, url=f"s3://{root}", retry=retry)
    raise InvalidArgument(
        f"tier.url {options.url!r}: use a folder, s3://bucket/prefix or memory://name",
        field="tier.url",
        value=options.url,
    )


def _fsspec(protocol: str, **arguments: Any) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra(
            'object stores need fsspec: pip install "pydanube[tier]"', extra="tier", module="fsspec"
        ) from error
    return fsspec.filesystem(protocol, **arguments)


def _s3(options: StoreOptions) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise MissingExtra(
            's3:// needs s3fs: pip install "pydanube[s3]"', extra="s3", module="s3fs"
        ) from error
    config: dict[str, Any] = {
        # Compatible stores often refuse the checksums that newer clients send with everything.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "connect_timeout": options.connect_timeout_s,
        "read_timeout": options.read_timeout_s,
        "retries": {"max_attempts": 1},  # `Retry` has the budget; two loops would multiply
    }
    if options.path_style is not None:
        config["s3"] = {"addressing_style": "path" if options.path_style else "virtual"}
    client = {"region_name": options.region} if options.region else {}
    fs = s3fs.S3FileSystem(
        anon=options.anonymous,
        endpoint_url=options.endpoint,
        profile=options.profile,
        client_kwargs=client,
        config_kwargs=config,
        s3_additional_kwargs={"ServerSideEncryption": options.sse} if options.sse else None,
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    fs.retries = 1
    return fs
