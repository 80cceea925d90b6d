"""The operations on changes."""

from __future__ import annotations

from typing import Final

from pydanube_admin.changes.handlers import forecast_undo, undo_change
from pydanube_admin.changes.models import UndoChangeRequest, UndoneChange
from pydanube_admin.effect import Effect
from pydanube_admin.operation import Example, Operation

CHANGE_OPERATIONS: Final = (
    Operation(
        name="changes.undo",
        tool="undo_change",
        title="Undo a change",
        effect=Effect.CHANGE,
        permission="changes:undo",
        reversible=False,
        summary="Take a change back, until its undo_until: a deleted topic comes back with messages and cursors.",
        request=UndoChangeRequest,
        result=UndoneChange,
        handler=undo_change,
        forecast=forecast_undo,
        examples=(
            Example(arguments={"call_id": "c019b0c1d2e3f4a5b6c7d8e9f"}, note="the call_id of its result"),
        ),
        default_profile=True,
    ),
)
