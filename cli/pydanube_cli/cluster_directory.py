"""`danube cluster adopt|release|recover|snapshot`: change, or read, the data directory of a stopped broker, and etcd."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydanube.principal import default_principal
from pydanube_core.errors import CorruptObject
from pydanube_core.units import format_time, human_bytes

from pydanube_cli.command import Common, command
from pydanube_cli.config import ConfigOption
from pydanube_cli.parameters import argument, option
from pydanube_cli.ready import program_name
from pydanube_cli.render import print_json
from pydanube_cli.runtime import run_async

_SHOWN: Final = 10  # keys that an error names

if TYPE_CHECKING:
    from pydanube_broker.home.adoption import Adopted
    from pydanube_broker.home.release import Released
    from pydanube_broker.settings.sections import Settings

_Directory = Annotated[Path, argument(metavar="DATA_DIR", help="Of a broker, which is stopped.")]
_Metadata = Annotated[
    str, option("--metadata", metavar="URL", help="Of the cluster: etcd://host:port[,host:port]/prefix")
]
_DryRun = Annotated[
    bool, option("--dry-run", help="Check everything, show the records to move, and change nothing.")
]


def _settings(config: Path | None, data_dir: Path, metadata: str) -> Settings:
    from pydanube_broker.settings.load import load_settings

    # These commands print their progress themselves
    logging.getLogger("pydanube").addHandler(logging.NullHandler())
    return load_settings(config, os.environ, overrides={"data.dir": str(data_dir), "metadata.url": metadata})


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show_forecast(done: Adopted | Released, *, metadata_to: str, objects_to: str) -> None:
    print(
        f"Nothing was changed. Of broker {done.broker_id} {done.keys} keys of metadata would go to {metadata_to}; its "
        f"{done.objects} objects ({human_bytes(done.object_bytes)}) would be in {objects_to}. The same call without --dry-run does it."
    )


@command(
    examples=[
        "DANUBE_TIER__URL=/mnt/danube-objects danube cluster adopt ./danube-data --metadata etcd://h1:2379,h2:2379/production",
    ]
)
def adopt(
    *,
    common: Common,
    data_dir: _Directory,
    metadata: _Metadata,
    dry_run: _DryRun = False,
    config: ConfigOption = None,
) -> None:
    """Move a lone broker to etcd, on an empty prefix: topics, messages, cursors and objects stay; others can join it then.

    Killed or failed, it goes on when it is called again.
    """
    from pydanube_broker.home.adoption import adopt as move

    settings = _settings(config, data_dir, metadata)
    done = run_async(partial(move, settings, dry_run=dry_run, say=_say))
    if common.as_json:
        print_json({**asdict(done), "dry_run": dry_run})
        return
    if dry_run:
        _show_forecast(done, metadata_to=done.metadata, objects_to=str(settings.tier.url))
        return
    print(
        f"Broker {done.broker_id} is of cluster {done.cluster_id}. Start it, and others beside it:\n"
        f"  {program_name()} up --data-dir {data_dir} --metadata {done.metadata}"
    )


@command(
    examples=[
        "DANUBE_TIER__URL=/mnt/danube-objects danube cluster release ./danube-data --metadata etcd://h1:2379,h2:2379/production",
    ]
)
def release(
    *,
    common: Common,
    data_dir: _Directory,
    metadata: _Metadata,
    copy_objects: Annotated[
        bool,
        option(
            "--copy-objects",
            help="Copy the objects to DATA_DIR. Else they stay in the store that was shared.",
        ),
    ] = False,
    dry_run: _DryRun = False,
    config: ConfigOption = None,
) -> None:
    """Let the last broker of a cluster go on alone, without etcd: topics, messages, cursors and all ids stay.

    The other brokers were removed before. Killed or failed, it goes on when it is called again.
    """
    from pydanube_broker.home.release import release as move

    settings = _settings(config, data_dir, metadata)
    done = run_async(partial(move, settings, copy=copy_objects, dry_run=dry_run, say=_say))
    if common.as_json:
        print_json({**asdict(done), "dry_run": dry_run})
        return
    if dry_run:
        _show_forecast(done, metadata_to=str(data_dir), objects_to=done.url)
        return
    tier = "" if copy_objects else f"DANUBE_TIER__URL={settings.tier.url} "
    print(
        f"Broker {done.broker_id} is of no cluster any more. Its objects are in {done.url}. Start it:\n"
        f"  {tier}{program_name()} up --data-dir {data_dir}"
    )


@command(
    examples=[
        "DANUBE_TIER__URL=/mnt/danube-objects danube cluster recover ./broker-1 --metadata etcd://h1:2379,h2:2379/production",
    ]
)
def recover(
    *,
    common: Common,
    data_dir: _Directory,
    metadata: _Metadata,
    without: Annotated[
        list[str] | None,
        option(
            "--without",
            metavar="BROKER_ID",
            help="A broker whose directory is gone for good. May be repeated.",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Let a cluster go on after etcd was restored from an older snapshot: once for the data directory of each broker.

    All brokers are stopped. Killed or failed, it goes on when it is called again.
    """
    from pydanube_broker.home.cluster_recovery import recover as tell

    settings = _settings(config, data_dir, metadata)
    done = run_async(
        partial(tell, settings, without=tuple(without or ()), by=default_principal(os.environ), say=_say)
    )
    if common.as_json:
        print_json(asdict(done))
    elif done.waiting:
        print(
            f"Broker {done.broker_id} is recovered. Call this for the data directories of {', '.join(done.waiting)} too, where they "
            "are. No broker starts before. Where one is gone for good: --without BROKER_ID"
        )
    else:
        print(
            f"Broker {done.broker_id} is recovered, and so is the cluster: start its brokers.\n"
            f"  {program_name()} up --data-dir {data_dir} --metadata {metadata}"
        )


