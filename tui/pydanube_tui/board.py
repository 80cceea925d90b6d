"""The screen: header, grid, prompt and footer, the history of places, and the worker of the current view.

No key handler waits. Calls of the cluster run in a worker of the view, which ends when the view is left. The actions of
the keys are in `console`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from textwrap import wrap
from typing import ClassVar, Final

from pydanube_admin.engine.permission import may_use
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError, Internal, InvalidArgument
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.suggester import SuggestFromList
from textual.widgets import Static

from pydanube_tui import files
from pydanube_tui.actions import Action, by_key
from pydanube_tui.bars import footer, freshness, header
from pydanube_tui.cluster import Cluster, Connection, Options, State, bearable
from pydanube_tui.dialogs import Entry, Reading
from pydanube_tui.files import Memory
from pydanube_tui.filters import Filter, FilterError, RowsInSight, parse
from pydanube_tui.grid import MANY, Grid
from pydanube_tui.page import MISREAD, Column, Item, Line, PageContent, Row, Target, Tone, dim, line
from pydanube_tui.payloads import json_text
from pydanube_tui.source import Caller, Feed
from pydanube_tui.tail import Tail
from pydanube_tui.text import clean, count
from pydanube_tui.themes import LOOKS, Look
from pydanube_tui.view import Situation, View
from pydanube_tui.views import VIEWS, unknown
from pydanube_tui.views.messages import FORMS


@contextmanager
def within(seconds: float, error: Exception) -> Iterator[None]:
    """Raise the error in a block that has used so many seconds of processor time.

    By a signal, because no task runs while a pattern is matched. Python runs signal handlers only in the main thread.
    In another thread the block has no limit.
    """

    def stop(*_: object) -> None:
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGVTALRM, stop)
    # Repeated: if it is raised while a cell is made, the cell counts as unreadable and the error is lost.
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, handler)


HISTORY: Final = 100
LEFT: Final = 20  # charts of views that were left, and are kept
SUGGESTER: Final = SuggestFromList(  # completions after `:`
    [*VIEWS, *(alias for view in VIEWS.values() for alias in view.aliases), "cluster", "theme", "quit"],
    case_sensitive=False,
)
RIGHTS_S: Final = 30.0  # between two reads of the caller's permissions
EVERYTHING: Final = frozenset({"*"})
LIVE_S: Final = 0.25  # between two reads of a tail
# Refreshes without news, after which a page stays: its marks and rates have disappeared by then
STILL: Final = 2
FILTER_S: Final = 2.0  # of the processor, for all rows
FOLDED: Final = 200  # rows that are prepared for filters in one go


class Board(App[None]):
    """The screen, the history of places, and the worker of the view. `caller`: for tests, instead of a client."""

    CSS = """
    Screen { layers: base; background: $background; }
    Dialog { background: $background 60%; }
    Dialog:ansi { background: transparent; }
    #top, #bottom { height: 1; width: 100%; }
    #prompt { height: 1; border: none; padding: 0 1; background: $panel; display: none; }
    #prompt.-open { display: block; }
    Grid { height: 1fr; background: $background; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        clusters: Sequence[Cluster],
        options: Options | None = None,
        *,
        start: Target | None = None,
        caller: Caller | None = None,
    ) -> None:
        self.options = options or Options()
        super().__init__(ansi_color=True if self.options.no_colour else None)  # else it would draw in greys
        self.clusters = {cluster.name: cluster for cluster in clusters}
        self.cluster = clusters[0]
        self._given_caller = caller
        self._client: OpsClient | None = None
        self.look = self.dressed("ansi" if self.options.no_colour else self.options.theme)
        self.memory = Memory(self.options.state_file)
        self.places: list[Target] = [start or Target(view="overview")]
        self.at = 0
        self.standing = Connection()
        self.refresh_s = bearable(self.options.refresh_s)
        self.paused = False
        self.page = PageContent(empty="loading …")
        self.filter: Filter | None = None
        self.marked: set[str] = set()
        self.feed: Feed | Tail | None = None
        self._left: dict[tuple[str, ...], Feed] = {}  # feeds of views that were open: their charts go on
        # filter and selected row of these views, and of the present one until its first page is on the screen
        self._stood: dict[tuple[str, ...], tuple[str, str]] = {}
        self._returning: tuple[str, str] | None = None
        self.form = FORMS[0]  # of payloads
        self.situation = self._situation()
        self._in_sight = RowsInSight()
        self._folded: Sequence[Row] = ()
        self._counts = ""
        self.wake = asyncio.Event()  # refresh now
        self.settled = asyncio.Event()  # an answer, or its absence, is on the screen
        self.prompting = ""
        self.narrowed = ""  # the last words after `/`. A filter that took too long is not one
        self.said: deque[str] = deque(maxlen=HISTORY)  # inputs after `:`
        self.recalled = 0  # how far back in them
        self.last_used = self.options.now()
        self.keys_here: dict[str, Action] = {}
        self._wanted: Sequence[Action] = ()  # those of the footer
        self.held: Collection[str] = EVERYTHING  # permissions of the caller, from the broker

    # -- putting it together -----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Put header, table, prompt line and footer on the screen."""
        yield Static(id="top")
        yield Grid(self.look)
        yield Entry(id="prompt", select_on_focus=False)
        yield Static(id="bottom")

    def on_mount(self) -> None:
        """Set the theme, open the first view, and begin to count the age of the data."""
        for look in LOOKS.values():
            self.register_theme(look.theme)
        self.theme = self.look.theme.name
        self.look.dress(self.grid)
        self.grid.focus()
        self.set_interval(1.0, self.tick)
        self.open_view(fresh=True)
        self.run_worker(self._know_rights(), group="rights", exclusive=True)

    async def on_unmount(self) -> None:
        """Close the connection to the cluster."""
        if self._client is not None:
            await self._client.aclose()

    @property
    def grid(self) -> Grid:
        """The table below the header."""
        return self.screen_stack[0].query_one(Grid)

    @property
    def target(self) -> Target:
        """The present place: a view and its arguments."""
        return self.places[self.at]

    @property
    def named_here(self) -> Item:
        """The arguments of the present place, and the fields of the selected row, which override them."""
        row = self.grid.selected
        return {**self.target.arguments, **(row.item if row is not None else {})}

    @property
    def view(self) -> View:
        """The view that is on the screen."""
        view = VIEWS[self.target.view]
        return view.instead(self.target.arguments) or view

    @property
    def now_ms(self) -> int:
        """Now, in milliseconds since 1970."""
        return round(self.options.now() * 1000)

    @property
    def caller(self) -> Caller:
        """The client that calls operations of the current cluster."""
        if self._given_caller is not None:
            return self._given_caller
        if self._client is None:
            self._client = OpsClient(
                self.cluster.admin_url,
                timeout_s=self.options.timeout_s,
                principal=self.options.principal,
                face="tui",
                read_only=not self.options.allow_writes,
            )
        return self._client

    # -- going places ------------------------------------------------------------------------------------------

    def go(self, target: Target) -> None:
        """Go to a place, which becomes the newest of the history."""
        if target == self.target:
            return
        self._leave()
        del self.places[self.at + 1 :]
        self.places.append(target)
        del self.places[:-HISTORY]
        self.at = len(self.places) - 1
        self.open_view(fresh=True)

    def step(self, steps: int) -> None:
        """Go forward in the history, or back if negative."""
        if 0 <= self.at + steps < len(self.places):
            self._leave()
            self.at += steps
            self.open_view(fresh=True)
            self._returning = self._stood.get(self._place)

    @property
    def _place(self) -> tuple[str, ...]:
        """The present place in a form that can be a key."""
        return (self.cluster.name, self.target.view, *sorted(map(str, self.target.arguments.items())))

    def _leave(self) -> None:
        """Keep the filter and the selected row of the present view for the way back."""
        row = self.grid.selected if self.grid.held else None
        self._stood.pop(self._place, None)
        self._stood[self._place] = (self.filter.text if self.filter else "", row.key if row else "")
        for oldest in list(self._stood)[:-HISTORY]:
            del self._stood[oldest]

    def _return(self) -> None:
        """Filter and select as when the view was left."""
        words, key = self._returning or ("", "")
        self._returning = None
        with suppress(FilterError):
            self.filter = parse(words, self.page.columns) if words else None
        self.draw(fresh=True)
        self.grid.select(key)

    def open_view(self, *, fresh: bool) -> None:
        """Show the present view, as soon as its first answer arrives."""
        self._choose_actions()
        self.filter, self.page, self.situation = None, PageContent(empty="loading …"), self._situation()
        self.marked.clear()
        self._returning = None
        self.workers.cancel_group(self, "tail")
        self.feed = self._feed()
        self.standing = Connection(state=State.CONNECTING)
        self.draw(fresh=fresh)
        self.run_worker(self._follow(self.feed), group="view", exclusive=True)

    def _choose_actions(self) -> None:
        """Choose the actions of this view: by their keys, and the most important ones for the footer."""
        self.keys_here = by_key(self.options.actions, self.target.view)
        here = (each for each in self.options.actions.values() if each.keys and each.within(self.target.view))
        self._wanted = sorted(filter(self.may, here), key=self._weight)

    def _feed(self) -> Feed | Tail:
        """Return the feed of the view: its operations, or a reader of messages."""
        arguments = self.target.arguments
        if not (self.view.live and arguments.get("topic")):
            feed = Feed(self.caller, self.view, arguments, self._left.pop(self._place, None))
            self._left[self._place] = feed  # at the end, as the newest
            for oldest in list(self._left)[:-LEFT]:
                del self._left[oldest]
            return feed
        tail = Tail(self.caller, self.cluster.broker_url, arguments["topic"], arguments.get("from"))
        self.run_worker(tail.read(), group="tail")
        return tail

    async def _follow(self, feed: Feed | Tail) -> None:
        """Refresh the view until it is left."""
        first = True
        pace_s = self.refresh_s
        while True:
            try:
                await self._renew(feed)
            except ClusterError as error:
                self.standing.failed(error)
                if self.standing.state is State.REFUSED or self.standing.as_of_ms is None:
                    says = wrap(str(error), max(20, self.size.width - 2))
                    self.page = PageContent(
                        head=[*(line((f" {each}", Tone.BAD)) for each in says), ()], empty=""
                    )
            if self._returning is not None and self.page.columns:
                self._return()
            else:
                self.draw(fresh=first)
            first = False
            pace_s = LIVE_S if isinstance(feed, Tail) else self.refresh_s
            self.settled.set()
            self.wake.clear()
            await self._fold()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.paused else self.standing.wait_s(pace_s)):
                    await self.wake.wait()

    async def _know_rights(self) -> None:
        """Read the caller's permissions every `RIGHTS_S`.

        Before the first answer every action is offered, and the broker refuses those not permitted.
        """
        while True:
            with suppress(ClusterError, *MISREAD):
                held = frozenset((await self.caller.call("security.whoami"))["permissions"])
                if held != self.held:
                    self.held = held
                    self._choose_actions()
                    self.bars()
            await asyncio.sleep(RIGHTS_S)

    def may(self, action: Action) -> bool:
        """Return whether the caller may do this anywhere: call an operation, or open a view that calls some."""
        view = VIEWS.get(action.id.removeprefix("go.")) if action.operation is None else None
        asked = [] if action.operation is None else [action.operation]
        if view is not None:
            asked = [ask.operation for ask in view.asks({}).values() if not ask.optional]
        return all(may_use(OPERATIONS[each], self.held) for each in asked)

    def offers(self, action: Action) -> bool:
        """Return whether an action is available: in this view, to this caller, in this console."""
        return (
            action.within(self.target.view)
            and (self.options.allow_writes or not action.changes)
            and self.may(action)
        )

    async def _renew(self, feed: Feed | Tail) -> None:
        """Refresh the answers, and make their page.

        Raises:
            ClusterError: as `Feed.refresh`. `Internal` if an answer cannot be read.
        """
        try:
            await feed.refresh(self.now_ms)
            self._make(feed)
            self.standing.answered(self.view.as_of_ms(self.situation) or self.now_ms)
        except MISREAD as error:
            if isinstance(feed, Feed):
                feed.begin()
            raise misread(error) from error

    # -- drawing -----------------------------------------------------------------------------------------------

    def dressed(self, theme: str) -> Look:
        """Return the look of a theme, without glyphs if `--ascii` was given."""
        return replace(LOOKS[theme], ascii_only=self.options.ascii_only)

    def _situation(self) -> Situation:
        """Return the situation of the present view, before its first answer."""
        return Situation(
            view=self.view, arguments=dict(self.target.arguments), answers={}, now_ms=self.now_ms
        )

    def _make(self, feed: Feed | Tail) -> None:
        """Make the page of the answers."""
        situation = self.situation
        situation.answers, situation.series, situation.times = feed.answers, feed.series, feed.times
        situation.now_ms = self.now_ms
        situation.width, situation.height, situation.form = self.size.width, self.size.height, self.form
        if feed.still < STILL or self.standing.state is State.REFUSED:
            self.page = self.view.page(situation)

    async def _fold(self) -> None:
        """Prepare the texts that a filter searches, `FOLDED` rows at a time, so that no key waits for all of them."""
        rows = self.page.rows
        if len(rows) <= MANY or rows is self._folded:
            return
        self._folded = rows
        for number, row in enumerate(rows):
            if number % FOLDED == 0:
                await asyncio.sleep(0)
            row.folded  # noqa: B018 - kept by the row

    def columns_of(self, page: PageContent) -> Sequence[Column]:
        """Return the chosen columns of a page, in order."""
        return self.memory.columns(self.target.view, page.columns)

    def sorted_by(self, page: PageContent) -> tuple[str, bool] | None:
        """Return how a page is sorted."""
        return self.memory.sort(self.target.view) or page.sort

    @property
    def _gone(self) -> bool:
        """Whether the screen is being closed."""
        return not self.screen_stack or not self.screen_stack[0].query(Grid)

    def draw(self, *, fresh: bool = False) -> None:
        """Filter and sort the rows of the page, and show them in the table."""
        if self._gone:
            return
        sort = self.sorted_by(self.page)
        try:
            with within(FILTER_S, FilterError(f"the filter took longer than {FILTER_S:g} s, and is off")):
                rows = self._in_sight.of(self.page, sort, self.filter)
        except FilterError as error:
            self.filter = None
            self.say(str(error), bad=True)
            rows = self._in_sight.of(self.page, sort, None)
        self.marked &= self.situation.rows.keys()
        grid = self.grid
        grid.sorted_by, grid.marked = sort, self.marked
        grid.stale = self.standing.stale(self.now_ms, self.refresh_s)
        grid.show(self.page, rows, self.columns_of(self.page), fresh=fresh)
        if isinstance(self.feed, Tail) and self.feed.following and sort is None:
            self.call_after_refresh(grid.go_to, len(rows) - 1, -1)
        selectable, whole = (sum(not row.heading for row in each) for each in (rows, self.page.rows))
        self._counts = f"{selectable:,}" if selectable == whole else f"{selectable:,} of {whole:,}"
        self.bars()

    def tick(self) -> None:
        """Once a second: update the age of the data, and end an idle session."""
        now = self.options.now()
        if self.options.idle_s is not None and now - self.last_used > self.options.idle_s:
            self.exit(message="ended: it was not used")
        if self._gone:
            return
        stale = self.standing.stale(self.now_ms, self.refresh_s)
        if stale != self.grid.stale:
            self.grid.stale = stale
            self.grid.refresh()
        self.bars()

    def bars(self) -> None:
        """Draw the line at the top and the one at the bottom."""
        look, filter = self.look, self.filter
        here = [look.letters(clean(each)) for each in (self.cluster.name, *self._crumbs())]
        fresh = freshness(self.standing, self.now_ms, self.refresh_s, paused=self.paused)
        allowed = (" WRITES ", Tone.WARN) if self.options.allow_writes else dim(" read-only ")
        name, rest = header(here[0], here[1:], (*fresh, allowed), self.size.width)
        style = look.production if self.cluster.production else look.bar + look.tones[Tone.ACCENT]
        top = Text(look.letters(name), style, no_wrap=True, end="")
        self._set("#top", top.append_text(self._barred(rest)))
        counts = [
            f"{len(self.marked):,} marked" if self.marked else "",
            f"/{filter.text}" if filter is not None else "",
            f"{count(self.feed.dropped)} came too fast to be shown"
            if isinstance(self.feed, Tail) and self.feed.dropped
            else "",
            self._counts,
        ]
        told = "  ".join(each for each in counts if each)
        self._set("#bottom", self._barred(footer(self._wanted, told, self.size.width)))

    def _set(self, id: str, text: Text) -> None:
        for bar in self.screen_stack[0].query(id).results(Static):  # none while the screen is taken down
            bar.update(text, layout=False)

    def _barred(self, spans: Line) -> Text:
        drawn = Text(no_wrap=True, end="")
        for words, tone in spans:
            drawn.append(self.look.letters(clean(words)), self.look.on_bar(tone))
        return drawn

    def _weight(self, action: Action) -> int:
        """Return the place of an action in the footer: help first, then the actions of this view only."""
        first = ("screen.help", "row.enter", "table.filter", "go.command")
        if action.id in first:
            return first.index(action.id)
        if action.changes and not self.options.allow_writes:
            return 99
        if action.id.removeprefix("go.") in VIEWS:
            return 70
        return 10 if action.views else 50 if action.id in ("go.back", "row.json", "screen.quit") else 60

    def _crumbs(self) -> list[str]:
        found: list[str] = []
        for target in self.places[max(0, self.at - 2) : self.at + 1]:
            view = VIEWS[target.view]
            given = ((name, str(value)) for name, value in target.arguments.items())
            detail = " › ".join(_short_id(value) if name == "broker_id" else value for name, value in given)
            found.append(f"{view.title} {detail}" if detail else view.title)
        return found

    # -- showing texts ---------------------------------------------------------------------------------------

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a notification in a corner."""
        text = self.look.letters(clean(text))
        self.notify(text, severity="error" if bad else "information", markup=False, timeout=8 if bad else 4)

    @property
    def cells_of_dialog(self) -> int:
        """The width of a text in a dialog, in cells: without border, padding and scroll bar."""
        return min(int(self.size.width * 0.9), 116) - 6

    def read(self, title: str, lines: Sequence[Line]) -> None:
        """Show a text in a dialog."""
        self.push_screen(Reading(self.look, title, lines))

    def read_json(self, title: str, value: object) -> None:
        """Show a value as JSON in a dialog."""
        self.read(title, [((each, Tone.PLAIN),) for each in json_text(value, indent=2).split("\n")])

    def copied(self, text: str, what: str) -> None:
        """Copy by the terminal (OSC 52), and to a file for terminals that cannot."""
        text = text.encode(errors="backslashreplace").decode()
        self.copy_to_clipboard(text)
        try:
            also = f"also in {files.write(self.options.files, 'copied.txt', text)}"
        except InvalidArgument as error:
            also = f"in no file: {error.message}"
        self.say(f"copied {what}: {len(text.encode())} bytes, {also}")

    def switch(self, name: str) -> None:
        """Switch to another cluster: no data of the former one stays on the screen."""
        if name not in self.clusters:
            raise unknown("cluster", name, self.clusters)
        client, self._client = self._client, None
        if client is not None:
            self.run_worker(client.aclose())
        self.cluster, self.held = self.clusters[name], EVERYTHING
        self.run_worker(self._know_rights(), group="rights", exclusive=True)
        self.places, self.at = [Target(view=self.target.view if not self.view.takes else "overview")], 0
        self.open_view(fresh=True)


def _short_id(broker: str) -> str:
    """Return the last digits of a broker's id, which has nineteen: they do for a title. A name or an address is whole."""
    return broker[-6:] if broker.isdigit() else broker


def misread(error: Exception) -> Internal:
    """Return the error for an answer of unexpected shape."""
    return Internal(
        f"the answer is not as this console expects it ({type(error).__name__}: {error}). Is the broker of another version?"
    )
