"""Request and reply: a service that knows prices, and a program that asks it.

python request_reply.py serve &
python request_reply.py ask tea
"""

import asyncio
import sys

from pydanube import DeadlineExceeded, Message, connect

PRICES = {"tea": "12.50", "coffee": "9.80"}


async def price(message: Message) -> bytes:
    return PRICES.get(message.payload.decode(), "unknown").encode()


async def serve() -> None:
    async with connect() as client:
        await client.run(price, "prices", "price-list", workers=8)  # several processes share the requests


async def ask(article: str) -> None:
    async with connect() as client:
        try:
            answer = await client.request("prices", article.encode(), timeout_s=5)
        except DeadlineExceeded:
            sys.exit("no price within five seconds")
        print(answer.payload.decode())


if __name__ == "__main__":
    asyncio.run(serve() if sys.argv[1] == "serve" else ask(sys.argv[2]))