@command(
    examples=[
        "danube cluster snapshot ./danube-data",
        "DANUBE_TIER__URL=/mnt/danube-objects danube cluster snapshot ./broker-1 --metadata etcd://h1:2379,h2:2379/production --verify",
    ]
)
def snapshot(
    *,
    common: Common,
    data_dir: _Directory,
    metadata: _Metadata = "embedded",
    verify: Annotated[
        bool, option("--verify", help="Compare it with the metadata. Those of a lone broker: it is stopped.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Read the newest snapshot of the metadata back from the object store. The leader writes one a minute if they changed.

    Ends with 5 if the snapshot is not what the metadata were.
    """
    from pydanube_broker.home.snapshot_check import read_back

    found = run_async(partial(read_back, _settings(config, data_dir, metadata), verify=verify))
    newest, compared = found.snapshot, found.comparison
    if common.as_json:
        print_json(
            {
                "cluster": found.cluster,
                "snapshot": newest.snapshot,
                "revision": newest.revision,
                "written_at": format_time(newest.written_ms),
                "pieces": newest.pieces,
                "bytes": newest.bytes,
                "keys": len(newest.keys),
                "withheld": newest.withheld,
                "verified": None if compared is None else compared.agrees,
                "comparison": None if compared is None else asdict(compared),
            }
        )
    else:
        print(
            f"Snapshot {newest.snapshot} of {found.cluster}: {len(newest.keys)} keys at revision {newest.revision}, written "
            f"{format_time(newest.written_ms)}, {newest.pieces} pieces with {human_bytes(newest.bytes)}."
        )
        print(f"Secrets are not in it: {', '.join(newest.withheld) or 'there are none'}.")
        if compared is not None:
            print(
                f"{compared.same} keys are the same in the metadata, {compared.changed_since} were changed since, "
                f"{len(compared.gone)} are only in the snapshot."
            )
    if compared is not None and not compared.agrees:
        wrong = compared.wrong + (compared.gone if compared.exact else [])
        raise CorruptObject(
            f"snapshot {newest.snapshot} differs from the metadata at revision {newest.revision}: {', '.join(wrong[:_SHOWN])}. "
            "Restart the leader, which begins a new one, and report this",
            key=newest.snapshot,
            keys=wrong[:_SHOWN],
        )
