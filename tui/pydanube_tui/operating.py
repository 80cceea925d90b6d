"""Operations from the console: arguments from the rows or a form, the plan, and undo afterwards.

The console has no other way to a change. `operate` refuses changes without `--allow-writes`, and so does the admin
core, to which this face is declared read-only.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydanube_admin import runbooks
from pydanube_admin.engine.models import Effect
from pydanube_admin.engine.operation import Operation
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.runbooks.running import Outcome, run
from pydanube_core.errors import ClusterError, InvalidArgument, PlanStale, Unavailable

from pydanube_tui.actions import Action
from pydanube_tui.board import Board
from pydanube_tui.dialogs import Choice, Field, Form, Reading
from pydanube_tui.page import Line, Row, Target, Tone, dim, line
from pydanube_tui.payloads import json_text
from pydanube_tui.plans import MOST_TOGETHER, Consent, arguments_of, as_one, fields_of, typed
from pydanube_tui.tail import KEPT_BYTES
from pydanube_tui.text import clock, size
from pydanube_tui.views.wording import subject_text

Plan = Mapping[str, Any]
RUNBOOK_WAIT_S: Final = 600.0  # for a person at an approval


class Operating:
    """Operations on a board: requests arguments, shows plans, makes changes."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.undoable: Sequence[str] = ()  # calls of the last change done here

    # -- operations --------------------------------------------------------------------------------------------

    async def operate(self, action: Action) -> None:
        """Call an operation for the marked rows, else for the one under the cursor, else for the present place."""
        assert action.operation is not None
        operation, board = OPERATIONS[action.operation], self._board
        if action.changes and not board.options.allow_writes:
            board.say(f"{action.title}: the console only reads. Start it with --allow-writes", bad=True)
            return
        if not board.may(action):
            board.say(f"{action.title}: this caller has no right to it ({operation.permission})", bad=True)
            return
        try:
            rows = self._rows()
            if len(rows) > MOST_TOGETHER:
                board.say(f"{len(rows):,} rows are marked: this is of the first {MOST_TOGETHER}", bad=True)
                rows = rows[:MOST_TOGETHER]
            calls = await self._calls(operation, action, rows)
            if calls is None:
                return
            if operation.effect is Effect.READ:
                board.read_json(operation.name, await board.caller.call(operation.name, calls[0]))
            else:
                await self._change(operation, calls, rows)
        except ClusterError as error:
            board.read(f"{action.title}: refused", _refusal(error))

    async def _calls(
        self, operation: Operation, action: Action, rows: Sequence[Row]
    ) -> list[dict[str, Any]] | None:
        """Return the arguments of each call, None if the person cancelled."""
        here = self._board.target.arguments
        if action.gathers is not None and rows:
            name, field = action.gathers
            first = arguments_of(operation, action, {**rows[0].item, **here})
            return [{**first, name: [row.item[field] for row in rows]}]
        known = [{**here, **row.item} for row in rows] or [{**here}]
        if "untrusted.text" in action.filled.values() and any(each.get("truncated") for each in known):
            raise InvalidArgument(
                f"of this payload only the first {size(KEPT_BYTES)}B are here. topics.replay copies messages whole",
                field="payload",
                value=None,
            )
        found = [arguments_of(operation, action, each) for each in known]
        found = [each for at, each in enumerate(found) if each not in found[:at]]  # of the cluster: once
        fields = fields_of(operation, action, found[0])
        if fields:
            of = f"{len(found)} rows" if len(found) > 1 else subject_text(found[0]) if found[0] else ""
            given = await self._given(operation, f"{operation.title}{of and ': '}{of}", fields)
            if given is None:
                return None
            found = [{**each, **given} for each in found]
        return found

    async def _given(
        self, operation: Operation, title: str, fields: Sequence[Field]
    ) -> dict[str, Any] | None:
        """Show a form for the fields, again if an answer has the wrong type. None if the person cancelled."""
        while (
            values := await self._board.push_screen_wait(Form(self._board.look, title, fields))
        ) is not None:
            try:
                return typed(operation, values)
            except InvalidArgument as error:
                self._board.say(error.message, bad=True)
                fields = [replace(each, value=values.get(each.name, "")) for each in fields]
        return None

    def _rows(self) -> list[Row]:
        marked = [row for row in self._board.page.rows if row.key in self._board.marked]
        selected = self._board.grid.selected
        return marked or ([selected] if selected is not None else [])

    async def _change(
        self, operation: Operation, calls: Sequence[dict[str, Any]], rows: Sequence[Row] = ()
    ) -> None:
        """Show the plans, and apply them with consent. The marks of their rows are removed."""
        together = as_one(operation, calls)
        plans: list[Plan]
        if together is not None:
            plans = [await self._board.caller.call("plans.create", together)]
        else:
            plans = [await self._planned(operation, each) for each in calls]
        if not await self._board.push_screen_wait(Consent(self._board.look, plans)):
            self._board.say("nothing was changed")
            return
        done: list[Mapping[str, Any]] = []
        lines: list[Line] = []
        try:
            if together is not None:
                answer = await self._board.caller.call("plans.apply", {"plan_token": plans[0]["plan_token"]})
                done = answer["result"]["changed"]
                lines = [
                    line((f" {each['topic']}: {each['error']['message']}", Tone.BAD))
                    for each in answer["result"]["failed"]
                ]
            else:
                for arguments, plan in zip(calls, plans, strict=True):
                    token = plan.get("plan_token", "")
                    done.append(await self._board.caller.call(operation.name, arguments, plan_token=token))
        except PlanStale as error:
            if not done:
                self._board.say("it has changed since it was shown. These would be its effects now", bad=True)
                await self._change(operation, calls, rows)
                return
            lines = _refusal(error)
        except ClusterError as error:
            lines = _refusal(error)
        if lines:
            first = line((f" {len(done)} of {len(calls)} were confirmed. Then: ", Tone.WARN))
            self._board.read(f"{operation.name}: not whole", [first, *lines])
        self._told(operation, done)
        self._board.marked.difference_update(row.key for row in rows)
        self._board.wake.set()

    async def _planned(self, operation: Operation, arguments: dict[str, Any]) -> Plan:
        if operation.planned:
            return await self._board.caller.call(operation.name, {**arguments, "plan_only": True})
        # An operation on a plan has no plan itself: its consent is requested directly.
        return {
            "operation": operation.name,
            "arguments": arguments,
            "effect": operation.effect.value,
            "reversible": False,
            "blast_radius": {},
            "diff": [],
        }

    def _told(self, operation: Operation, done: Sequence[Mapping[str, Any]]) -> None:
        if not done:
            return
        undoable = [each for each in done if each.get("undo_until")]
        self.undoable = [str(each["call_id"]) for each in undoable]
        many = f" ({len(done)} times)" if len(done) > 1 else ""
        key, undo = self._board.options.actions["change.undo"].keys[0], "this cannot be undone"
        if undoable:
            undo = f"{key} undoes it until {clock(undoable[0]['undo_until'])}"
        self._board.say(f"done: {operation.name}{many}; {undo}")

    async def undo(self) -> None:
        """Undo the last change made here."""
        if not self.undoable:
            self._board.say("no change of this session can be undone. The view audit lists all changes")
            return
        calls = [{"call_id": call} for call in reversed(self.undoable)]
        try:
            await self._change(OPERATIONS["changes.undo"], calls)
        except ClusterError as error:
            self._board.read("undo: refused", _refusal(error))

    # -- schemas -----------------------------------------------------------------------------------------------

    async def compare(self) -> None:
        """Show the differences between a schema's selected version and the one before, or between two marked ones."""
        rows = sorted(self._rows(), key=lambda row: int(row.item["version"]))
        if not rows:
            return
        newer = int(rows[-1].item["version"])
        known = [int(row.item["version"]) for row in self._board.page.rows]
        before_it = max((version for version in known if version < newer), default=newer)
        older = int(rows[0].item["version"]) if len(rows) > 1 else before_it
        subject = self._board.target.arguments["subject"]
        before, after = [await self._definition(subject, version) for version in (older, newer)]
        tones = {"+": Tone.GOOD, "-": Tone.BAD, "@": Tone.ACCENT}
        found = difflib.unified_diff(before, after, f"version {older}", f"version {newer}", lineterm="", n=5)
        lines: list[Line] = [((each, tones.get(each[:1], Tone.PLAIN)),) for each in found]
        self._board.read(f"{subject}: version {older} → {newer}", lines or [line("they are the same")])

    async def _definition(self, subject: str, version: int) -> list[str]:
        answer = await self._board.caller.call("schemas.get", {"subject": subject, "version": version})
        text = str(answer["untrusted"].get("schema_definition", ""))
        try:
            return json_text(json.loads(text), indent=2).split("\n")
        except (ValueError, RecursionError):
            return text.split("\n")

    # -- runbooks ----------------------------------------------------------------------------------------------

    async def run_runbook(self, name: str) -> None:
        """Request its parameters and carry it out step by step. Each change is shown and needs consent."""
        book = runbooks.get(name)
        values: dict[str, str] = {}
        if book.parameters:
            fields = [
                Field(
                    name=each.name,
                    help=each.description + (f": {' or '.join(each.choices)}" if each.choices else ""),
                    value=str(each.default or (each.choices or ("",))[0]),
                    required=each.required,
                )
                for each in book.parameters
            ]
            given = await self._board.push_screen_wait(Form(self._board.look, book.name, fields))
            if given is None:
                return
            values = given
        reading = Reading(self._board.look, book.name, [line(("running …", Tone.DIM))])
        self._board.push_screen(reading)
        loop = asyncio.get_running_loop()
        lines: list[Line] = []

        def call(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
            if not reading.is_attached:
                raise Unavailable("the runbook was left")
            return asyncio.run_coroutine_threadsafe(
                self._board.caller.call(operation, arguments), loop
            ).result(RUNBOOK_WAIT_S)

        def approve(operation: str, plan: Plan) -> bool:
            if not self._board.options.allow_writes or not reading.is_attached:
                return False
            consent = self._consent(plan)
            return asyncio.run_coroutine_threadsafe(consent, loop).result(RUNBOOK_WAIT_S)

        def tell(outcome: Outcome) -> None:
            lines.extend(outcome_lines(outcome))
            reading.show(lines)

        def carry_out() -> None:
            for outcome in run(book, values, call=call, approve=approve):
                loop.call_soon_threadsafe(tell, outcome)

        try:
            await asyncio.to_thread(carry_out)
        except (ClusterError, TimeoutError) as error:
            lines.append(line((f"✗ {error}", Tone.BAD)))
        reading.show([*lines, line(("─ the end", Tone.DIM))])

    async def _consent(self, plan: Plan) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        consent = Consent(self._board.look, [plan])
        self._board.push_screen(consent, lambda said: answer.set_result(bool(said)))
        return await answer

    # -- messages ----------------------------------------------------------------------------------------------

    def choose_topic(self, target: Target) -> Target:
        """Show messages of the row's topic, or of the present one."""
        topic = self._board.named_here.get("topic")
        return Target(view=target.view, arguments={"topic": topic} if topic else {})

    def choices_of(self, actions: Sequence[Action]) -> list[Choice]:
        """Return the actions available here, to choose from."""
        return [
            Choice(id=action.id, title=action.title, help=action.help, hint=" ".join(action.keys[:1]))
            for action in actions
            if self._board.offers(action)
        ]


def outcome_lines(outcome: Outcome) -> list[Line]:
    """Return one step of a runbook, as carried out, in lines."""
    marks = {True: ("✓", Tone.GOOD), False: ("▼", Tone.WARN)}
    glyph, tone = ("○", Tone.DIM) if outcome.declined else marks[outcome.fine]
    lines = [line((f"{glyph} {outcome.title}", tone))]
    if operation := outcome.step.operation:
        lines.append(line((f"    {operation} ", Tone.ACCENT), dim(json_text(dict(outcome.arguments)))))
    for each in outcome.verdicts:
        glyph, tone = marks[each.fine]
        lines.append(line((f"    {glyph} ", tone), each.text))
    if outcome.error is not None:
        lines.append(line((f"    ✗ {outcome.error}", Tone.BAD)))
    if outcome.declined:
        lines.append(line(dim("    its plan was not approved, so nothing was changed")))
    lines += [line(f"    {each}") for each in outcome.advice.splitlines()]
    lines += [line(dim("    $ "), (each, Tone.ACCENT)) for each in outcome.commands]
    return [*lines, line()]


def _refusal(error: ClusterError) -> list[Line]:
    lines = [line((f" {error.code}", Tone.BAD)), line(f" {error.message}")]
    tries = ((dim(" try   "), (step["command"], Tone.ACCENT), dim(f"  {step['why']}")) for step in error.next)
    return [*lines, *tries]
