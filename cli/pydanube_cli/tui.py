"""`danube tui`: the console, in this terminal, in a browser, or one screen of it as a picture."""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydanube_core.errors import InsecureBind, InvalidArgument
from pydanube_core.units import parse_duration_s

from pydanube_cli.clusters import all_clusters
from pydanube_cli.command import Common, command
from pydanube_cli.parameters import option
from pydanube_cli.runtime import require

if TYPE_CHECKING:
    from pydanube_tui.cluster import Cluster
    from pydanube_tui.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class TuiOptions:
    """The view to begin with, how it looks, and whether it may change anything."""

    view: Annotated[str, option("--view", "NAME", "Where to begin: overview, topics, 'topic orders' …")] = (
        "overview"
    )
    refresh: Annotated[str, option("--refresh", "DURATION", "Interval of refreshes.")] = "2s"
    allow_writes: Annotated[
        bool, option("--allow-writes", help="Offer changes too. Each shows its plan first.")
    ] = False
    theme: Annotated[str, option("--theme", "NAME", "dark, light, contrast, colour-blind, ansi.")] = "dark"
    keys: Annotated[str | None, option("--keys", "FILE", "Other keys, by action, in TOML.")] = None
    no_mouse: Annotated[bool, option("--no-mouse", help="Leave the mouse to the terminal.")] = False
    ascii_only: Annotated[bool, option("--ascii", help="Draw with ASCII alone.")] = False
    snapshot: Annotated[str | None, option("--snapshot", "VIEW", "Draw one screen and end.")] = None
    form: Annotated[
        Literal["text", "svg"], option("--format", help="Of the snapshot. --json gives its rows.")
    ] = "text"
    size: Annotated[str, option("--size", "WxH", "Of the snapshot.")] = "160x48"
    serve: Annotated[
        bool, option("--serve", help="Show it in a browser. The link is printed, and works once.")
    ] = False
    host: Annotated[str, option("--host", help="With --serve.")] = "127.0.0.1"
    port: Annotated[
        int, option("--port", metavar="PORT", min=0, max=65_535, help="With --serve, 0: any free one.")
    ] = 8766
    insecure_bind: Annotated[
        bool,
        option("--insecure-bind", help="With --serve: allow a public --host. The link alone gives access."),
    ] = False
    idle: Annotated[
        str | None,
        option("--idle", "DURATION", "End after so long without a key or click. [default: 30m with --serve]"),
    ] = None
    output: Annotated[str | None, option("-o", "--out", "FILE", "File of the snapshot, else stdout.")] = None


@command(
    examples=[
        "danube tui",
        "danube tui --view subscriptions --refresh 5s",
        "danube tui --cluster prod --allow-writes",
        "danube tui --serve",
        "danube tui --snapshot overview --format svg --size 160x48 -o overview.svg",
        "danube tui --snapshot subscriptions --json",
    ]
)
def tui(*, common: Common, options: TuiOptions) -> int:
    """Watch the cluster, and with --allow-writes change it. ? explains every key."""
    require("tui", what="danube tui")
    gc.disable()  # until all is imported: those objects are permanent
    app = _console(common, options)
    gc.freeze()
    gc.enable()
    if options.snapshot is not None:
        _draw(app, common, options)
        return 0
    if options.serve:
        _serve(common, options)
        return 0
    other = [name for name in ("stdin", "stdout", "stderr") if not getattr(sys, name).isatty()]
    if other and "TEXTUAL_DRIVER" not in os.environ:
        raise InvalidArgument(
            f"danube tui needs a terminal for stdin, stdout and stderr, and {other[0]} is not one. Do not redirect it. Without "
            "a terminal, --snapshot VIEW prints one screen, and --serve shows the console in a browser",
            field=other[0],
            value="no terminal",
        )
    app.run(mouse=not options.no_mouse)
    return app.return_code or 0


