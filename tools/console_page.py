"""The section on the console in docs/reference.md: views, keys and filters from their registries. tools/gen_docs.py writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydanube_tui.actions import ACTIONS, Action
from pydanube_tui.themes import LOOKS
from pydanube_tui.views import VIEWS

SCREENS: Final = Path(__file__).resolve().parent.parent / "tests/tui/__snapshots__/test_screens"
# Pictures are the screens that tests/tui/test_screens.py holds the console to.
PICTURES: Final = {
    "console-overview.svg": "test_view[overview-80x24].svg",
    "console-subscriptions.svg": "test_view[subscriptions-80x24].svg",
    "console-subscription.svg": "test_view[subscription-80x24].svg",
    "console-messages.svg": "test_view[messages-80x24].svg",
}

HEAD: Final = """\
## The console

`danube tui` (extra `tui`) shows a cluster in a terminal: what needs a person stands first, everything else is one key
away. It only reads unless it is started with `--allow-writes`, and knows nothing of its own: each view shows what
operations answer, each change is an operation with its plan, its audit and its undo.

```sh
danube tui                                    # the cluster of --broker, --cluster or the defaults
danube tui --view 'subscription orders billing' --refresh 5s
danube tui --cluster prod --allow-writes      # its name stays in sight, in colour where it is production
danube tui --serve                            # in a browser, by a link that works once
danube tui --snapshot subscriptions --format text     # one screen, for a page or a screen reader
```

![Overview](console-overview.svg)

The line at the top says which cluster this is, where one is in it, how old the data is and how often it is asked for.
Data that is older than it should be is dimmed; a lost connection is said in red with the count of tries, and comes
back by itself. `?` explains what is on the screen, and every key of it; `:` goes anywhere; `/` narrows; escape returns.

![Subscriptions](console-subscriptions.svg)

Through a refresh the selected row stays selected, by its name, and at its line; until a key moved the cursor the top of
the page stays in sight instead, where new findings come, and a row that leaves the screen is left for the first. A number that is another than at the refresh before
is marked with ↑ or ↓. Enter opens a row; on a finding it carries out the finding's first next call.

![One subscription](console-subscription.svg)

Messages come from a reader of their own, which no subscription feels. The view keeps the last thousand (16 MiB at
most), and counts at the bottom what went by without having been on the screen.

![Messages](console-messages.svg)

### Views

After `:` come a view's name or alias and what it is of; up brings back what was typed before. The command beside a view
tells the same without a screen; `danube tui --snapshot VIEW --json` gives a view's rows as they are shown, and ends with
the exit codes of every command.

"""

FILTERS: Final = """\
### Filters

Terms after `/` stand side by side, and a row must hold to all of them.

| term | rows that stay |
|---|---|
| `orders` | with that text in any column but ages and rates |
| `/^ord.*9/` | with the regular expression |
| `~odrs` | with these letters in this order |
| `!orders` | without it; `!` goes before any term |
| `status:stuck` | with that text in the column, which may be named by its beginning |
| `lag:>1k` `bytes:>=1Mi` `age:<5m` | by number: `> >= < <= =`; units `k M G`, `Ki Mi Gi`, `s m h d` |
| `$.total:>10` `$.lines[0].sku:x` | by JSON path: in a message's value, in other views in the row as `y` shows it |

"""

KEYS_TEXT: Final = """\
### Keys

A change is there with `--allow-writes` alone, and, where the broker has its locks on, for callers with a right to it: what the
caller may not do is neither in the footer nor in the palette, and dimmed in the help. Its plan is shown first, with what goes and who feels it; Cancel has the
focus, and what destroys, or moves the topics of many, wants the name typed. Marked rows are planned together, at most a hundred; topics are one plan with one token. Other keys come from
a file, by action; two actions with one key in a view are an error that names both.

```toml
# danube tui --keys keys.toml
[keys]
"table.filter" = ["/", "f4"]
"row.json" = "J"
```

"""

END: Final = """\
### In a browser

`danube tui --serve` prints a link with a token that works once. The browser gets a cookie for it that scripts do not see
and other sites cannot send, and the next link is printed for the next browser. Page and websocket check cookie, `Host`
and `Origin`; the page asks no foreign host for anything. Four consoles run at most, and one that is not used for
`--idle` (30 minutes) ends. It listens on this machine alone: from elsewhere, `ssh -L 8766:127.0.0.1:8766 HOST`. In a container, whose port is published on
127.0.0.1, `--host 0.0.0.0 --insecure-bind`: [the compose file](operating.md#compose) has it so.

### Looks

`--theme` or f2: {themes}. `ansi` uses the terminal's own sixteen colours, and is what `NO_COLOR` gets; `--ascii` draws
with ASCII alone; `--no-mouse` leaves the mouse to the terminal. Nothing is told by colour alone. What others wrote is
never read as markup and never reaches the terminal as a control character.

Columns and their order are remembered for each view in `$XDG_STATE_HOME/danube/console.json`. What is copied goes to the
terminal's clipboard (OSC 52) and, for those that do not take it, into a file whose name is said.
"""


def section() -> str:
    """Return the section on the console: prose, views, filters and keys."""
    parts = [
        HEAD,
        "| view | also | of | what it shows | without a screen |\n|---|---|---|---|---|\n",
        *_views(),
    ]
    parts += ["\n", FILTERS, KEYS_TEXT]
    for group in dict.fromkeys(action.group for action in ACTIONS.values()):
        parts += [f"#### {group}\n\n| key | action | where | what it does |\n|---|---|---|---|\n"]
        parts += [_key(action) for action in ACTIONS.values() if action.group == group]
        parts += ["\n"]
    parts += [
        "The cursor moves with the arrows, `j k g G`, page up and down, home and end; a column's capital letter, which `?` "
    ]
    parts += ["names, sorts by it.\n\n", END.format(themes=", ".join(f"`{name}`" for name in LOOKS))]
    return "".join(parts)


def _views() -> Iterator[str]:
    for view in VIEWS.values():
        of = " ".join([*(name.upper() for name in view.takes), *(f"[{name.upper()}]" for name in view.may)])
        also = ", ".join(f"`{each}`" for each in view.aliases)
        twins = " and ".join(f"`{each}`" for each in view.twin.split("; "))
        yield f"| `{view.name}` | {also} | {of} | {view.summary} | {twins} |\n"


def _key(action: Action) -> str:
    keys = " ".join(f"`{key}`" for key in action.keys)
    where = ", ".join(action.views) or "everywhere"
    return f"| {keys} | `{action.id}` | {where} | {action.help} |\n"


def pictures() -> Iterator[tuple[str, str]]:
    """The pictures of the page, by their names."""
    for name, source in PICTURES.items():
        yield name, (SCREENS / source).read_text(encoding="utf-8")
