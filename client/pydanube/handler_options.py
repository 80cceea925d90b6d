"""The options of a handler loop, and the checks of its function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from inspect import isasyncgenfunction, isgeneratorfunction, isroutine, signature, unwrap
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydanube_core.errors import InvalidArgument
from pydanube_core.names import TopicName

from pydanube.arguments import check_flag, check_number, check_text, check_whole
from pydanube.failure_policy import FailurePolicy
from pydanube.options import ConsumerArguments, ConsumerOptions, changed

MOST_WORKERS: Final = 1000
MOST_BACKOFF_S: Final = 2_000_000
MOST_BATCH: Final = 100_000
MOST_BATCH_WAIT_S: Final = 3600
_KEPT_S: Final = 3600.0  # maximum extension of the ack timeout while messages of a key wait for one another


class HandlerArguments(ConsumerArguments, total=False):
    """The keywords of `client.run(…)` and `client.handler(…)`: those of a consumer, and the fields of `HandlerOptions`."""

    pattern: str
    workers: int
    retries: int
    backoff_s: tuple[float, float]
    dead_letter: bool | str
    ordered_by_key: bool
    schema: Callable[..., Any] | None
    publish: str | None
    batch_size: int | None
    batch_wait_s: float
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """How messages are handled.

    Attributes:
        workers: maximum of concurrent calls. A function without `async` runs in as many threads.
        retries: maximum of retries of a failed message.
        backoff_s: delay before the first retry, and the maximum delay. The delay doubles with each retry.
        dead_letter: whether a message becomes a dead letter after its last retry, on `<topic>-dlq-<subscription>` or on
            the topic named here. With False the subscription's poison policy applies. Its default is `block`.
        ordered_by_key: whether messages of one key are handled one after another, also through retries. The type is then
            `key-shared` unless given.
        schema: class of the value. The function gets `(value, message)`. A payload that does not match is not retried.
            For a null payload the value is None.
            With None it is the annotated class of the function's first parameter, if that is a dataclass, a pydantic
            model, a typed dict or a Protobuf message. A function with one parameter then gets only the value.
        publish: topic for the returned value, which is bytes, a `Message.new(…)`, or a list of them. It is sent with the
            key of the message before the message is acknowledged. At least once: a redelivered message is sent again.
        batch_size: maximum of messages per call. The function gets a list. When it returns, the messages without an answer
            are acknowledged. When it raises, they are redelivered.
        batch_wait_s: maximum wait for a full batch.
        drain_s: maximum time of running functions after a stop. Then they are cancelled, and their messages redelivered.
    """

    workers: int = 8
    retries: int = 5
    backoff_s: tuple[float, float] = (1, 60)
    dead_letter: bool | str = True
    ordered_by_key: bool = False
    schema: Callable[..., Any] | None = None
    publish: str | None = None
    batch_size: int | None = None
    batch_wait_s: float = 0.5
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1, MOST_WORKERS)
        check_whole("retries", self.retries, 0, 1_000_000)
        check_flag("ordered_by_key", self.ordered_by_key)
        check_number("drain_s", self.drain_s, 0, math.inf)
        if not isinstance(self.backoff_s, Sequence) or len(self.backoff_s) != 2:
            raise InvalidArgument(
                f"backoff_s is (first, most) in seconds, got {self.backoff_s!r:.100}",
                field="backoff_s", value=repr(self.backoff_s)[:100],
            )  # fmt: skip
        first, most = self.backoff_s
        check_number("backoff_s", first, 0, MOST_BACKOFF_S)
        check_number("backoff_s", most, 0, MOST_BACKOFF_S)
        if first > most:
            raise InvalidArgument(
                f"backoff_s is (first, most) in seconds, and the first wait of {first:g} s is longer than the longest of "
                f"{most:g} s: give ({most:g}, {first:g})",
                field="backoff_s", value=repr(self.backoff_s)[:100],
            )  # fmt: skip
        if not isinstance(self.dead_letter, str):
            check_flag("dead_letter", self.dead_letter)
        if self.publish is not None:
            check_text("publish", self.publish)
            TopicName.parse(self.publish)
        check_number("batch_wait_s", self.batch_wait_s, 0, MOST_BATCH_WAIT_S)
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1, MOST_BATCH)
            if self.ordered_by_key or self.schema is not None:
                other = "schema" if self.schema is not None else "ordered_by_key"
                instead = ". The function decodes a message by message.value(…)" if other == "schema" else ""
                raise InvalidArgument(
                    f"batch_size= goes without {other}=: leave out one of them{instead}",
                    field="batch_size", value=self.batch_size,
                )  # fmt: skip

    def for_handler(self, handler: object) -> tuple[HandlerOptions, bool]:
        """Return the options with the payload's type by the function's annotation, and whether it takes the value alone.

        Raises `InvalidArgument`: the function cannot be called with a message, or a value and its message.
        """
        for code in (handler, getattr(handler, "__call__", None)):  # noqa: B004
            if isgeneratorfunction(code) or isasyncgenfunction(code):
                raise InvalidArgument(
                    f"handler {handler!r:.100} is a generator, because it has a yield: its code would not run. Return a value, or a list",
                    field="handler", value=repr(handler)[:100],
                )  # fmt: skip
        found = (
            None if self.schema is not None else annotated_type(handler, batch=self.batch_size is not None)
        )
        if self.batch_size is not None and found is not None:
            raise InvalidArgument(
                f"a function with batch_size= gets a list of messages, not {found.__name__}: annotate list[Message], and "
                "decode each with message.value(…)",
                field="handler", value=repr(handler)[:100],
            )  # fmt: skip
        if found is not None:
            options = replace(self, schema=found)
            if not _takes(handler, "value", "message") and _takes(handler, "value"):
                return options, True
            options.check_handler(handler)
            return options, False
        self.check_handler(handler)
        return self, False

    def check_handler(self, handler: object) -> None:
        """Check that a function can be called with a message, or a value and its message. Raises `InvalidArgument`."""
        wanted = ("message",) if self.schema is None else ("value", "message")
        if self.batch_size is not None:
            wanted = ("messages",)
        if _takes(handler, *wanted):
            return
        raise InvalidArgument(
            f"handler is a function of ({', '.join(wanted)}), got {handler!r:.100}",
            field="handler", value=repr(handler)[:100],
        )  # fmt: skip

    def policy(self) -> FailurePolicy:
        """Return the failure policy of the subscription."""
        first, most = (round(seconds * 1000) for seconds in self.backoff_s)
        policy: FailurePolicy = {
            "max_redelivery_count": self.retries,
            "base_redelivery_delay_ms": first,
            "max_redelivery_delay_ms": most,
            "backoff_strategy": "exponential",
        }
        if self.dead_letter:
            policy["poison_policy"] = "dead_letter"
        if isinstance(self.dead_letter, str):
            policy["dead_letter_topic"] = self.dead_letter
        return policy

    def consumer(self, *, create: bool) -> ConsumerOptions:
        """Return the default options of its consumer. `create`: whether its topics are given by name."""
        if self.ordered_by_key:
            return ConsumerOptions(type="key-shared", create=create, max_extend_s=_KEPT_S)
        return ConsumerOptions(type="shared", create=create)


def _takes(handler: object, *arguments: str) -> bool:
    if not callable(handler):
        return False
    try:
        signature(handler).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a function of C without a signature
        pass
    return True


def annotated_type(handler: object, *, batch: bool = False) -> Any:
    """Return the class of values that a function's first parameter is annotated with, or None if it takes the message.

    Args:
        batch: whether the parameter may be a list of them.
    """
    if not callable(handler):
        return None
    function = handler if isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    try:
        first = next(iter(signature(handler).parameters))
        hint = get_type_hints(unwrap(function)).get(first)
        if batch and get_origin(hint) in (list, Sequence):
            (hint,) = get_args(hint)
        if isinstance(hint, UnionType) or get_origin(hint) is Union:  # `Order | None`, for null payloads
            (hint,) = (each for each in get_args(hint) if each is not NoneType)
    except (NameError, TypeError, ValueError, AttributeError, StopIteration):
        return None
    is_value = isinstance(hint, type) and (
        is_dataclass(hint)
        or is_typeddict(hint)
        or hasattr(hint, "model_validate")
        or hasattr(hint, "FromString")
    )
    return hint if is_value else None


def handler_options(changes: Mapping[str, Any]) -> tuple[HandlerOptions, dict[str, Any]]:
    """Those of a handler loop, and those of its consumer.

    Raises:
        TypeError: neither has such a keyword.
    """
    names = [*ConsumerArguments.__annotations__, "pattern"]
    of_consumer = {name: value for name, value in changes.items() if name in names}
    own = {name: value for name, value in changes.items() if name not in of_consumer}
    return changed(HandlerOptions(), own, "run", *names), of_consumer
