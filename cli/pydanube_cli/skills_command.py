"""`danube skills`: install the shipped instructions for coding agents in the folders where their programs look.

Each is a folder with a SKILL.md in the open form of https://agentskills.io.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal

from pydanube_core.errors import AlreadyExists, InvalidArgument

from pydanube_cli.command import Common, command
from pydanube_cli.parameters import option
from pydanube_cli.ready import replace_file
from pydanube_cli.render import print_json

FILE: Final = "SKILL.md"
#: by the agent's program: where it looks within a project
FOLDERS: Final = {"claude": ".claude/skills", "cursor": ".cursor/skills", "copilot": ".github/skills"}


def shipped() -> dict[str, str]:
    """Return the text of each skill, by name."""
    folder = files("pydanube_cli") / "skills"
    found = (each for each in folder.iterdir() if (each / FILE).is_file())
    return {
        each.name: (each / FILE).read_text(encoding="utf-8") for each in sorted(found, key=lambda e: e.name)
    }


def description_of(text: str) -> str:
    """Return the description in the front matter of a skill."""
    return next(line for line in text.splitlines() if line.startswith("description: ")).partition(" ")[2]


@command(examples=["danube skills list"])
def list_skills(*, common: Common) -> None:
    """List the skills for coding agents that this version ships."""
    found = [{"name": name, "description": description_of(text)} for name, text in shipped().items()]
    if common.as_json:
        print_json({"items": found})
        return
    for each in found:
        print(f"{each['name']}\n    {each['description']}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """Options of `danube skills install`."""

    program: Annotated[
        Literal["claude", "cursor", "copilot"] | None,
        option("--for", help="Only for this program. [default: all three]"),
    ] = None
    dir: Annotated[str, option("--dir", "DIR", "The project's folder.")] = "."


@command(examples=["danube skills install", "danube skills install --for claude --dir ~/shop"])
def install(*, common: Common, options: InstallOptions) -> None:
    """Write the skills into a project, for Claude Code, Cursor and Copilot. Again: bring them up to date."""
    root = Path(options.dir).expanduser()
    if not root.is_dir():
        raise InvalidArgument(
            f"--dir {options.dir!r} is no folder: name that of the project", field="dir", value=options.dir
        )
    skills = shipped()
    programs = [options.program] if options.program is not None else list(FOLDERS)
    wanted = {
        root / FOLDERS[program] / name / FILE: text for program in programs for name, text in skills.items()
    }
    for path in wanted:  # before anything is written
        _check_ours(path)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    if common.as_json:
        print_json({"written": [str(path) for path in wanted]})
        return
    for program in programs:
        print(f"{root / FOLDERS[program]}: {', '.join(skills)}")


def _check_ours(path: Path) -> None:
    """Check that a path is free or a skill of that name, and no link. Raises `AlreadyExists`."""
    if path.is_symlink() or any(each.is_symlink() for each in list(path.parents)[:3]):
        raise AlreadyExists(
            f"{path} is reached by a link: remove the link, or choose another --dir", field="dir"
        )
    if not path.exists():
        return
    head = path.read_bytes()[:200].decode("utf-8", "replace").splitlines()[:2]
    if head != ["---", f"name: {path.parent.name}"]:
        raise AlreadyExists(
            f"{path} exists and is not a skill of danube: move it away, or choose another --dir",
            field="dir",
            value=str(path),
        )
