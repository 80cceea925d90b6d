"""The composition root: connects broker, admin core and HTTP face, and stops them in order.

Only this module connects broker and admin core. Start: data directory and ports by the broker, then the HTTP
port, then the ready line, which thus means that all of them answer. Stop, on the first SIGTERM or SIGINT:
HTTP face, drain, broker. A second SIGINT ends the process immediately, after which the journal recovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import anyio
from pydanube_admin.compat.methods import compat_methods
from pydanube_admin.core import AdminCore
from pydanube_admin.engine.audit.audit_log import AuditReads
from pydanube_admin.engine.balancer import BalanceOptions
from pydanube_admin.engine.context import AdminOptions
from pydanube_broker.broker import Broker
from pydanube_broker.departure import Patience, depart
from pydanube_broker.rpc.caller import call_metadata
from pydanube_broker.rpc.http_port import HttpPort
from pydanube_broker.rpc.listening import listen
from pydanube_broker.rpc.places import places
from pydanube_broker.security.http_identity import IdentifiedApp
from pydanube_broker.settings.sections import Settings
from pydanube_broker.status.log import configure_logging
from pydanube_broker.status.otlp_logs import otlp_logs
from pydanube_broker.topics.topic import now_ms
from pydanube_core.errors import ClusterError, DiskFull

from pydanube_cli.checks import at_start, check_secrets, of_the_store
from pydanube_cli.collecting import Collecting
from pydanube_cli.fitness import Finding, Level
from pydanube_cli.main import version
from pydanube_cli.ready import program_name, ready_facts, ready_text, replace_file
from pydanube_cli.runtime import run_async

if TYPE_CHECKING:
    from pydanube_admin.remote import OpsEntry


_log = logging.getLogger("pydanube.command")

EXIT_INTERRUPTED: Final = 130
EXIT_STUCK: Final = 1
HTTP_GRACE_S: Final = 2.0  # calls there take milliseconds
LAST_WORD_S: Final = 1.0  # the watchdog, which prints a reason, comes first
LAST_RECORDS_S: Final = 0.5  # the audit's, also if the drain took all of --grace
AFTER_GRACE_S: Final = 2.0  # closing files and ports comes after the work that --grace bounds


def serve(
    settings: Settings,
    *,
    http: bool,
    as_json: bool,
    ready_file: Path | None,
    grace_s: float,
    drain: bool = False,
    upgrade: bool = True,
) -> int:
    """Run a broker until a request to stop, and return the exit code.

    Raises:
        ClusterError: it could not start: PORT_IN_USE, DATA_DIR_LOCKED, CORRUPT_JOURNAL …
    """
    configure_logging(level=settings.log.level, format=settings.log.format)
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)  # of an earlier run: it names a process that is gone
    patience = Patience() if drain else None
    stop = _Stop(grace_s, before_s=0.0 if patience is None else patience.total)

    def announce(info: dict[str, Any]) -> None:
        line = json.dumps(info, ensure_ascii=False)
        if ready_file is not None:
            replace_file(ready_file, f"{line}\n".encode())
        # stdout may have lost its reader (`danube up | head -1`): that is no reason to stop serving.
        with contextlib.suppress(BrokenPipeError):
            print(line if as_json else ready_text(info, program=program_name()), flush=True)

    with stop.installed(), otlp_logs(settings.log.otlp, version=version()):
        run_async(
            lambda: _serve(
                settings, http=http, stop=stop, announce=announce, patience=patience, upgrade=upgrade
            )
        )
    if stop.error is not None:
        raise stop.error
    return 0


async def _serve(
    settings: Settings,
    *,
    http: bool,
    stop: _Stop,
    announce: Callable[[dict[str, Any]], None],
    patience: Patience | None,
    upgrade: bool,
) -> None:
    if settings.server.insecure_bind:
        _log.warning(
            "any client that reaches these ports can read and destroy everything",
            extra={"event": "insecure_bind", "host": settings.server.host},
        )
    check_secrets(settings)
    _check_ports(settings, http=http)
    seen = list(at_start(settings))  # before the start writes
    running = administered(settings, upgrade=upgrade, grace_s=stop.grace_s)
    async with stop.watched(), _in_the_words_of(seen), running as (broker, core):
        # Logged after the start: a failed start prints only its error.
        for finding in [*seen, *of_the_store(broker.tier.hold)]:
            if finding.remedy is None:
                continue
            _log.log(
                logging.INFO if finding.in_order else logging.WARNING,
                finding.summary,
                extra={"event": "unfit", "check": finding.check, "remedy": finding.remedy},
            )
        async with contextlib.AsyncExitStack() as stack:
            if http:
                broker.http_url = await stack.enter_async_context(http_face(broker, core.serve_call))
            collecting = Collecting()
            collecting.begin()
            task = asyncio.ensure_future(collecting.run())
            stack.callback(task.cancel)
            announce(ready_facts(broker))
            broker.health.on_fenced = stop.end
            if broker.health.fenced is not None:
                stop.end(broker.health.fenced)
            await stop.wait()
            if patience is not None and stop.error is None:
                await depart(broker, patience)
            _log.info("broker_stopping", extra={"grace_s": stop.grace_s})


@asynccontextmanager
async def _in_the_words_of(seen: Sequence[Finding]) -> AsyncIterator[None]:
    """Add the findings of `danube doctor`'s checks to the error of a start on a full volume."""
    try:
        yield
    except DiskFull as error:
        for finding in seen:
            if finding.check == "disk" and finding.level is Level.PROBLEM:
                raise DiskFull(finding.summary, remedy=finding.remedy, **error.details) from error
        raise


