"""The page docs/console.md: views, keys and filters from their registries. tools/gen_docs.py writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydanube_tui.actions import ACTIONS, Action
from pydanube_tui.themes import LOOKS
from pydanube_tui.views import VIEWS

from tools.tables import table

HEAD: Final = """\
# The console

`danube tui` (extra `tui`) shows a cluster in a terminal: findings first, everything else one key away. It only reads, unless
it is started with `--allow-writes`. Each view shows answers of operations, and each change is an operation with its plan, audit
and undo.

```sh
danube tui                                    # the cluster of --broker, --cluster or the defaults
danube tui --view 'subscription orders billing' --refresh 5s
danube tui --cluster prod --allow-writes      # its name stays in sight, in colour where it is production
danube tui --serve                            # in a browser, by a link that works once
danube tui --snapshot subscriptions --format text     # one screen, for a page or a screen reader
```

![Overview](console-overview.svg)

The line at the top shows the cluster, the view, the age of the data and the interval of refreshes. Data that is too old is
dimmed. A lost connection is red, with the number of tries, and is opened again without a key. `?` explains the view and its
keys, `:` goes to any view, `/` filters, and escape returns.

A chart begins at 0 and covers the last hour. Its peak is written beside it. Rates far above the others are drawn as `▲`,
because their scale would flatten the rest. Unread messages are always drawn to scale. Small charts in tables also begin at 0, and
end at their highest value.

![Subscriptions](console-subscriptions.svg)

The lists of topics and subscriptions begin with their sums. `!` leaves only the rows that are not well. The underlined letter of a
title sorts by the column. Escape leads back to the row and the filter of the view before.

A refresh keeps the selected row, by its name, at its line. Until a key moves the cursor, the first row stays selected instead,
because new findings are added at the top. ↑ and ↓ mark numbers that the last refresh changed. Enter opens a row. On a finding
it makes the finding's first suggested call.

![One subscription](console-subscription.svg)

The messages view reads with a reader of its own, so no subscription changes. It keeps the last thousand messages (16 MiB at
most) and counts at the bottom the messages that it dropped before they were shown.

![Messages](console-messages.svg)

## Views

After `:` come a view's name or alias and its subject. The action of a view's key is `go.VIEW`. The up key brings back earlier entries. The command beside a view gives
the same facts without a screen, with `--json` as JSON. `danube tui --snapshot VIEW --json` prints a view's rows, and ends with the usual exit codes.

"""

FILTERS: Final = """\
## Filters

Several terms may follow `/`. A row must match all of them.

| term | rows that stay |
|---|---|
| `orders` | with that text in any column but ages and rates |
| `/^ord.*9/` | with the regular expression |
| `~odrs` | with these letters in this order |
| `!orders` | without it. `!` goes before any term |
| `status:stuck` | with that text in the column, which may be named by its beginning |
| `lag:>1k` `bytes:>=1Mi` `age:<5m` | by number: `> >= < <= =`, units `k M G`, `Ki Mi Gi`, `s m h d` |
| `$.total:>10` `$.lines[0].sku:x` | by JSON path: in a message's value, in other views in the row as `y` shows it |

"""

KEYS_TEXT: Final = """\
## Keys

Changes need `--allow-writes` and, with authentication on, the caller's right to them. A change that the caller may not make is
missing from the footer and the palette, and dimmed in the help. The console shows the plan first: the data that is lost and
the clients that are affected. Cancel has the focus. A change that destroys data, or that moves other clients' topics, needs the
name typed in. Marked rows, at most a hundred, are planned together, and topics share one plan and token. A file gives actions other
keys. Two actions with one key in a view are an error that names both. An action without a view works everywhere.

```toml
# danube tui --keys keys.toml
[keys]
"table.filter" = ["/", "f4"]
"row.json" = "J"
```

"""

END: Final = """\
## In a browser

`danube tui --serve` prints a link with a token that works once. In exchange the browser gets a cookie that scripts cannot read
and other sites and other ports of this machine are not sent, and the command prints a new link for the next browser. Page and
websocket check cookie, `Host` and `Origin`. A connection without the cookie is closed after ten seconds. The page loads nothing from other hosts. At most four consoles run, and a console ends after `--idle` (30 minutes)
without use. It listens on this machine alone. From another machine, use `ssh -L 8766:127.0.0.1:8766 HOST`. In a container whose
port is published on 127.0.0.1, use `--host 0.0.0.0 --insecure-bind`, as [the compose file](operating.md#compose) does.

## Looks

`--theme` or f2: {themes}. `ansi` uses the terminal's own sixteen colours. `NO_COLOR` selects it. `--ascii` draws
with ASCII alone, and `--no-mouse` leaves the mouse to the terminal. No fact is shown by colour alone. Names and payloads are
never read as markup, and their control characters never reach the terminal.

The console remembers columns and their order for each view in `$XDG_STATE_HOME/danube/console.json`. Copied text goes to the
terminal's clipboard (OSC 52), and for terminals without one into a file, which the console names.
"""


#: actions that open a view: the table of views has their keys
_GO_TO_VIEW: Final = frozenset(f"go.{name}" for name in VIEWS)


def page() -> str:
    """Return the page on the console: prose, views, filters and keys."""
    parts = [
        HEAD,
        "| view | key | also | of | shows | without a screen |\n|---|---|---|---|---|---|\n",
        *_views(),
    ]
    parts += ["\n", FILTERS, KEYS_TEXT]
    for group in dict.fromkeys(action.group for action in ACTIONS.values()):
        actions = [each for each in ACTIONS.values() if each.group == group and each.id not in _GO_TO_VIEW]
        where = any(each.views for each in actions)
        head = ("key", "action", "where", "effect") if where else ("key", "action", "effect")
        parts += [f"### {group}\n\n{table(head, (_key(each, where=where) for each in actions))}\n"]
    parts += [
        "The cursor moves with the arrows, `j k g G`, page up and down, home and end. A column's capital letter, which its title "
    ]
    parts += ["and `?` show, sorts by it.\n\n", END.format(themes=", ".join(f"`{name}`" for name in LOOKS))]
    return "".join(parts)


def _views() -> Iterator[str]:
    for view in VIEWS.values():
        of = " ".join([*(name.upper() for name in view.takes), *(f"[{name.upper()}]" for name in view.may)])
        also = ", ".join(f"`{each}`" for each in view.aliases)
        twins = " and ".join(f"`{each.removesuffix(' --json')}`" for each in view.twin.split("; "))
        go = ACTIONS.get(f"go.{view.name}")
        keys = " ".join(f"`{key}`" for key in go.keys) if go else ""
        yield f"| `{view.name}` | {keys} | {also} | {of} | {view.summary} | {twins} |\n"


def _key(action: Action, *, where: bool) -> tuple[str, ...]:
    keys = " ".join(f"`{key}`" for key in action.keys)
    views = (", ".join(action.views),) if where else ()
    return keys, f"`{action.id}`", *views, action.help
