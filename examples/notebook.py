# A notebook: cells begin with "# %%" (VS Code, PyCharm and Jupytext open it as one). Cells may await.
# pip install pydanube pandas

# %% Write a day of orders
import json
import random

import pandas as pd
from pydanube import connect

TOPIC = "notebook-orders"
orders = [
    {"customer": f"customer-{random.randrange(9)}", "total": random.randrange(5, 90)} for _ in range(500)
]
async with connect() as client, client.producer(TOPIC) as producer:
    await producer.send_many([json.dumps(order).encode() for order in orders])

# %% Read them, to the end of the topic, without leaving a subscription behind
async with connect() as client, client.reader(TOPIC, stop="head") as reader:
    payloads = [payload async for batch in reader.batches() for payload in batch.payloads]

# %% Who buys most?
frame = pd.DataFrame([json.loads(payload) for payload in payloads])
best = frame.groupby("customer").total.agg(["count", "sum"]).sort_values("sum", ascending=False)
print(best.head(3))
