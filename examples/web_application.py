"""A web application that publishes: POST /orders answers when the order is on disk.

pip install pydanube fastapi uvicorn;  danube up;  uvicorn web_application:app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydanube import ClusterError, connect


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with connect() as client, client.producer("orders") as producer:  # once, and not for each request
        yield {"client": client, "producer": producer}


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def order(request: Request) -> dict[str, int]:
    try:
        receipt = await request.state.producer.send(await request.body(), timeout_s=5)
    except ClusterError as error:
        raise HTTPException(503 if error.retryable else 400, error.to_dict()) from error
    return {"offset": receipt.offset}


@app.get("/health")
async def health(request: Request) -> dict[str, bool]:
    return {"ok": request.state.client.health().ok}
