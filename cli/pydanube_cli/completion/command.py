"""`danube completion SHELL` prints a shell's script, `danube --install-completion` installs it for the shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, cast

from pydanube_core.errors import InvalidArgument

from pydanube_cli.command import Common, command
from pydanube_cli.parameters import argument

_BASH: Final = r"""# Completion of danube in bash: source this file, or put  source <(danube completion bash)  in ~/.bashrc
_danube() {
    local program=${COMP_WORDS[0]/#\~/$HOME} line todo= word
    type -P "$program" >/dev/null 2>&1 || program=danube
    COMPREPLY=()
    while IFS= read -r line; do
        if [ -z "$todo" ]; then todo=$line; else COMPREPLY+=("$line"); fi
    done < <("$program" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    word=${COMP_WORDS[COMP_CWORD]}
    [ "$word" = "=" ] && word=
    case $todo in
        files|folders)
            compopt -o filenames 2>/dev/null
            local how=-f
            [ "$todo" = folders ] && how=-d
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$how" -- "$word")
            ;;
        words)
            case "${#COMPREPLY[@]} ${COMPREPLY[0]}" in "1 "*:) compopt -o nospace 2>/dev/null ;; esac
            ;;
    esac
}
complete -F _danube danube
"""
_ZSH: Final = r"""#compdef danube
# Completion of danube in zsh: source this file, or put it in a folder of $fpath as _danube
_danube() {
    local -a lines names shown
    local line
    lines=("${(@f)$("${(Q)words[1]}" __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    case $lines[1] in
        files) compset -P '*='; _files ;;
        folders) compset -P '*='; _files -/ ;;
        words)
            for line in "${(@)lines[2,-1]}"; do
                names+=("${line%%$'\t'*}")
                shown+=("${line/$'\t'/  -- }")
            done
            (( $#names )) || return 1
            if [[ $#names == 1 && $names[1] == *: ]]; then
                compadd -S '' -- "$names[@]"
            else
                compadd -d shown -- "$names[@]"
            fi
            ;;
        *) return 1 ;;
    esac
}
if [[ $funcstack[1] == _danube ]]; then
    _danube "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _danube danube
fi
"""
_FISH: Final = r"""# Completion of danube in fish: ~/.config/fish/completions/danube.fish
function __danube_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l lines (command $before[1] __complete fish $before[2..-1] "$current" 2>/dev/null)
    switch "$lines[1]"
        case files
            __fish_complete_path "$current"
        case folders
            __fish_complete_directories "$current"
        case words
            test (count $lines) -gt 1; and printf '%s\n' $lines[2..-1]
    end
end
complete -c danube -f -a '(__danube_complete)'
"""
SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def install(shell: str, *, home: Path, env: Mapping[str, str]) -> list[Path]:
    """Write the script to where the shell reads it at its start. Return the written paths.

    bash and zsh get one line in their start file, once. fish finds completions without one.
    """
    if shell == "fish":
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        return [_write(config / "fish" / "completions" / "danube.fish", SCRIPTS[shell])]
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    script = _write(data / "danube" / f"completion.{shell}", SCRIPTS[shell])
    start = home / ".bashrc" if shell == "bash" else Path(env.get("ZDOTDIR") or home) / ".zshrc"
    line = f'source "{script}"  # completion of danube'
    text = start.read_text(encoding="utf-8") if start.exists() else ""
    if line in text.splitlines():
        return [script]
    gap = "" if not text or text.endswith("\n") else "\n"
    with start.open("a", encoding="utf-8") as file:
        file.write(f"{gap}{line}\n")
    return [script, start]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@command(
    examples=["danube completion bash", "danube completion fish > ~/.config/fish/completions/danube.fish"]
)
def completion(
    *,
    common: Common,
    shell: Annotated[Literal["bash", "zsh", "fish"], argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell: words, flags, and names of topics, subscriptions … from the broker.

    `danube --install-completion` puts it where the shell finds it.
    """
    sys.stdout.write(SCRIPTS[shell])


def install_completion(words: Sequence[str]) -> int:
    """`danube --install-completion [SHELL]`. The default is that of $SHELL."""
    named = words[0] if words else Path(os.environ.get("SHELL", "")).name
    if named not in SCRIPTS or len(words) > 1:
        raise InvalidArgument(
            f"--install-completion {named or '…'}: name one of bash, zsh, fish", field="shell", value=named
        )
    shell = cast("Literal['bash', 'zsh', 'fish']", named)
    for path in install(shell, home=Path.home(), env=os.environ):
        print(f"wrote {path}")
    print(f"{shell} completes danube from its next start on")
    return 0