@asynccontextmanager
async def administered(
    settings: Settings, *, upgrade: bool = True, grace_s: float = 2.0
) -> AsyncIterator[tuple[Broker, AdminCore]]:
    """Yield a broker with the admin core that serves its operations. Both stop in order, within `grace_s`."""
    admin, balance = settings.admin, settings.balance
    core = AdminCore(
        options=AdminOptions(
            plan_ttl_ms=int(admin.plan_ttl * 1000),
            undo_grace_ms=int(admin.undo_grace * 1000),
            compat_destructive=admin.compat_destructive,
            audit_reads=AuditReads(admin.audit_reads),
        ),
        balance=BalanceOptions(
            mode=balance.mode,
            interval_s=balance.interval,
            cooldown_s=balance.cooldown,
            max_moves=balance.max_moves,
            floor=balance.floor,
        ),
        now_ms=now_ms,  # the broker's clock, which does not follow a wrong step of the system's
    )
    methods = compat_methods(core, call_metadata)
    async with Broker(settings, ops=core.serve_call, administration=methods, upgrade=upgrade) as broker:
        core.attach(broker.port)
        core.on_mcp_call = broker.metrics.mcp_call
        if broker.locks is not None:
            broker.locks.authenticator.on_failed = core.note_failed_login
        tasks = [asyncio.create_task(core.begin()), asyncio.create_task(core.balance())]
        yield broker, core
        for task in tasks:
            task.cancel()
        ends_at = anyio.current_time() + grace_s
        with anyio.move_on_after(grace_s / 2):  # a task or the audit may be slow to end
            await core.end_calls()
        try:
            await broker.drain(ends_at - anyio.current_time())
        finally:  # clients made changes until now
            with anyio.move_on_after(max(ends_at - anyio.current_time(), LAST_RECORDS_S)):
                await core.aclose()


def _check_ports(settings: Settings, *, http: bool) -> None:
    """Refuse a taken port before a new data directory is made, so that nothing is left behind.

    A directory with data is checked first: a second start of the same broker should report DATA_DIR_LOCKED.
    """
    server, directory = settings.server, settings.data.dir
    if directory is None or (directory.is_dir() and any(directory.iterdir())):
        return
    flags = ["grpc-port", "admin-port", "metrics-port", *(["http-port"] if http else [])]
    for flag in flags:
        if port := getattr(server, flag.replace("-", "_")):
            listen(server.host, port, flag=flag).close()


