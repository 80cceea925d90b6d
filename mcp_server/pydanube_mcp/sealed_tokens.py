"""With --confirm human: plan tokens that open nothing but this server, once a person has agreed.

A plan's token lets whoever has it make the change, on the command line or over JSON-RPC too. A model that must not
apply plans must not hold one. So the tokens that leave the server are sealed: of the same form, with the secret hidden
under a key of this process. What comes back is opened on its way to the admin core; what was not sealed here opens
nothing.
"""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError

_TOKEN: Final = re.compile(r"(p[0-9a-f]{24})\.([A-Za-z0-9_-]{24})(?![A-Za-z0-9_-])")
_FIELD: Final = "plan_token"
_KEY: Final = secrets.token_bytes(32)


def turned(text: str) -> str:
    """The text with every plan token in it sealed, or opened if it is sealed."""
    return _TOKEN.sub(lambda match: f"{match[1]}.{_turned(match[1], match[2])}", text)


def _turned(plan_id: str, secret: str) -> str:
    hidden = urlsafe_b64decode(secret)
    # Of each plan another, and used for its one secret only
    mask = hmac.digest(_KEY, plan_id.encode(), "sha256")
    return urlsafe_b64encode(bytes(one ^ other for one, other in zip(hidden, mask, strict=False))).decode()


class SealedClient(OpsClient):
    """A client that shows no token of a plan, and takes those that it has shown."""

    async def call(
        self, operation: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        given = dict(arguments or {})
        if isinstance(given.get(_FIELD), str):
            given[_FIELD] = turned(given[_FIELD])
        try:
            result = await super().call(operation, given, **options)
        except ClusterError as error:
            text = error.to_json()
            if _TOKEN.search(text) is None:
                raise
            raise ClusterError.from_json(turned(text)) from error
        if isinstance(result.get(_FIELD), str):
            result[_FIELD] = turned(result[_FIELD])
        return result
