"""Requests and results of the operations on changes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pydanube_admin.models import Change, Request


class UndoChangeRequest(Request):
    call_id: Annotated[
        str, Field(min_length=1, max_length=64, description="call_id in the result of the change")
    ]


class UndoneChange(Change):
    undone_call_id: str
    operation: str  # that was taken back
