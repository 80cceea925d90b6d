"""Dialogs over the screen: texts to read, choices, forms. None of them interprets markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from pydanube_tui.page import Line, Tone, dim
from pydanube_tui.text import clean, masked
from pydanube_tui.themes import Look

MAX_LINES: Final = 5000  # of a text that is shown
MAX_CHARS: Final = 200_000
Result = TypeVar("Result")


class Entry(Input):
    """A line to type in. It may hold text of others, such as a payload to republish, which is drawn without control characters."""

    @property
    def _value(self) -> Text:  # the text that Textual draws
        drawn = super()._value
        drawn.plain = masked(drawn.plain)
        return drawn

    def on_paste(self, event: events.Paste) -> None:
        """Take all lines. Textual takes only the first, and the others of a payload would be lost silently."""
        self.replace("\n".join(event.text.splitlines()), *self.selection)
        event.prevent_default()
        event.stop()


class Dialog(ModalScreen[Result]):
    """The frame of all dialogs: Esc closes it, with None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "back")]
    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical {
        width: 90%; max-width: 116; height: auto; max-height: 92%; background: $background;
        border: round $primary; padding: 0 1;
    }
    Dialog.-ascii > Vertical { border: ascii $primary; }
    Dialog Static { height: auto; }
    Dialog VerticalScroll { height: auto; max-height: 60vh; background: $background; scrollbar-size-vertical: 1; }
    Reading VerticalScroll { max-height: 75vh; }
    Dialog .title { text-style: bold; color: $primary; }
    Dialog .said { color: $error; }
    Dialog .hint { color: $foreground 60%; }
    Dialog Input { background: $panel; }
    Dialog OptionList { border: none; height: auto; max-height: 100%; background: $background; padding: 0; }
    Dialog Horizontal { height: auto; align-horizontal: right; }
    Dialog Button { margin: 0 1; min-width: 10; }
    Dialog Button:focus { text-style: bold reverse; }
    """

    def __init__(self, look: Look, title: str) -> None:
        super().__init__(classes="-ascii" if look.ascii_only else None)
        self.look = look
        self.heading = Static(Text(look.letters(clean(title))), classes="title")
        self.about = title

    def on_mount(self) -> None:
        """Dress the scrolling widgets. Subclasses set the focus."""
        for each in self.query("VerticalScroll, OptionList"):
            self.look.dress(each)

    def close(self, result: Result | None) -> None:
        """Close once: after a second key there is nothing to close."""
        if self.is_current:
            self.dismiss(result)

    def action_leave(self) -> None:
        """Close the dialog without a result."""
        self.close(None)

    def text(self, lines: Sequence[Line]) -> Text:
        """Return lines as Textual draws them."""
        drawn = Text(no_wrap=False, end="")
        for number, spans in enumerate(lines):
            if number == MAX_LINES or len(drawn) > MAX_CHARS:
                drawn.append(f"\n… and {len(lines) - number} more lines", self.look.tones[Tone.WARN])
                break
            if number:
                drawn.append("\n")
            for words, tone in spans:
                drawn.append(self.look.letters(clean(words)), self.look.tones[tone])
        return drawn


class Reading(Dialog[None]):
    """A text: help, JSON, a message. `c` copies it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy", "copy"),
        Binding("j", "scroll(1)", "down"),
        Binding("k", "scroll(-1)", "up"),
    ]

    def __init__(self, look: Look, title: str, lines: Sequence[Line]) -> None:
        super().__init__(look, title)
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Put title, text and the way out on the screen."""
        with Vertical():
            yield self.heading
            with VerticalScroll():
                yield Static(self.text(self._lines), id="text")
            yield Static(Text("esc back   arrows scroll   c copy"), classes="hint")

    def show(self, lines: Sequence[Line]) -> None:
        """Show another text in this dialog."""
        self._lines = list(lines)
        if self.is_mounted:
            self.query_one("#text", Static).update(self.text(self._lines))

    def on_mount(self) -> None:
        """Give the text the focus, so that arrows scroll it immediately."""
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, lines: int) -> None:
        """Scroll the text by so many lines, down where positive."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_copy(self) -> None:
        """Copy the whole text, also parts out of sight."""
        whole = "\n".join("".join(text for text, _ in spans) for spans in self._lines)
        self.app.copied(whole, self.about)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One entry of a list."""

    id: str
    title: str
    help: str = ""
    hint: str = ""  # at the right: a key


class Choosing(Dialog[str]):
    """A list that is filtered while typing: the palette, clusters, runbooks."""

    def __init__(self, look: Look, title: str, choices: Sequence[Choice]) -> None:
        super().__init__(look, title)
        self._choices = choices

    def compose(self) -> ComposeResult:
        """Put title, the typed words and the matching choices on the screen."""
        with Vertical():
            yield self.heading
            yield Entry(placeholder="type to narrow", id="words", compact=True)
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        """Show every choice, with the focus in the line that narrows them."""
        self._narrow("")
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list to choices with all the typed words."""
        self._narrow(event.value)

    def _narrow(self, words: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        wanted = words.casefold().split()
        for choice in self._choices:
            whole = f"{choice.id} {choice.title} {choice.help}".casefold()
            if all(word in whole for word in wanted):
                title, hint = (f"{choice.title:<24}", Tone.STRONG), (f"{choice.hint:<11}", Tone.ACCENT)
                shown = self.text([(title, hint, dim(choice.help))])
                shown.no_wrap, shown.overflow = True, "ellipsis"
                options.add_option(Option(shown, id=choice.id))
        if options.option_count:
            options.highlighted = 0

    def on_key(self, event: events.Key) -> None:
        """Arrows move in the list while the words have the focus."""
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and self.focused is not options:
            event.stop()
            if event.key == "down":
                options.action_cursor_down()
            else:
                options.action_cursor_up()

    def on_input_submitted(self) -> None:
        """Close with the choice that is highlighted."""
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            self.close(options.get_option_at_index(options.highlighted).id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the choice that was clicked."""
        self.close(event.option.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One line of a form: its name, its help, its first value."""

    name: str
    help: str
    value: str = ""
    required: bool = False


class Form(Dialog[dict[str, str]]):
    """A form of texts. Optional ones left empty are not part of the answer."""

    def __init__(self, look: Look, title: str, fields: Sequence[Field]) -> None:
        super().__init__(look, title)
        self._fields = fields

    def compose(self) -> ComposeResult:
        """Put title, a line for each field, and the buttons on the screen."""
        with Vertical():
            yield self.heading
            with VerticalScroll():
                for number, each in enumerate(self._fields):
                    needed = "" if not each.required else " (must be given)"
                    yield Static(Text(clean(f"{each.name}{needed}: {each.help}")), classes="hint")
                    yield Entry(value=each.value, id=f"field{number}", compact=True)
            yield Static("", classes="said", id="said", markup=False)
            with Horizontal():
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Go on", id="go", variant="primary", compact=True)

    def on_mount(self) -> None:
        """Begin with the first empty line."""
        first = next((n for n, each in enumerate(self._fields) if not each.value), 0)
        self.query_one(f"#field{first}", Input).focus()

    def on_input_submitted(self) -> None:
        """Go to the next line; at the last one, submit."""
        inputs = list(self.query(Input))
        at = next((n for n, each in enumerate(inputs) if each.has_focus), len(inputs) - 1)
        if at + 1 < len(inputs):
            inputs[at + 1].focus()
        else:
            self._go()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Go on with the form, or leave it."""
        if event.button.id == "go":
            self._go()
        else:
            self.close(None)

    def _go(self) -> None:
        values = {each.name: self.query_one(f"#field{n}", Input).value for n, each in enumerate(self._fields)}
        missing = next((each.name for each in self._fields if each.required and not values[each.name]), None)
        if missing is not None:
            self.query_one("#said", Static).update(Text(f"{missing} must be given"))
            return
        self.close({name: value for name, value in values.items() if value})
