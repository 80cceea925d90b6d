"""The object store that the broker's settings name, and extras that are not installed for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pydanube_core.errors import MissingExtra
from pydanube_core.extras import install_command
from pydanube_storage.objects import CLOUDS, StoreOptions, check_url

from pydanube_broker.settings.sections import Settings


def store_options(settings: Settings, folder: Path, *, spool: str = "") -> StoreOptions:
    """Return the options of this broker's store. `spool`: names its own part of the spool folder."""
    tier = settings.tier
    return StoreOptions(
        url=tier.url or str(folder / "objects"),
        endpoint=tier.endpoint,
        region=tier.region,
        path_style=tier.path_style,
        profile=tier.profile,
        role=tier.role,
        anonymous=tier.anonymous,
        encryption=tier.encryption,
        kms_key=tier.kms_key,
        timeout_s=tier.timeout,
        spool=spool,
    )


def missing_extra(options: StoreOptions) -> MissingExtra | None:
    """Return the error of a tier that is off, or None if it can work."""
    needed = [("pyarrow", "tier")]
    if "://" in options.url and not options.url.startswith("file://"):
        needed.append(("fsspec", "tier"))
    if cloud := CLOUDS.get(options.url.partition("://")[0]):
        needed.append((cloud.module, cloud.extra))
    for module, extra in needed:
        if importlib.util.find_spec(module) is None:
            return MissingExtra(
                f"the cold tier needs {module}: {install_command(extra)}", extra=extra, module=module
            )
    return None


def check_asked_for(settings: Settings) -> None:
    """Refuse a configured tier that cannot work. Without `tier.url` it may be off for lack of pyarrow.

    Raises:
        InvalidArgument: `tier.url` is no store, or settings of the tier that exclude each other.
        MissingExtra: an extra of the store is not installed. The error has the command that installs it.
    """
    options = store_options(settings, Path())
    if settings.tier.url is None:
        return
    check_url(settings.tier.url)
    missing = missing_extra(options)
    if missing is not None:
        raise missing