def _console(common: Common, given: TuiOptions) -> Console:
    from pydanube_tui.actions import ACTIONS, read_keys
    from pydanube_tui.cluster import Options
    from pydanube_tui.console import Console
    from pydanube_tui.themes import LOOKS
    from pydanube_tui.views import place

    words = (given.snapshot or given.view).split()
    if not os.environ.get("NO_COLOR"):
        os.environ.pop("NO_COLOR", None)  # an empty value has no effect, but Textual would draw in greys
    if given.theme not in LOOKS:
        raise InvalidArgument(
            f"--theme {given.theme}: write one of {', '.join(LOOKS)}", field="theme", value=given.theme
        )
    options = Options(
        refresh_s=parse_duration_s(given.refresh, field="refresh"),
        allow_writes=given.allow_writes,
        ascii_only=given.ascii_only,
        idle_s=None if given.idle is None else parse_duration_s(given.idle, field="idle"),
        theme=given.theme,
        no_colour="NO_COLOR" in os.environ,
        principal=common.principal,
        timeout_s=common.timeout_s,
        actions=ACTIONS if given.keys is None else read_keys(given.keys),
        state_file=_state_file() if given.snapshot is None else None,
        files=Path.cwd(),
    )
    return Console(_clusters(common), options, start=place(words))


def _state_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "danube" / "console.json"


def _clusters(common: Common) -> list[Cluster]:
    """Return the chosen cluster first, then those of clusters.toml."""
    from pydanube_tui.cluster import Cluster

    named = [
        Cluster(
            name=each.name,
            admin_url=each.admin or each.broker or common.admin_url,
            broker_url=each.broker or common.broker_url,
            production=each.production,
        )
        for each in all_clusters(os.environ)
    ]
    chosen = next((each for each in named if each.name == common.cluster), None)
    if chosen is None:
        chosen = next((each for each in named if each.admin_url == common.admin_url), None)
    if chosen is None:
        address = common.admin_url.partition("://")[2]
        chosen = Cluster(name=address, admin_url=common.admin_url, broker_url=common.broker_url)
    return [chosen, *(each for each in named if each is not chosen)]


def _serve(common: Common, options: TuiOptions) -> None:
    """Serve the console in a browser: each session runs this command."""
    host, port = options.host, options.port
    if host not in ("127.0.0.1", "localhost", "::1") and not options.insecure_bind:
        raise InsecureBind(
            f"--host {host}: anyone who reads the link in transit could use the console. Forward the port instead: "
            f"ssh -L {port or 8766}:127.0.0.1:{port or 8766} THIS-HOST. If strangers cannot reach the port, as in a "
            "container that publishes it on 127.0.0.1, use --insecure-bind",
            field="host",
            value=host,
        )
    import anyio
    from pydanube_broker.rpc.listening import listen
    from pydanube_tui.serving import ConsoleServer

    words = [sys.executable, "-m", "pydanube_cli.main", "tui", "--view", options.view]
    words += ["--refresh", options.refresh, "--theme", options.theme, "--idle", options.idle or "30m"]
    words += ["--allow-writes"] * options.allow_writes + ["--ascii"] * options.ascii_only
    words += ["--keys", str(Path(options.keys).resolve())] if options.keys else []
    words += ["--admin", common.admin_url, "--broker", common.broker_url]
    words += ["--cluster", common.cluster] if common.cluster else []
    words += ["--as", common.principal] if common.principal else []
    words += ["--timeout", f"{common.timeout_s:g}s"]
    server = ConsoleServer(
        shlex.join(words),
        listen(host, port, flag="port"),
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    anyio.run(server.run)


def _draw(app: Console, common: Common, options: TuiOptions) -> None:
    import anyio
    from pydanube_tui.snapshot import draw

    size, output = options.size, options.output
    found = re.fullmatch(r"(\d{2,3})x(\d{2,3})", size)
    if found is None or not (40 <= int(found[1]) <= 400 and 10 <= int(found[2]) <= 200):
        raise InvalidArgument(f"--size {size}: write 160x48, from 40x10 to 400x200", field="size", value=size)

    async def drawn() -> str:
        wanted = "json" if common.as_json else options.form
        return await draw(app, wanted, (int(found[1]), int(found[2])), timeout_s=common.timeout_s)

    text = anyio.run(drawn)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"--out {output}: {error.strerror}", field="out", value=output) from None
