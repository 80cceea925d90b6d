"""`danube cluster recover`: a cluster goes on with an etcd that was restored from an older snapshot."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pydanube_cli.command import Common, command
from pydanube_cli.config import ConfigOption
from pydanube_cli.ready import program_name
from pydanube_cli.render import print_json
from pydanube_cli.runtime import run_async


@command(
    examples=[
        "DANUBE_TIER__URL=/mnt/danube-objects danube cluster recover ./broker-1 --metadata etcd://h1:2379,h2:2379/production",
    ]
)
def recover(
    *,
    common: Common,
    data_dir: Annotated[Path, typer.Argument(metavar="DATA_DIR", help="Of a broker, which is stopped.")],
    metadata: Annotated[
        str,
        typer.Option("--metadata", metavar="URL", help="etcd://host:port[,host:port]/prefix, restored."),
    ],
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without", metavar="BROKER_ID", help="Whose directory is gone for good; may be repeated."
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Let a cluster go on after etcd was restored from an older snapshot: once for the data directory of each broker.

    All brokers are stopped. Killed or failed, it goes on when it is called again.
    """
    from pydanube_broker.cluster_recovery import recover as tell
    from pydanube_broker.settings_load import load_settings

    settings = load_settings(
        config, os.environ, overrides={"data.dir": str(data_dir), "metadata.url": metadata}
    )

    logging.getLogger("pydanube").addHandler(
        logging.NullHandler()
    )  # what it does is said in lines of its own

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    done = run_async(partial(tell, settings, without=tuple(without or ()), say=say))
    if common.as_json:
        print_json(asdict(done))
    elif done.waiting:
        print(
            f"Broker {done.broker_id} is recovered. Call this for the data directories of {', '.join(done.waiting)} too, where they "
            "are; no broker starts before. Where one is gone for good: --without BROKER_ID"
        )
    else:
        print(
            f"Broker {done.broker_id} is recovered, and so is the cluster: start its brokers.\n"
            f"  {program_name()} up --data-dir {data_dir} --metadata {metadata}"
        )
