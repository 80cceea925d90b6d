"""A connector of your own: a sink that keeps the newest value of each key in SQLite.

    PYTHONPATH=. danube connect run connector.toml --once

A batch is written in one transaction, and the messages are acknowledged after it. A crash in between writes the batch
again, which changes nothing: the same key gets the same value.
"""

import sqlite3
from pathlib import Path

from pydanube_connect import Batch, Refused, Settings, Sink
from pydanube_connect.values import json_payload


class NewestSettings(Settings):
    database: Path


class Newest(Sink[NewestSettings]):
    async def open(self) -> None:
        self._database = sqlite3.connect(self.settings.database)
        self._database.execute("CREATE TABLE IF NOT EXISTS newest (key TEXT PRIMARY KEY, value BLOB)")

    async def close(self) -> None:
        self._database.close()

    async def write(self, batch: Batch) -> None:
        if nameless := [record for record in batch if record.key is None]:
            raise Refused(nameless, "the message has no key")
        rows = [(record.key, json_payload(record.value)) for record in batch]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO newest VALUES (?, ?)", rows)
