"""One Spark session and one broker for all tests of this folder: both take seconds to start."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.s3_server import s3_environment


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Java compiles only as far as pays within minutes: half of its processor time was compiling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(quick_java: None) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, about versions of what it uses
        from pydanube_spark import open_session

        # Workers have the environment in which the JVM began: for tests of S3, with the credentials of their server.
        with pytest.MonkeyPatch.context() as patch:
            for name, value in s3_environment().items():
                patch.setenv(name, value)
            session = open_session("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("spark-broker"), environment={"DANUBE_TIER__FLUSH_AGE": "200ms"}
    ) as started:
        yield started
