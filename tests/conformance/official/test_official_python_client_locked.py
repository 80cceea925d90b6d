"""The official Python client against a broker that `danube security init` has locked: TLS on every port, a token with few rights."""

from __future__ import annotations

import pytest

from tests.conformance.official.conftest import Scenario
from tests.conformance.official.locked import Locked


@pytest.mark.parametrize("name", ["reliable", "shared", "key_shared", "partitions", "nack", "schemas"])
def test_official_python_client_over_tls_with_a_token(locked: Locked, topic: str, name: str) -> None:
    with Scenario(name, locked.broker.url, topic, environment=locked.environment(locked.token)):
        pass


def test_a_principal_without_permissions_is_refused(locked: Locked, topic: str) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="PERMISSION_DENIED"),
        Scenario("reliable", locked.broker.url, topic, environment=locked.environment(locked.stranger)),
    ):
        pass
