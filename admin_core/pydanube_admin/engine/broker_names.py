"""Brokers as callers name them: by id, by URL or address, or by the name in their settings (`[server] name`).

A call's arguments are resolved to ids where they are checked, so that plans and audit keep ids: another broker may
take a name over later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final, NoReturn

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import InvalidArgument
from pydanube_core.facts import BrokerAddress
from pydanube_core.spelling import close_names, either, shown

from pydanube_admin.engine.models import Request
from pydanube_admin.engine.operation import DECLARED, Call, next_call
from pydanube_admin.engine.permission import Sight

MAX_CHARS: Final = 256  # of a URL
MOST_NAMED: Final = 10  # brokers in an error
GONE: Final = "gone"  # the state of a broker that is not registered


class _NamesABroker:
    """Marks the field of a request that names a broker."""


BROKER: Final = _NamesABroker()


@cache
def _fields(request: type[Request]) -> tuple[str, ...]:
    """Return the fields of a request that name a broker."""
    return tuple(
        name
        for name, field in request.model_fields.items()
        if any(isinstance(each, _NamesABroker) for each in field.metadata)
    )


def with_broker_ids(port: ClusterPort, call: Call) -> Call:
    """Return the call with the ids of the brokers that it names. Raises as `broker_id_of`."""
    found = {
        name: broker_id_of(port, given, field=name)
        for name in _fields(call.operation.request)
        if (given := getattr(call.request, name)) is not None
    }
    changed = {name: each for name, each in found.items() if each != getattr(call.request, name)}
    if not changed:
        return call
    return replace(
        call, request=call.request.model_copy(update=changed), arguments={**call.arguments, **changed}
    )


def broker_id_of(port: ClusterPort, given: str, *, field: str = "broker_id") -> str:
    """Return the id of the broker that an id, a URL, `host:port` or a name stands for. An id need not exist.

    Registered brokers go before those that are gone.

    Raises:
        InvalidArgument: no broker, or more than one, has that name or address, or it is empty. The error names
            brokers only to a caller that may list them.
    """
    if given.isascii() and given.isdigit():
        return given
    if not given:
        raise InvalidArgument(
            f"{field} is empty: name a broker by its id, its URL or its name, or leave {field} out",
            field=field,
            value="",
        )
    known = port.known_brokers()
    for brokers in ([each for each in known if each.state != GONE], known):
        found = [each for each in brokers if _is_called(each, given)]
        if len(found) == 1:
            return found[0].broker_id
        if found:
            _refuse_several(found, given, field, shows=_shows_brokers(port))
    _refuse_unknown(known, given, field, shows=_shows_brokers(port))


def _shows_brokers(port: ClusterPort) -> bool:
    return Sight(port, DECLARED["brokers.list"].permission).everything


def _is_called(broker: BrokerAddress, given: str) -> bool:
    if broker.name and given == broker.name:
        return True
    address = given.rstrip("/")
    urls = [url.rstrip("/") for url in (broker.broker_url, broker.admin_url) if url]
    return address in urls or address in [url.rpartition("://")[2] for url in urls]


def _refuse_several(found: Iterable[BrokerAddress], given: str, field: str, *, shows: bool) -> NoReturn:
    if not shows:
        raise InvalidArgument(
            f"several brokers are called {shown(given)!r}: name one by its id",
            field=field,
            value=shown(given),
        )
    ids = sorted(each.broker_id for each in found)
    raise InvalidArgument(
        f"{len(ids)} brokers are called {shown(given)!r}: {', '.join(ids[:MOST_NAMED])}. Name one by its id",
        field=field,
        value=shown(given),
        brokers=ids[:MOST_NAMED],
    ).followed_by(next_call("brokers.list", {}, "shows the brokers there are"))


def _refuse_unknown(known: Iterable[BrokerAddress], given: str, field: str, *, shows: bool) -> NoReturn:
    why, how = f"there is no broker {shown(given)!r}", "A broker is named by its id, its URL or its name"
    if not shows:
        raise InvalidArgument(f"{why}. {how}", field=field, value=shown(given))
    names = sorted({each.shown_name for each in known})
    close = close_names(given, names)
    hint = f"Did you mean {either(close)}?" if close else f"There are {', '.join(names[:MOST_NAMED])}."
    raise InvalidArgument(
        f"{why}. {hint} {how}", field=field, value=shown(given), did_you_mean=close
    ).followed_by(next_call("brokers.list", {}, "shows the brokers there are"))


def id_in(port: ClusterPort, given: Mapping[str, Any]) -> Any:
    """Return the id of the broker that unchecked arguments name, or their value, if no broker is called that."""
    value = given.get("broker_id")
    try:
        return broker_id_of(port, value) if isinstance(value, str) and len(value) <= MAX_CHARS else value
    except InvalidArgument:
        return value  # the operation refuses it
