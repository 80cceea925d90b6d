"""`danube config show|init|check`: the settings of a broker, seen from outside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydanube_core.errors import AlreadyExists

from pydanube_cli.command import Common, command
from pydanube_cli.parameters import argument, option
from pydanube_cli.render import print_json, print_table

if TYPE_CHECKING:
    from pydanube_broker.settings.sections import Entry


ConfigOption = Annotated[Path | None, option("--config", "-c", "FILE", "Settings file (TOML).")]


@command(examples=["danube config show", "danube config show --config danube.toml --json"])
def show(*, common: Common, config: ConfigOption = None) -> None:
    """Show the effective settings and where each came from: default, file and line, variable."""
    from pydanube_broker.settings.load import load_settings

    entries = list(load_settings(config, os.environ).entries())
    if common.as_json:
        tree: dict[str, dict[str, Any]] = {}
        for entry in entries:
            tree.setdefault(entry.section, {})[entry.key] = {
                "value": entry.value,
                "source": str(entry.source),
            }
        print_json(tree)
        return
    rows = [
        {
            "setting": entry.name,
            "value": _shown(entry.value),
            "source": str(entry.source),
            "about": entry.description,
        }
        for entry in entries
    ]
    print_table(rows, ["setting", "value", "source", "about"], fits=True)


@command(examples=["danube config init danube.toml", "danube config init - | less"])
def init(
    *,
    common: Common,
    file: Annotated[str, argument(metavar="FILE", help="Where to write, - for stdout.")] = "danube.toml",
    force: Annotated[bool, option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a settings file in which every setting stands with its default, commented out."""
    text = commented_file()
    if file == "-":
        print(text, end="")
        return
    path = Path(file)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise AlreadyExists(f"{path} exists. --force overwrites it", field="file", value=file) from None
    if common.as_json:
        print_json({"file": str(path)})
    else:
        print(f"wrote {path}. Start with: danube up --config {path}")


@command(examples=["danube config check --config danube.toml"])
def check(*, common: Common, config: ConfigOption = None) -> None:
    """Find mistakes in the settings file and the DANUBE_… variables; exit 2 if there are any."""
    from pydanube_broker.home.metadata_home import check_settings
    from pydanube_broker.settings.load import load_settings
    from pydanube_broker.tier.options import check_asked_for

    settings = load_settings(config, os.environ)
    settings.check_startable()
    check_asked_for(settings)
    check_settings(settings)
    chosen = {name: str(source) for name, source in settings.sources.items()}
    if common.as_json:
        print_json({"ok": True, "file": str(config) if config else None, "set": chosen})
    else:
        print(f"no mistakes: {len(chosen)} settings are set, the rest are defaults")


def commented_file() -> str:
    """Return all settings as a TOML file, each commented out."""
    from pydanube_broker.settings.load import variable_of
    from pydanube_broker.settings.sections import Settings, sections

    lines = [
        "# Settings of a danube broker. Lines that are commented out show the defaults.",
        "# A variable wins over this file, a flag over both. Durations are written 90s, 5m, 24h, sizes 32MiB, 1GiB.",
        f"# Example of a variable: {variable_of('server', 'grpc_port')}=6651. Check with: danube config check --config FILE",
    ]
    current = ""
    for entry in Settings().entries():
        if entry.section != current:
            current = entry.section
            lines += ["", f"# {sections()[current].__doc__}", f"[{current}]"]
        setting = f"# {entry.key} = {_toml(entry)}"
        lines.append(f"{setting:<44}# {_about(entry)}")
    return "\n".join(lines) + "\n"


def _about(entry: Entry) -> str:
    words = (
        f" ({', '.join(entry.words)})"
        if entry.words and not all(w in entry.description for w in entry.words)
        else ""
    )
    return f"{entry.description}{words}{'; not set' if entry.default is None else ''}"


def _toml(entry: Entry) -> str:
    return '""' if entry.default is None else json.dumps(entry.default)


def _shown(value: Any) -> str:
    return "-" if value is None else ("true" if value else "false") if isinstance(value, bool) else str(value)
