"""How the methods of `danube_admin` reach the admin core: one operation at a time, like every face."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydanube_core.errors import ClusterError, Overloaded
from pydanube_core.security.identity import current_identity

from pydanube_admin.compat.principal import principal_of
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.models import MAX_LIMIT

Metadata = Callable[[], Iterable[tuple[str, str | bytes]]]  # of the call that is under way

FACE: Final = "danube_admin"
# The protocol has no pages: an answer of more items would not fit a gRPC message anyway
MAX_PAGES: Final = 100


class Asking:
    """Asks the core in the tool's name. It cannot be shown a plan, so what destroys is planned and done at once."""

    def __init__(self, core: AdminCore, metadata: Metadata = tuple) -> None:
        self._core = core
        self._metadata = metadata

    async def __call__(self, operation: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result's object. Raises `ClusterError`: any that the operation answers."""
        outcome = await self._core.call(
            operation,
            arguments or {},
            principal=principal_of(self._metadata(), current_identity.get()),
            face=FACE,
            one_step=True,
        )
        if isinstance(outcome, ClusterError):
            raise outcome
        return outcome.model_dump(mode="json", by_alias=True)

    async def every(self, operation: str, arguments: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """All items of a list. Raises `Overloaded`: there are more than an answer without pages can hold."""
        items: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            found = await self(operation, {**(arguments or {}), "limit": MAX_LIMIT, **page})
            items += found["items"]
            if found["next_page"] is None:
                return items
            page = {"page": found["next_page"]}
        raise Overloaded(
            f"{operation} has more than {MAX_PAGES * MAX_LIMIT} items, and danube_admin has no pages: ask with "
            f"`danube {operation.replace('.', ' ')} --limit {MAX_LIMIT}` instead",
            retryable=False,
        )
