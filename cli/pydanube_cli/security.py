"""`danube security init|off|recover`: turn a broker's authorization on and off, and let its owner in again.

They work on a data directory whose broker is stopped, and take effect at its next start. They write
`security.toml` in the data directory, which has the lowest precedence of all sources of settings, and records
in its metadata.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from pydanube.principal import default_principal
from pydanube_broker.settings.values import SECURITY_FILE
from pydanube_core.errors import InvalidArgument, NotImplementedYet, PlanRequired
from pydanube_core.security.api_tokens import DICE_BYTES, new_token
from pydanube_core.security.permissions import Binding, Principal, Scope
from pydanube_core.security.records import LET_IN, binding_key, encode_binding, encode_token, token_key

from pydanube_cli.certificates import DAYS, HOSTS, CertificateFolder, DirOption, HostsOption
from pydanube_cli.command import Common, command
from pydanube_cli.parameters import option
from pydanube_cli.ready import replace_file
from pydanube_cli.render import print_json
from pydanube_cli.runtime import run_async

DataOption = Annotated[Path, option("--data-dir", "DIR", "The broker's data directory.")]
ADMIN: Final = "admin"


@command(
    examples=[
        "danube security init",
        "danube security init --data-dir ./danube-data --hosts broker.example.org",
    ]
)
def init(
    *,
    common: Common,
    data_dir: DataOption = Path("danube-data"),
    hosts: HostsOption = HOSTS,
    dir: DirOption = Path("danube-security"),
) -> None:
    """Make certificates and the first admin's token, and turn TLS and authentication on from the next start."""
    folder = CertificateFolder(path=dir.expanduser().absolute())
    if data_dir.exists():
        _check_stopped(data_dir)
    if not folder.file("server.crt").exists():
        folder.make([host.strip() for host in hosts.split(",")], principal=ADMIN, days=DAYS, again=False)
    principal = Principal(ADMIN)
    token = run_async(partial(_let_in, data_dir, principal, f"{ADMIN}-init", "security.init"))
    data_dir.chmod(0o700)  # messages, and hashes of tokens: files are protected like ports
    written = data_dir.absolute() / SECURITY_FILE
    replace_file(written, _settings(folder).encode(), mode=0o600, durable=True)
    ca, cert, key = (str(folder.file(name)) for name in ("ca.crt", "client.crt", "client.key"))
    if common.as_json:
        print_json({"ca": ca, "cert": cert, "key": key, "principal": principal.name, "token": token})
        return
    print(
        f"""Wrote {written}: TLS and authentication are on when the broker starts again,
with the certificates in {folder.path} (for other hosts: danube tls init --force --hosts …).

The admin's token, shown now and never again:
  {token}

The shell (better in a file: DANUBE_TOKEN_FILE):
  export DANUBE_CA={ca} DANUBE_TOKEN={token}
  danube security whoami --admin https://localhost:50051

Python:
  connect("https://localhost:6650", token="…", tls=Tls(ca="{ca}"))

Claude Desktop, Cursor: the variables DANUBE_CA and DANUBE_TOKEN_FILE in "env", and --admin https://localhost:50051 in "args" of
what `danube mcp --print-config` shows. A token of its own, with the role viewer, is enough for most:
  danube tokens create assistant --role viewer"""
    )


@command(examples=["danube security off --yes"])
def off(
    *,
    common: Common,
    data_dir: DataOption = Path("danube-data"),
    yes: Annotated[bool, option("--yes", help="Do it.")] = False,
) -> None:
    """Take back what `security init` wrote: no TLS, no authentication from the next start. Tokens and bindings stay."""
    written = data_dir.absolute() / SECURITY_FILE
    if not written.is_file():
        raise InvalidArgument(
            f"there is no {written}: the present settings are in a settings file or the environment. See `danube config show`",
            field="data_dir",
            value=str(data_dir),
        )
    if not yes:
        raise PlanRequired(
            f"{written} would be deleted: from the next start any client that reaches the ports may read and destroy everything, "
            "and nothing is encrypted. Say --yes"
        )
    _check_stopped(data_dir)
    written.unlink()
    print_json({"deleted": str(written)}) if common.as_json else print(f"deleted {written}")


@command(examples=["danube security recover", "danube security recover --data-dir ./danube-data"])
def recover(*, common: Common, data_dir: DataOption = Path("danube-data")) -> None:
    """Let the owner of the data directory in again: a new token of a principal that may do everything."""
    if not (data_dir / "format.json").exists():
        raise InvalidArgument(
            f"{data_dir} is no broker's data directory", field="data_dir", value=str(data_dir)
        )
    principal = Principal(f"recovered-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    token = run_async(partial(_let_in, data_dir, principal, principal.name, "security.recover"))
    if common.as_json:
        print_json({"principal": principal.name, "token": token})
        return
    print(
        f"""{principal.name} may do everything, from the next start on. Its token, shown now and never again:
  {token}

Restore the lost permissions, then take it back: danube bindings delete {principal.name}; danube tokens list"""
    )


async def _let_in(data_dir: Path, principal: Principal, name: str, operation: str) -> str:
    """Bind the role admin to a principal in a stopped broker's metadata, and return a token for it.

    The audit is in the journal, which a stopped broker does not write: a note is left for its next start.

    Raises:
        DataDirLocked: the broker runs.
        NotImplementedYet: its metadata is elsewhere.
    """
    from pydanube_broker.admin_state import AdminState
    from pydanube_broker.home.data_dir import DataDir
    from pydanube_storage.metadata import EmbeddedStore

    with DataDir(data_dir, upgrade=False) as directory:
        path = directory.path
        if (path / "cluster.json").exists():
            raise NotImplementedYet(
                f"the metadata of {path} is on etcd: use the socket of a running broker there, "
                f"--admin unix:{path}/admin.sock, with [auth] in its settings"
            )
        binding = Binding(id=name, principal=principal, roles=("admin",), scope=Scope.CLUSTER)
        now_ms = time.time_ns() // 1_000_000
        dice = secrets.token_bytes(DICE_BYTES)
        record, token = new_token(name, principal, dice, now_ms=now_ms, until_ms=None)
        note = {
            "operation": operation,
            "principal": str(principal),
            "token_id": record.token_id,
            "by": default_principal({}),
            "time_ms": now_ms,
        }
        changes: Mapping[str, bytes | None] = {
            binding_key(binding.id): encode_binding(binding),
            token_key(record.token_id): encode_token(record),
            LET_IN + record.token_id: json.dumps(note).encode(),
        }
        async with EmbeddedStore(path / "metadata.sqlite") as store:
            await AdminState(store).write(changes, {})
    return token


def _check_stopped(data_dir: Path) -> None:
    from pydanube_broker.home.data_dir import DataDir

    with DataDir(data_dir, upgrade=False):
        pass


def _settings(folder: CertificateFolder) -> str:
    return f'''# Written by `danube security init`; `danube security off` takes it back. Other settings win over it.
[tls]
cert = "{folder.file("server.crt")}"
key = "{folder.file("server.key")}"
client_ca = "{folder.file("ca.crt")}"
client_auth = "optional"

[auth]
mode = "required"

[admin]
compat_destructive = false
'''
