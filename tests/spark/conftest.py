"""One Spark session, as long as it answers, and one broker for all tests of this folder: both take seconds to start."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.s3_server import s3_environment


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Java compiles only as far as pays within minutes: half of its processor time was compiling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


class Sessions:
    """The session of this process, and another one when its JVM is no use any more."""

    def __init__(self) -> None:
        self._session: Any = None
        #: a test was cut off in the middle of a call: its answer is still to come, and would be read as that of the next
        self.broken = False

    def answering(self) -> Any:
        if self._session is not None and (self.broken or not jvms()):
            self.close()
        if self._session is None:
            self._session = _opened()
        return self._session

    def close(self) -> None:
        """Stop the session, or kill its JVM where it would not answer."""
        session, self._session = self._session, None
        if session is None:
            return
        if not self.broken and jvms():
            session.stop()
            return
        self.broken = False
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        for process in jvms():
            process.kill()
            process.wait()
        gateway = SparkContext._gateway
        if gateway is not None:  # what it leaves open would be a warning in whichever test forgets it
            with suppress(OSError):
                gateway.proc.stdin.close()
            gateway.proc.wait()
        for name in ("_gateway", "_jvm", "_active_spark_context"):
            setattr(SparkContext, name, None)
        for name in ("_instantiatedSession", "_activeSession"):
            setattr(SparkSession, name, None)


def jvms() -> list[psutil.Process]:
    """The JVMs that this process has started and that run."""
    return [
        each
        for each in psutil.Process().children()
        if each.name() == "java" and each.status() != psutil.STATUS_ZOMBIE
    ]


def _opened() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, about versions of what it uses
        from pydanube_spark import open_session

        # Workers have the environment in which the JVM began: for tests of S3, with the credentials of their server.
        with pytest.MonkeyPatch.context() as patch:
            for name, value in s3_environment().items():
                patch.setenv(name, value)
            session = open_session("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
        session.sparkContext.setLogLevel("OFF")
        return session


SESSIONS = Sessions()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout"):
        # The signal of pytest-timeout raises where it struck, past every `except Exception`
        SESSIONS.broken = True
    return (yield)


@pytest.fixture(scope="session")
def sessions(quick_java: None) -> Iterator[Sessions]:
    yield SESSIONS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SESSIONS.close()


@pytest.fixture
def spark(sessions: Sessions) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sessions.answering()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("spark-broker"), environment={"DANUBE_TIER__FLUSH_AGE": "200ms"}
    ) as started:
        yield started
