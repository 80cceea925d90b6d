"""`danube tls init`: an authority, and certificates of it for a broker and a client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from pydanube.principal import default_principal
from pydanube_core.errors import InvalidArgument

from pydanube_cli.certificates import CertificateFolder
from pydanube_cli.command import Common, command
from pydanube_cli.option import option
from pydanube_cli.render import print_json

HOSTS: Final = "localhost,127.0.0.1,::1"
DAYS: Final = 365

HostsOption = Annotated[str, option("--hosts", "NAME,…", "Names and addresses that clients dial.")]
DirOption = Annotated[Path, option("--dir", "DIR", "Where the files are made.")]


@command(
    examples=[
        "danube tls init",
        "danube tls init --hosts broker.example.org,10.0.0.5 --dir ./certificates",
        "danube tls init --force   # renew: running brokers take the new files by themselves",
    ]
)
def init(
    *,
    common: Common,
    hosts: HostsOption = HOSTS,
    dir: DirOption = Path("danube-security"),
    principal: Annotated[
        str | None, option("--principal", "NAME", "Whom the client's certificate names [default: user@host]")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long they are valid.")] = DAYS,
    force: Annotated[
        bool, typer.Option("--force", help="Make the certificates anew, of the same authority.")
    ] = False,
) -> None:
    """Make a certificate authority, and certificates of it for a broker and a client."""
    folder = CertificateFolder(path=dir.expanduser().absolute())
    name = principal or common.principal or default_principal()
    # RFC 5280: a common name has 64 characters at most
    if not name.isprintable() or not 1 <= len(name) <= 64:
        raise InvalidArgument(
            "--principal: use 1-64 printable characters", field="principal", value=name[:100]
        )
    folder.make([host.strip() for host in hosts.split(",")], principal=name, days=days, again=force)
    ca, cert, key = (str(folder.file(name)) for name in ("ca.crt", "server.crt", "server.key"))
    client_cert, client_key = (str(folder.file(f"client.{end}")) for end in ("crt", "key"))
    if common.as_json:
        print_json(
            {"ca": ca, "cert": cert, "key": key, "client_cert": client_cert, "client_key": client_key,
             "principal": name}
        )  # fmt: skip
        return
    print(
        f"""Made {folder.path}: ca, server and client, each a .crt and a .key (keep the keys to yourself).

The broker, in its settings file (danube up --config FILE):
  [tls]
  cert = "{cert}"
  key = "{key}"

Clients:
  export DANUBE_CA={ca}
  danube topics list --admin https://localhost:50051
  connect("https://localhost:6650", tls=Tls(ca="{ca}"))"""
    )
