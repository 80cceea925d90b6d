"""The table: head lines of a page, column titles, rows. Draws only what is visible.

Rows are plain data, so ten thousand cost as much to draw as forty. Everything drawn passes `fit`, the one gate to the
terminal. Through a new page the cursor stays on its row, by its key, and at its line of the screen once the user has
moved it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pydanube_tui.page import Column, Line, PageContent, Row, Tone
from pydanube_tui.text import fit, needs, width
from pydanube_tui.themes import Look

GAP: Final = 2  # cells between columns
SIDE: Final = 2  # cells before the first: the mark
SEEN: Final = 200  # rows, for the width of columns that do not grow with all of them
MANY: Final = 1000  # rows: of more only new ones are measured, and no column becomes narrower
READABLE: Final = 28  # cells of a name, for which less important columns make room


class Grid(ScrollView, can_focus=True):
    """Draws a page. `rows` are those that match the filter, in order."""

    class Entered(Message):
        """The selected row was clicked."""

    class Titled(Message):
        """A column's title was clicked."""

        def __init__(self, column: Column) -> None:
            super().__init__()
            self.column = column

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look
        self.page = PageContent()
        self.rows: Sequence[Row] = ()
        self.columns: Sequence[Column] = ()
        self.marked: Collection[str] = frozenset()
        self.stale = False
        self.sorted_by: tuple[str, bool] | None = None
        self.cursor = 0
        self.held = False  # the user has moved the cursor
        self._at: list[int] = []  # of each shown column, its place in a row's cells
        self._widths: list[int] = []
        # of columns that grow, the widest text of a page
        self._measured: dict[str, tuple[PageContent, int]] = {}

    # -- page and rows ---------------------------------------------------------------------------------------

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""
        if not 0 <= self.cursor < len(self.rows) or self.rows[self.cursor].heading:
            return None
        return self.rows[self.cursor]

    @property
    def _offset(self) -> int:
        return round(self.scroll_offset.y)

    def show(self, page: PageContent, rows: Sequence[Row], columns: Sequence[Column], *, fresh: bool) -> None:
        """Show another page.

        Args:
            rows: of the page, those in the filter, in their order.
            columns: the chosen ones, in their order.
            fresh: the page is of another view: the cursor goes to its first row.
        """
        before, same = self.selected, page is self.page
        line_before = len(self.page.head) + self.cursor - self._offset
        if fresh:
            self._measured = {}
        self.page, self.rows = page, rows
        self._arrange(columns)
        self.virtual_size = Size(self.size.width, len(page.head) + 1 + max(1, len(rows)))
        if fresh or (same and not self.held):  # sorted or narrowed: show the first rows
            self.held = False
            self.cursor = self._nearest(0, 1)
            self.scroll_to(y=0, animate=False, immediate=True)
        elif before is not None:
            found = next((at for at, row in enumerate(rows) if row.key == before.key), None)
            moved = found is not None and found != self.cursor
            self.cursor = self._nearest(self.cursor if found is None else found, 1)
            if not self.held:  # the top stays in sight, where new findings and lines come
                if len(page.head) + 1 + self.cursor >= self.size.height:
                    self.cursor = self._nearest(0, 1)
            elif moved or len(page.head) != 0:
                y = max(0, len(page.head) + self.cursor - line_before)
                # Forced: whether there is a scroll bar is not determined before the next layout.
                self.scroll_to(y=y, animate=False, immediate=True, force=True)
        else:
            self.cursor = self._nearest(self.cursor, 1)
        self.refresh()

    def _nearest(self, at: int, step: int) -> int:
        """Return the next row that can be selected."""
        at = max(0, min(at, len(self.rows) - 1))
        for direction in (step, -step):
            place = at
            while 0 <= place < len(self.rows):
                if not self.rows[place].heading:
                    return place
                place += direction
        return 0

    def _arrange(self, columns: Sequence[Column]) -> None:
        """Choose the columns for which there is room, and their widths."""
        places = {column.name: at for at, column in enumerate(self.page.columns)}
        shown = [column for column in columns if column.name in places]
        room = self.size.width - SIDE - 1
        wide = {column.name: self._natural(column, places[column.name]) for column in shown}

        def needed() -> int:
            return sum(wide[column.name] + GAP for column in shown) - GAP

        for column in sorted(shown, key=lambda each: -each.drop):
            growing = [each for each in shown if each.grows]
            spare = sum(max(0, wide[each.name] - max(each.least, READABLE)) for each in growing)
            if needed() - spare <= room or not column.drop:
                break
            shown.remove(column)
        growing = [each for each in shown if each.grows]
        while growing and needed() > room:
            widest = max(growing, key=lambda each: wide[each.name] - each.least)
            if wide[widest.name] <= widest.least:
                break
            wide[widest.name] -= 1
        for column in shown:  # the remaining room goes to texts that are cut
            if not column.grows and (spare := min(column.most - wide[column.name], room - needed())) > 0:
                seen = (
                    row.cell(places[column.name]).text for row in self.page.rows[:SEEN] if not row.heading
                )
                wide[column.name] += max(0, min(spare, max(map(needs, seen), default=0) - wide[column.name]))
        self.columns = shown
        self._at = [places[column.name] for column in shown]
        self._widths = [wide[column.name] for column in shown]

    def _natural(self, column: Column, at: int) -> int:
        if not column.grows:
            return max(column.least, min(column.most, width(column.title)))
        page = self.page  # all its rows: columns stay as they are while a filter is typed
        measured, widest = self._measured.get(column.name, (PageContent(), 0))
        if measured is not page:
            many = len(page.rows) > MANY and measured.rows
            rows = [row for row in page.rows if page.before.get(row.key) is not row] if many else page.rows
            texts = (row.cell(at).text for row in rows if not row.heading)
            widest = max(widest if many else 0, max(map(needs, texts), default=0) + 1)
            self._measured[column.name] = page, widest
        return min(column.most, max(column.least, width(column.title), widest))

    # -- moving ----------------------------------------------------------------------------------------------

    def move(self, rows: int) -> None:
        """Move the cursor by so many rows; scroll if no row can be selected."""
        if not any(not row.heading for row in self.rows[:200]):
            self.scroll_to(y=self._offset + rows, animate=False)
            return
        self.go_to(self.cursor + rows, 1 if rows > 0 else -1)

    def go_to(self, at: int, step: int = 1) -> None:
        """Put the cursor on a row, or the next that can be selected, and bring it into sight."""
        self.held = True
        self._repaint(self.cursor)
        self.cursor = self._nearest(at, step)
        self._repaint(self.cursor)
        line = len(self.page.head) + self.cursor
        height = self.size.height - 1  # the titles stay
        if self.cursor == self._nearest(0, 1):
            line = 0
        if line < self._offset:
            self.scroll_to(y=line, animate=False, immediate=True)
        elif line >= self._offset + height:
            self.scroll_to(y=line - height + 1, animate=False, immediate=True)

    def select(self, key: str) -> None:
        """Put the cursor on the row of a key, if it is shown."""
        at = next((at for at, row in enumerate(self.rows) if row.key == key), None)
        if at is not None:
            self.go_to(at)

    def _repaint(self, at: int) -> None:
        y = len(self.page.head) + 1 + at - self._offset
        self.refresh(Region(0, y, self.size.width, 1))

    @property
    def page_rows(self) -> int:
        """The number of rows that one screen shows."""
        return max(1, self.size.height - 2)

    def on_click(self, event: events.Click) -> None:
        """Select a row, or open it if it is selected. Sort by a title."""
        event.stop()
        lines = event.y + self._offset
        titles = max(0, len(self.page.head) - self._offset)
        if event.y == titles:
            column = self._column_at(event.x)
            if column is not None:
                self.post_message(self.Titled(column))
            return
        at = lines - len(self.page.head) - 1
        if event.y > titles and 0 <= at < len(self.rows) and not self.rows[at].heading:
            again, self.held = at == self.cursor, True
            self.cursor = at
            self.refresh()
            if again:
                self.post_message(self.Entered())

    def _column_at(self, x: int) -> Column | None:
        left = SIDE
        for column, cells in zip(self.columns, self._widths, strict=True):
            if left <= x < left + cells + GAP:
                return column
            left += cells + GAP
        return None

    def on_resize(self, _: events.Resize) -> None:
        """Choose columns and widths for the new size."""
        self._arrange(self.columns if not self.page.columns else self.app.columns_of(self.page))  # type: ignore[attr-defined]
        self.virtual_size = Size(self.size.width, self.virtual_size.height)

    # -- drawing ---------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen: of the head, the titles, a row, or empty."""
        line = y + self._offset
        head = len(self.page.head)
        if line < head:
            return self._drawn(self.page.head[line])
        titles = max(0, head - self._offset)
        if y == titles:
            return self._titles()
        at = line - head - 1
        if at < len(self.rows):
            return self._row(at)
        if not self.rows and at == 0:
            says = "no row is in the filter. Escape clears it" if self.page.rows else self.page.empty
            return self._drawn(((f"  {says}", Tone.DIM),))
        return self._blank()

    def _tone(self, tone: Tone) -> Style:
        if self.stale and tone is not Tone.BAD:
            tone = Tone.DIM
        return self.look.tones[tone]

    def _blank(self) -> Strip:
        return Strip([Segment(" " * self.size.width, self.look.tones[Tone.PLAIN])], self.size.width)

    def _fit(self, text: str, cells: int, *, right: bool = False) -> str:
        return fit(text, cells, right=right, ascii_only=self.look.ascii_only)

    def _drawn(self, spans: Line) -> Strip:
        segments: list[Segment] = []
        left = room = self.scrollable_content_region.width  # the rest is the scroll bar's
        for text, tone in spans:
            shown = self._fit(text, min(left, width(self._fit(text, 1000).rstrip(" ")) + _trailing(text)))
            segments.append(Segment(shown, self._tone(tone)))
            left -= width(shown)
        segments.append(Segment(" " * max(0, left + self.size.width - room), self.look.tones[Tone.PLAIN]))
        return Strip(segments, self.size.width)

    def _titles(self) -> Strip:
        style = self.look.titles
        segments = [Segment(" " * SIDE, style)]
        for column, cells in zip(self.columns, self._widths, strict=True):
            title = column.title
            if self.sorted_by is not None and self.sorted_by[0] == column.name:
                title = f"{title[: cells - 1]}{'▼' if self.sorted_by[1] else '▲'}"
            text = self._fit(title, cells, right=column.right) + " " * GAP
            at = text.casefold().find(column.key.casefold()) if column.key else -1
            if at >= 0:  # the letter that sorts by the column
                letter = style + Style(bold=True, underline=not style.underline)
                segments += [Segment(text[:at], style), Segment(text[at], letter)]
            segments.append(Segment(text[at + 1 :], style))
        return Strip(segments).adjust_cell_length(self.size.width, style)

    def _row(self, at: int) -> Strip:
        row = self.rows[at]
        plain = self.look.tones[Tone.PLAIN]
        if row.heading:
            text = f" ── {row.cell(0).text} "
            return Strip(
                [
                    Segment(self._fit(text, self.size.width - 1), self.look.tones[Tone.ACCENT]),
                    Segment(" ", plain),
                ]
            )
        over = self.look.cursor if at == self.cursor else Style.null()
        marked = row.key in self.marked
        mark = "●" if marked else "▶" if at == self.cursor else " "
        segments = [Segment(self._fit(mark, SIDE), self._tone(Tone.ACCENT) + over)]
        before = self.page.before.get(row.key)
        for place, column, cells in zip(self._at, self.columns, self._widths, strict=True):
            cell = row.cell(place)
            style = (self._tone(Tone.ACCENT if marked else cell.tone)) + over
            segments.append(Segment(self._fit(cell.text, cells, right=column.right), style))
            segments.append(Segment(self._fit(_change(column, row, before, place), GAP), style))
        return Strip(segments).adjust_cell_length(self.size.width, plain + over)


def _change(column: Column, row: Row, before: Row | None, place: int) -> str:
    """Return the mark of a number that changed since the last refresh."""
    if not column.marks or before is None or before is row:
        return ""
    old, new = before.value(place), row.value(place)
    if not isinstance(old, int | float) or not isinstance(new, int | float) or old == new:
        return ""
    return "↑" if new > old else "↓"


def _trailing(text: str) -> int:
    return len(text) - len(text.rstrip(" "))
