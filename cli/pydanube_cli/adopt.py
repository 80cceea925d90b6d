"""`danube cluster adopt`: a lone broker's data directory becomes the first broker of a cluster."""

from __future__ import annotations

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
        "DANUBE_TIER__URL=/mnt/danube-objects danube cluster adopt ./danube-data --metadata etcd://h1:2379,h2:2379/production",
    ]
)
def adopt(
    *,
    common: Common,
    data_dir: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="Of the lone broker, which is stopped.")
    ],
    metadata: Annotated[
        str,
        typer.Option(
            "--metadata", metavar="URL", help="etcd://host:port[,host:port]/prefix; the prefix is empty."
        ),
    ],
    config: ConfigOption = None,
) -> None:
    """Move a lone broker to etcd: topics, messages, cursors and objects stay; other brokers can join it then.

    Killed or failed, it goes on when it is called again.
    """
    from pydanube_broker.adoption import adopt as move
    from pydanube_broker.settings_load import load_settings

    settings = load_settings(
        config, os.environ, overrides={"data.dir": str(data_dir), "metadata.url": metadata}
    )

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    done = run_async(partial(move, settings, say=say))
    if common.as_json:
        print_json(asdict(done))
        return
    print(
        f"Broker {done.broker_id} is of cluster {done.cluster_id}. Start it, and others beside it:\n"
        f"  {program_name()} up --data-dir {data_dir} --metadata {done.metadata}"
    )