@asynccontextmanager
async def http_face(broker: Broker, entry: OpsEntry) -> AsyncIterator[str]:
    """Serve MCP and JSON-RPC through the entry behind the admin port. Yield the URL once it answers."""
    # Imported here, because `danube broker` needs neither and starts faster without them.
    from pydanube_admin.http import asked_permission
    from pydanube_mcp import lazy_http_face
    from pydanube_mcp.profiles import parse_toolsets

    settings, tls = broker.settings, broker.tls
    parse_toolsets(settings.mcp.toolsets)  # the server itself is made by the first request
    host = settings.server.host
    listener = listen(host, settings.server.http_port, flag="http-port")
    # Any name may lead here if the operator opted in to a public address (--insecure-bind), or if every
    # caller needs a token, which a foreign page does not have.
    locks = broker.locks
    allowed = ("*",) if settings.server.insecure_bind or (locks is not None and locks.required) else ()
    async with lazy_http_face(
        broker.admin_url,
        profile=settings.mcp.profile,
        confirm=settings.mcp.confirm,
        read_only=settings.mcp.read_only,
        toolsets=settings.mcp.toolsets,
        allowed_hosts=allowed,
        entry=broker.budget.bound(entry),
    ) as app:
        room = places(settings.server.connections_per_address)
        port = HttpPort(
            app
            if locks is None
            else IdentifiedApp(
                app,
                locks,
                issuer=settings.auth.issuer,
                audience=settings.auth.audience,
                asked=asked_permission,
            ),
            listener,
            tls=None if tls is None else tls.http,
            connections=room.other,
            of_address=room.of_address,
            memory=broker.peer_memory,
            closed=broker.metrics.connections_closed,
            lifespan="on",
            grace_s=HTTP_GRACE_S,
        )
        await port.start()
        try:
            scheme = "https" if tls is not None else "http"
            yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port.port}"
        finally:
            await port.stop()


class _Stop:
    """A request to stop, by signals or by the broker.

    Handlers are set with `signal.signal`, which also run while the loop is busy, as in recovery. The first
    signal starts a watchdog: a stop that hangs must not leave a process that only SIGKILL ends. The watchdog
    is a thread and needs the interpreter. A timer of the C library's kind (`faulthandler`) backs it up: it
    ends the process even while a regular expression is matched for ever and no other thread runs.
    """

    def __init__(self, grace_s: float, *, before_s: float = 0.0) -> None:
        self.grace_s = grace_s
        self._longest_s = before_s + grace_s
        self._asked = False
        self._ready = False
        self._wake: Callable[[], object] = lambda: None
        self._requested: anyio.Event | None = None
        self.error: ClusterError | None = None  # why the broker ends without a signal
        self._watchdog: threading.Timer | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM in the block."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._watchdog is not None:
                self._watchdog.cancel()
                faulthandler.cancel_dump_traceback_later()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Context inside the loop. A signal before `wait` cancels the starting block, later it ends `wait`."""
        loop = asyncio.get_running_loop()
        self._requested = requested = anyio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(requested.set)
        if self._asked:
            requested.set()
        async with anyio.create_task_group() as tasks:

            async def cancel_a_start() -> None:
                await requested.wait()
                if not self._ready:
                    tasks.cancel_scope.cancel()

            tasks.start_soon(cancel_a_start)
            try:
                yield
            finally:
                self._wake = lambda: None
                tasks.cancel_scope.cancel()

    async def wait(self) -> None:
        """Wait for a request to stop. Call it when the broker is ready."""
        assert self._requested is not None, "inside watched()"
        self._ready = True
        await self._requested.wait()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            if number == signal.SIGINT:
                os._exit(EXIT_INTERRUPTED)
            return
        self._begin()

    def end(self, error: ClusterError) -> None:
        """Stop as after a first signal, for a reason of the broker's own."""
        if not self._asked:
            self.error = error
            self._begin()

    def _begin(self) -> None:
        self._asked = True
        self._watchdog = threading.Timer(self._longest_s + AFTER_GRACE_S, _give_up)
        self._watchdog.daemon = True
        self._watchdog.start()
        faulthandler.dump_traceback_later(self._longest_s + AFTER_GRACE_S + LAST_WORD_S, file=2, exit=True)
        self._wake()


def _give_up() -> None:
    print(
        "error INTERNAL: the broker did not stop in time and was ended. The journal recovers at the next start",
        file=sys.stderr,
    )
    os._exit(EXIT_STUCK)
