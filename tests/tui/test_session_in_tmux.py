"""A person at a terminal, by tmux: keys go in, the screen is read; and the broker is killed and started under the session."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, broker_process_fixture, danube_command

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on this machine"),
]
broker = broker_process_fixture()


class Session:
    """A window of tmux on a server of its own."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._socket = str(folder / "tmux")
        environment = {**os.environ, "XDG_STATE_HOME": str(folder), "LANG": "C.UTF-8"}
        environment.pop("TMUX", None)
        self._tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "100",
            "-y",
            "30",
            shlex.join(words),
            env=environment,
        )

    def _tmux(self, *words: str, **more: Any) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", self._socket, *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            **more,
        )
        return done.stdout

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def until(self, *texts: str) -> str:
        """Wait until all of it is on the screen."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            shown = self.screen()
            if all(text in shown for text in texts):
                return shown
            time.sleep(0.1)  # tmux tells no event for "the screen changed"
        raise AssertionError(f"{texts} did not come; there is\n{shown}")

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def close(self) -> None:
        subprocess.run(
            ["tmux", "-S", self._socket, "kill-server"], check=False, capture_output=True, timeout=60
        )


@pytest.fixture
def session(broker: BrokerProcess, tmp_path: Path) -> Iterator[Session]:
    broker.command("produce", "orders", "-m", '{"total": 12}')
    broker.command("subscriptions", "create", "orders", "billing", "--start", "earliest")
    it = Session(
        tmp_path,
        [*danube_command(), "tui", "--broker", broker.url, "--admin", broker.admin, "--allow-writes"],
    )
    try:
        yield it
    finally:
        it.close()


def test_a_session_goes_on_through_the_death_of_its_broker(broker: BrokerProcess, session: Session) -> None:
    session.until("Overview", "/default/orders › billing")
    session.press(":", "topics", "Enter")
    session.until("Topics", "/default/orders", "subs")

    session.press("/", "ord", "Enter")
    session.until("/ord  1")
    broker.kill()
    shown = session.until("connection lost")
    assert "/default/orders" in shown, "what was seen stays"
    session.until("tries")
    session.press("?")
    session.until("every key")
    session.press("Escape")

    broker.start()
    session.until("● ")
    assert "/ord  1" in session.screen(), "the filter stayed"

    session.press("C-d")
    session.until("The effects would be", "type /default/orders to go on")
    session.press("Enter")  # Cancel has the focus
    session.until("nothing was changed")
    session.press("m")
    session.until("Messages", '{"total": 12}')
    session.resize(80, 24)
    session.until("Messages", '{"total": 12}')
    session.press("q")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            session.screen()
        except subprocess.CalledProcessError:
            return  # the window went with its program
        time.sleep(0.1)
    raise AssertionError("it did not end")
