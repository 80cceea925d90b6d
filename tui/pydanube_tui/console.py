"""The application: the effect of every key, click and typed word. `actions` has the table of keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Final

from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.units import parse_duration_s
from textual import events
from textual.widgets import Input

from pydanube_tui import files
from pydanube_tui.actions import Action
from pydanube_tui.bars import help_lines
from pydanube_tui.board import SUGGESTER, Board, misread
from pydanube_tui.cluster import bearable
from pydanube_tui.dialogs import Choice, Choosing, Field, Form
from pydanube_tui.files import picture
from pydanube_tui.filters import FilterError, parse
from pydanube_tui.grid import Grid
from pydanube_tui.operating import Operating
from pydanube_tui.page import MISREAD, Call, Target
from pydanube_tui.payloads import json_text
from pydanube_tui.tail import Tail
from pydanube_tui.themes import LOOKS
from pydanube_tui.views import place, unknown
from pydanube_tui.views.messages import FORMS, message_lines
from pydanube_tui.views.subscriptions import place_of_subscription

_PLACEHOLDERS: Final = {
    ":": "view and its subject. Up: earlier entries",
    "/": "text /regex/ ~fuzzy !not column:>1k $.json.path:x",
}
_MOVES: Final = ("up", "down", "pageup", "pagedown", "home", "end", "j", "k", "g", "G")


class Console(Board):
    """The console: the board with everything that its keys do."""

    @cached_property
    def operating(self) -> Operating:
        """Return the operations on this board."""
        return Operating(self)

    # -- keys --------------------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        """Note activity (a key, a click, the wheel), also in dialogs, and handle our keys.

        They are handled before the focused widget gets them: keys that arrive together, as over ssh, would reach it
        before the first of them has opened a line for the others.
        """
        if isinstance(event, events.Key | events.MouseDown | events.MouseScrollDown | events.MouseScrollUp):
            self.last_used = self.options.now()
        if isinstance(event, events.Key) and not event.is_forwarded and len(self.screen_stack) == 1:
            take = self._typed if self.prompting else self._pressed
            if take(event):
                return
        await super().on_event(event)

    def _pressed(self, event: events.Key) -> bool:
        """Perform the action of a key. Return False if it has none here."""
        printable = event.character is not None and event.is_printable and event.character != " "
        name = event.character if printable else event.key
        assert name is not None
        action = self.keys_here.get(name)
        if action is None and name in _MOVES:
            self._move(name)
        elif action is not None:
            self.perform(action)
        elif (column := next((each for each in self.page.columns if each.key == name), None)) is not None:
            self._sort(column.name)
        else:
            return False
        return True

    def _typed(self, event: events.Key) -> bool:
        """Handle a key in the line of `:` or `/`. Return False if it is for the line's widget."""
        prompt = self.query_one("#prompt", Input)
        if event.key == "escape":
            self._close_prompt(cleared=True)
        elif event.key == "enter":
            self._submit(prompt.value.strip())
        elif self.prompting == ":" and event.key in ("up", "down"):
            self._recall(1 if event.key == "up" else -1)
        elif event.is_printable and event.character is not None:
            prompt.replace(event.character, *prompt.selection)
            self._narrow_typed(prompt.value)  # with the key: line and rows are one paint, not two frames
        else:
            return False
        return True

    def _move(self, key: str) -> None:
        grid = self.grid
        if isinstance(self.feed, Tail) and key in ("up", "pageup", "home", "k", "g"):
            self.feed.follow(False)  # a user who goes up wants to read
        if key in ("home", "g"):
            grid.go_to(0)
        elif key in ("end", "G"):
            grid.go_to(len(grid.rows) - 1, -1)
        else:
            step = grid.page_rows if key.startswith("page") else 1
            grid.move(-step if key in ("up", "k", "pageup") else step)

    def perform(self, action: Action) -> None:
        """Perform an action: the console's own, or an operation of the cluster."""
        handler = self.own_actions.get(action.id)
        if handler is not None:
            try:
                done = handler()
            except (ClusterError, *MISREAD) as error:
                self._failed(error)
            else:
                if done is not None:
                    self._begin(done)
        elif action.operation is not None:
            self._begin(self.operating.operate(action))
        elif action.id.startswith("go."):
            self.go(Target(view=action.id.removeprefix("go.")))

    def _begin(self, work: Awaitable[None]) -> None:
        """Start an action that takes a while, in place of the one started before."""
        self.run_worker(self._finish(work), group="action", exclusive=True)

    async def _finish(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (ClusterError, *MISREAD) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Report the error of an action. The console continues."""
        told = error if isinstance(error, ClusterError) else misread(error)
        self.say(told.message, bad=True)

    @cached_property
    def own_actions(self) -> Mapping[str, Callable[[], Awaitable[None] | None]]:
        """Return the handlers of the console's own actions, by id."""
        return {
            "go.command": lambda: self._ask(":"),
            "go.back": self._back,
            "go.last": self._last,
            "go.earlier": lambda: self.step(-1),
            "go.later": lambda: self.step(1),
            "row.enter": self._enter,
            "row.json": self._json,
            "row.messages": lambda: self.go(self.operating.choose_topic(Target(view="messages"))),
            "row.objects": lambda: self.go(self.operating.choose_topic(Target(view="objects"))),
            "row.dead_letters": self._dead_letters,
            "messages.follow": self._toggle_follow,
            "messages.jump": self._jump,
            "messages.form": self._next_form,
            "schemas.compare": self.operating.compare,
            "change.undo": self.operating.undo,
            "row.copy": self._copy,
            "row.copy_json": self._copy_json,
            "row.mark": self._mark,
            "row.mark_all": self._mark_all,
            "table.filter": lambda: self._ask("/"),
            "table.faults": self._faults,
            "table.sort": lambda: self._sort(None),
            "table.reverse": self._reverse,
            "table.columns": self._choose_columns,
            "table.export": self._export,
            "screen.help": self._help,
            "screen.palette": self._palette,
            "screen.refresh": self.wake.set,
            "screen.pause": self._pause,
            "screen.faster": lambda: self._pace(0.5),
            "screen.slower": lambda: self._pace(2.0),
            "screen.theme": self._next_theme,
            "screen.save": self._save,
            "screen.quit": self.exit,
        }

    # -- the prompt --------------------------------------------------------------------------------------------

    def _ask(self, kind: str) -> None:
        """Open the line for `:` or `/`."""
        self.prompting, self.recalled = kind, 0
        prompt = self.query_one("#prompt", Input)
        prompt.add_class("-open")
        prompt.value = self.narrowed = self.filter.text if kind == "/" and self.filter is not None else ""
        prompt.suggester = SUGGESTER if kind == ":" else None
        prompt.placeholder = _PLACEHOLDERS[kind]
        prompt.cursor_position = len(prompt.value)
        prompt.focus()

    def _recall(self, step: int) -> None:
        """Put an earlier input into the line, from the newest back."""
        self.recalled = max(0, min(len(self.said), self.recalled + step))
        prompt = self.query_one("#prompt", Input)
        prompt.value = self.said[-self.recalled] if self.recalled else ""
        prompt.cursor_position = len(prompt.value)

    def _close_prompt(self, *, cleared: bool) -> None:
        prompt = self.query_one("#prompt", Input)
        prompt.remove_class("-open")
        if cleared and self.prompting == "/" and self.filter is not None:
            self.filter = None
            self.draw()
        self.prompting = ""
        self.grid.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter the rows by the line's text, regardless of its source."""
        if event.input.id == "prompt":
            self._narrow_typed(event.value)

    def _narrow_typed(self, words: str) -> None:
        """Filter by a line that is being typed. While it cannot be parsed, the rows stay."""
        with suppress(FilterError):
            self._narrow(words.strip())

    def _narrow(self, words: str) -> None:
        """Show the rows that match the filter in the line of `/`.

        Raises:
            FilterError: they are no filter. The rows stay.
        """
        if self.prompting == "/" and words != self.narrowed:
            filter = parse(words, self.page.columns) if words else None
            self.filter, self.narrowed = filter, words
            self.draw()

    def _submit(self, words: str) -> None:
        """Carry out the typed input."""
        kind = self.prompting
        try:
            self._narrow(words)
        except FilterError as error:
            self.say(str(error), bad=True)
            return
        self._close_prompt(cleared=False)
        if kind == ":" and words:
            self.said.append(words)
            self._command(words.split())

    def _command(self, words: list[str]) -> None:
        try:
            match words:
                case ["q" | "quit"]:
                    self.exit()
                case ["cluster", name]:
                    self.switch(name)
                case ["cluster"]:
                    self._choose_cluster()
                case ["theme", name]:
                    self._dress(name)
                case ["refresh", pace]:
                    self._pace_to(parse_duration_s(pace, field="refresh"))
                case _:
                    self.go(place(words))
        except InvalidArgument as error:
            self.say(error.message, bad=True)

    # -- the console's own actions -----------------------------------------------------------------------------

    def _back(self) -> None:
        if self.filter is not None:
            self.filter = None
            self.draw()
        elif self.marked:
            self.marked.clear()
            self.draw()
        else:
            self.step(-1)

    def _last(self) -> None:
        if self.at > 0:
            self.go(self.places[self.at - 1])

    def _enter(self) -> None:
        if (row := self.grid.selected) is None:
            return
        if self.target.view == "runbooks":
            self._begin(self.operating.run_runbook(row.key))
        elif isinstance(self.feed, Tail):
            self.read(f"{self.feed.topic} {row.key}", message_lines(row.item, self.form))
        elif isinstance(row.enter, Target):
            self.go(row.enter)
        elif isinstance(row.enter, Call):
            self._begin(self._carry_out(row.enter))
        else:
            self.read_json(row.key, row.item)

    async def _carry_out(self, call: Call) -> None:
        """Call an operation that a finding names."""
        self.read_json(call.operation, await self.caller.call(call.operation, call.arguments))

    def on_grid_entered(self) -> None:
        """Handle a click on the selected row."""
        self._enter()

    def on_grid_titled(self, event: Grid.Titled) -> None:
        """Handle a click on a title."""
        self._sort(event.column.name)

    def _json(self) -> None:
        if (row := self.grid.selected) is not None:
            self.read_json(row.key, row.item)

    def _copy(self) -> None:
        if (row := self.grid.selected) is not None:
            self.copied(row.key.partition(" ")[2] or row.key, "the name")

    def _copy_json(self) -> None:
        if (row := self.grid.selected) is not None:
            self.copied(json_text(row.item, indent=2), "the row as JSON")

    def _mark(self) -> None:
        if (row := self.grid.selected) is not None:
            self.marked ^= {row.key}
            self.draw()
            self.grid.move(1)

    def _mark_all(self) -> None:
        here = {row.key for row in self.grid.rows if not row.heading}
        self.marked = set() if here <= self.marked else self.marked | here
        self.draw()

    def _sort(self, name: str | None) -> None:
        columns = [column.name for column in self.grid.columns]
        if not columns:
            return
        now = self.sorted_by(self.page)
        if name is None:
            at = columns.index(now[0]) if now is not None and now[0] in columns else -1
            name = columns[(at + 1) % len(columns)]
        column = next(each for each in self.page.columns if each.name == name)
        falling = not now[1] if now is not None and now[0] == name else bool(column.unit)
        self.memory.keep(self.target.view, "sort", (name, falling))
        self.draw()

    def _faults(self) -> None:
        """Filter by the view's own words for rows that are not well, or end that filter."""
        words = self.view.faults
        self.filter = None if self.filter and self.filter.text == words else parse(words, self.page.columns)
        self.draw()

    def _reverse(self) -> None:
        now = self.sorted_by(self.page)
        if now is not None:
            self.memory.keep(self.target.view, "sort", (now[0], not now[1]))
            self.draw()

    async def _choose_columns(self) -> None:
        """Choose columns one at a time: chosen ones leave, others are added at the end. The choice is remembered."""
        while self.page.columns:
            shown = [column.name for column in self.columns_of(self.page)]
            others = [column.name for column in self.page.columns if column.name not in shown]
            choices = [Choice(id=name, title=f"● {name}", help="shown, choose to hide") for name in shown]
            choices += [
                Choice(id=name, title=f"○ {name}", help="hidden, choose to show at the end")
                for name in others
            ]
            chosen = await self.push_screen_wait(Choosing(self.look, "columns: esc when done", choices))
            if chosen is None:
                return
            kept = [name for name in shown if name != chosen] if chosen in shown else [*shown, chosen]
            self.memory.keep(self.target.view, "columns", kept or shown)
            self.draw()

    async def _export(self) -> None:
        choices = [
            Choice(id="csv", title="CSV", help="the columns as they are shown"),
            Choice(id="json", title="JSON", help="every field of every row"),
        ]
        chosen = await self.push_screen_wait(
            Choosing(self.look, f"export {len(self.grid.rows)} rows", choices)
        )
        if chosen is None:
            return
        rows = [row for row in self.grid.rows if not row.heading]
        shown, known = self.grid.columns, self.page.columns
        text = files.as_csv(shown, known, rows) if chosen == "csv" else files.as_json(rows)
        path = files.write(self.options.files, f"{self.target.view}.{chosen}", text)
        self.say(f"wrote {len(rows)} rows, {len(text.encode())} bytes, to {path}")

    def _help(self) -> None:
        lines = help_lines(self.view, self.options.actions, self.cells_of_dialog, self.offers)
        self.read(f"{self.view.title}: its contents, and every key", lines)

    async def _palette(self) -> None:
        choices = self.operating.choices_of([*self.options.actions.values()])
        chosen = await self.push_screen_wait(Choosing(self.look, "what do you want to do?", choices))
        if chosen is not None:
            self.call_later(self.perform, self.options.actions[chosen])

    def _dead_letters(self) -> None:
        if "subscription" in self.named_here:
            self.go(place_of_subscription(self.named_here, "dead-letters"))

    def _toggle_follow(self) -> None:
        if isinstance(self.feed, Tail):
            self.feed.follow(not self.feed.following)
            self.wake.set()

    async def _jump(self) -> None:
        help = "offset:42, time:-15m, time:2026-01-31T12:00:00Z, earliest, latest"
        form = Form(self.look, "read from", [Field(name="from", help=help, required=True)])
        values = await self.push_screen_wait(form)
        if values is not None and isinstance(self.feed, Tail):
            self.go(Target(view="messages", arguments={"topic": self.feed.topic, "from": values["from"]}))

    def _next_form(self) -> None:
        self.form = FORMS[(FORMS.index(self.form) + 1) % len(FORMS)]
        self.situation.rows.clear()  # their texts are others
        self.wake.set()

    def _pause(self) -> None:
        self.paused = not self.paused
        self.wake.set()
        self.bars()

    def _pace(self, factor: float) -> None:
        self._pace_to(self.refresh_s * factor)

    def _pace_to(self, seconds: float) -> None:
        self.refresh_s = bearable(seconds)
        self.wake.set()
        self.bars()

    def _next_theme(self) -> None:
        names = list(LOOKS)
        self._dress(names[(names.index(self.look.theme.name) + 1) % len(names)])

    def _dress(self, name: str) -> None:
        if name not in LOOKS:
            raise unknown("theme", name, LOOKS)
        self.look = self.grid.look = self.dressed(name)
        self.theme = name
        self.draw()

    def _save(self) -> None:
        svg, text = (
            files.write(self.options.files, f"{self.target.view}.{ending}", picture(self, form))
            for ending, form in (("svg", "svg"), ("txt", "text"))
        )
        self.say(f"wrote {svg} and {text}")

    # -- clusters ----------------------------------------------------------------------------------------------

    def _choose_cluster(self) -> None:
        hints = {True: "production", False: ""}
        choices = [
            Choice(id=each.name, title=each.name, help=each.admin_url, hint=hints[each.production])
            for each in self.clusters.values()
        ]
        self.push_screen(
            Choosing(self.look, "cluster", choices), lambda name: self.switch(name) if name else None
        )
