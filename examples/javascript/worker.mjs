// A worker: it handles the orders of a subscription, sends what comes out of them, and ends cleanly at Ctrl-C or SIGTERM.
//
//   npm install danube-client
//   node worker.mjs [http://127.0.0.1:6650]
//
// Start as many as you like: orders of one customer are handled one after another, by one worker at a time.

import { DanubeClient } from "danube-client";

const client = await DanubeClient.connect(process.argv[2] ?? "http://127.0.0.1:6650");
client.on("reconnecting", ({ role, topic, delayMs, error }) => {
  console.error(`${role} of ${topic}: ${error.message}; again in ${Math.round(delayMs)} ms`);
});

const invoices = await client.createProducer({ topic: "invoices" });
await (await client.createProducer({ topic: "orders" })).close(); // makes the topic where it is missing
const orders = await client.subscribe({ topic: "orders", subscription: "billing", type: "key_shared" });

const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort());
console.log("ready");

await orders.run(
  async (message) => {
    const order = message.json(); // what is no JSON comes again, and at last is a dead letter
    const total = order.items.reduce((sum, item) => sum + item.price * item.count, 0);
    // Acknowledged after this is stored: a crash in between sends a second invoice, so it names its order.
    await invoices.send(JSON.stringify({ order: order.id, total }), { key: message.key });
    console.log(`order ${order.id}: ${total}`);
  },
  { concurrency: 32, signal: stop.signal },
);
await client.close();
console.log("stopped");
