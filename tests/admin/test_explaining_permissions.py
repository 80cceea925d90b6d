"""`security.explain` says what happens now, and what the bindings would decide."""

from __future__ import annotations

import pytest

from tests.admin.real_broker import administered

pytestmark = pytest.mark.anyio


async def test_without_authentication_everybody_may_whatever_the_bindings_say() -> None:
    async with administered() as cluster:
        asked = {"principal": "ann", "operation": "topics.delete", "resource": "/default/orders"}
        found = await cluster("security.explain", **asked)
        assert (found["mode"], found["enforced"], found["allowed"]) == ("off", False, True)
        assert found["by_bindings"] is False
        assert "authentication is off" in found["why"]
        assert "no binding names user:ann" in found["why"]
        await cluster("bindings.create", binding="ann-all", principal="ann", roles="admin")
        found = await cluster("security.explain", **asked)
        assert (found["allowed"], found["by_bindings"], found["role"]) == (True, True, "admin")
