"""What is told of what Spark raises, and of a master that is not there. No JVM in here."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from pydanube_core.errors import ClusterError, Internal, InvalidArgument, StoreUnavailable, Unavailable
from pydanube_spark.failures import check_master, failure_of, start_failure

FROM_A_TASK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/reading.py", line 7, in read
botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/remote.py", line 90, in read
pydanube_core.errors.StoreUnavailable: STORE_UNAVAILABLE: s3://b does not answer: look at tier.endpoint
"""


class FromJava(Exception):
    """As py4j has it."""

    def __init__(self, text: str) -> None:
        super().__init__(
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: " + text
        )

        class Java:
            def toString(self) -> str:
                return text

        self.java_exception: Any = Java()


def test_a_task_s_own_error_comes_back_with_its_code_and_nothing_of_the_trace() -> None:
    found = failure_of(Exception(FROM_A_TASK))
    assert isinstance(found, StoreUnavailable)
    assert found.message == "s3://b does not answer: look at tier.endpoint"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FromJava("org.apache.spark.SparkException: Job aborted due to stage failure"), "Job aborted"),
        (
            FromJava("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext"),
            "Cannot call",
        ),
        (Exception("\n\nTraceback (most recent call last):\nValueError: 7"), "ValueError: 7"),
        (Exception("pydanube_core.errors.Strange: NO_SUCH_CODE: x"), "NO_SUCH_CODE"),
        (KeyError(), "KeyError"),
    ],
)
def test_anything_else_is_internal_and_one_line(error: Exception, said: str) -> None:
    found = failure_of(error)
    assert isinstance(found, Internal)
    assert said in found.message
    assert "\n" not in found.message
    assert "org.apache" not in found.message


def test_our_own_error_stays_as_it_is() -> None:
    error: ClusterError = InvalidArgument("no", field="x", value=1)
    assert failure_of(error) is error
    assert start_failure(error, "local") is error


@pytest.mark.parametrize(
    "master",
    ["spark://", "spark://host", "spark://:7077", "spark://host:port", "foo://x", "local[x]", "local[2", ""],
)
def test_a_master_without_an_address_is_refused(master: str) -> None:
    with pytest.raises(InvalidArgument, match="spark://host:7077"):
        check_master(master)


def test_a_master_that_is_not_there_is_told_at_once_and_one_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        here, nowhere = there.getsockname()[1], gone.getsockname()[1]
        gone.close()
        with pytest.raises(Unavailable, match="no Spark master answers"):
            check_master(f"spark://127.0.0.1:{nowhere}")
        check_master(f"spark://127.0.0.1:{nowhere},127.0.0.1:{here}")
    for fine in (
        "local",
        "local[*]",
        "local[2]",
        "local[2, 4]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://h:443",
    ):
        check_master(fine)
    assert isinstance(
        start_failure(FromJava("org.apache.spark.SparkException: no"), "foo://x"), InvalidArgument
    )
    assert "local[*]" in start_failure(FromJava("org.apache.spark.SparkException: no"), "foo://x").message
