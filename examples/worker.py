"""A worker: bills each order once, tries again what fails, and ends cleanly at Ctrl-C or SIGTERM.

    pip install pydanube;  danube up;  python worker.py

Start as many as you like: the orders of one customer stay in order, and are handled by one worker at a time.
"""

import asyncio
import json

from pydanube import DeadLetter, Message, connect


async def bill(message: Message) -> Message:
    order = json.loads(message.payload)
    if order["total"] < 0:
        raise DeadLetter("a negative total")  # kept aside with this reason, and not tried again
    print(f"order {order['id']}: {order['total']}", flush=True)
    return Message.new(json.dumps({"order": order["id"], "due": order["total"]}).encode(), key=message.key)


async def main() -> None:
    async with connect() as client:
        # What `bill` returns is stored in `bills` before the order is acknowledged.
        await client.run(
            bill, "orders", "billing", type="key-shared", retries=5, dead_letter=True, publish="bills"
        )


if __name__ == "__main__":
    asyncio.run(main())
