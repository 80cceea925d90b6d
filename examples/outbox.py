"""An outbox: the order and its event are written in one transaction, and the event is published afterwards.

    python outbox.py shop.db 20.00

After a crash between the two the next run publishes the event; before the DELETE, it is published twice.
"""

import asyncio
import json
import sqlite3
import sys

from pydanube import connect

TABLES = """CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, event TEXT);"""


def place(database: sqlite3.Connection, total: str) -> None:
    with database:  # one transaction
        order = database.execute("INSERT INTO orders (total) VALUES (?)", (total,)).lastrowid
        event = json.dumps({"order": order, "total": total})
        database.execute("INSERT INTO outbox (event) VALUES (?)", [event])


async def publish(database: sqlite3.Connection) -> int:
    waiting = database.execute("SELECT id, event FROM outbox ORDER BY id LIMIT 1000").fetchall()
    async with connect() as client, client.producer("orders-placed") as producer:
        await producer.send_many(event.encode() for _, event in waiting)  # they are on disk when it returns
    with database:
        database.executemany("DELETE FROM outbox WHERE id = ?", [(number,) for number, _ in waiting])
    return len(waiting)


if __name__ == "__main__":
    shop = sqlite3.connect(sys.argv[1])
    shop.executescript(TABLES)
    place(shop, sys.argv[2])
    print(asyncio.run(publish(shop)), "published")
