"""A client of MCP that closes its end of stdout ends the server without an error, and hides no other error."""

from __future__ import annotations

import anyio
import pytest
from pydanube_mcp.stdio import CountedAnswers, Underway, reader_gone

pytestmark = pytest.mark.anyio


async def closed_answers() -> CountedAnswers:
    send, receive = anyio.create_memory_object_stream[object](1)
    receive.close()
    await send.aclose()
    return CountedAnswers(send, Underway())


async def errors_of(*failing: object) -> list[BaseException]:
    """Raise the errors of these calls in one group, as the tasks of the SDK do."""
    found: list[BaseException] = []
    for each in failing:
        try:
            await each  # type: ignore[misc]
        except (OSError, anyio.ClosedResourceError) as error:
            found.append(error)
    return found


async def broken_pipe() -> None:
    raise BrokenPipeError


async def closed_stream_of_another() -> None:
    send, _ = anyio.create_memory_object_stream[object](1)
    send.close()
    _.close()
    await send.send(None)


async def test_streams_that_are_closed_with_stdout_are_no_error() -> None:
    answers = await closed_answers()
    found = await errors_of(broken_pipe(), answers.send(None))  # type: ignore[arg-type]
    assert len(found) == 2
    with reader_gone():
        raise BaseExceptionGroup("of tasks", found)


async def test_a_closed_stream_of_another_is_an_error_beside_a_broken_pipe() -> None:
    found = await errors_of(broken_pipe(), closed_stream_of_another())
    with pytest.raises(BaseExceptionGroup) as raised, reader_gone():
        raise BaseExceptionGroup("of tasks", found)
    assert [type(each) for each in raised.value.exceptions] == [anyio.ClosedResourceError]
