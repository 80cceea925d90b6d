"""`danube __complete`: what a press of the tab key runs. Says nothing where it knows nothing, and never fails.

    danube __complete bash LINE WORDBREAKS     the line up to the cursor, as bash has it
    danube __complete zsh WORD…                the words after `danube`; the last is being typed
    danube __complete fish WORD…

The first line of the answer is what the shell is to do: `words` (one a line follows; for zsh and fish with a tab and
what it is for), `files` or `folders`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pydanube_cli.completion.names import names_of
from pydanube_cli.completion.words import FILES, FOLDERS, Wanted, load, split_line, wanted


def complete(shell: str, words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the lines to print for the shell."""
    breaks = ""
    if shell == "bash":
        line, breaks = words
        words = split_line(line)[1:]
    found = wanted(load(), words)
    if found.kind in (FILES, FOLDERS):
        return [found.kind]
    candidates = dict(found.words)
    if found.kind is not None:
        candidates |= dict.fromkeys(_names(found, env), "")
    typed = found.glued + found.begin
    # bash replaces what stands behind the last of its break characters only
    cut = max((typed.rfind(mark) + 1 for mark in breaks), default=0)
    told = []
    for word, about in candidates.items():
        whole = (found.glued + word)[cut:]
        told.append(f"{whole}\t{about}" if about and shell != "bash" else whole)
    return ["words", *told]


def _names(found: Wanted, env: Mapping[str, str]) -> list[str]:
    # here, not above: most presses of the key ask the broker for nothing
    from pydanube.addresses import admin_address
    from pydanube.principal import default_principal

    assert found.kind is not None
    admin, broker = found.common.get("--admin"), found.common.get("--broker")
    if admin is None and (name := found.common.get("--cluster")):
        from pydanube_cli.clusters import find_cluster

        cluster = find_cluster(name, env)
        admin, broker = cluster.admin, broker or cluster.broker
    url = admin_address(admin, broker, env)
    address = url.rpartition("://")[2].strip("/ ")
    principal = found.common.get("--as") or default_principal(env)
    return names_of(found.kind, found.begin, topic=found.topic, address=address, principal=principal)


def main(argv: Sequence[str]) -> int:
    """Entry of the hidden word."""
    with suppress(Exception):  # a message in the middle of somebody's command line helps nobody
        sys.stdout.write("".join(f"{line}\n" for line in complete(argv[0], argv[1:], os.environ)))
        sys.stdout.flush()
    return 0
