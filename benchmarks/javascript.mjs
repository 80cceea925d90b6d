// Measure the JavaScript client beside the official Python client, in turns, against one broker.
//
//   ./danube up --memory &                          a broker; without a disk the clients are what takes time
//   make test-javascript                            once: builds the client, fetches the official one
//   node benchmarks/javascript.mjs [--url http://127.0.0.1:6650] [--rounds 3] [--messages 5000]
//
// Messages of 128 bytes on a reliable topic. For each client: sends a second with 1 and with 64 in flight, deliveries a second
// (each acknowledged), and processor time of the client's process for each message, in microseconds. Each client begins with
// `--messages` sends that are not measured. Prints JSON, one line a round, then the medians and the ratio of both clients.

import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { DanubeClient } from "../clients/javascript/index.mjs";

const { values } = parseArgs({
  options: {
    url: { type: "string", default: "http://127.0.0.1:6650" },
    rounds: { type: "string", default: "3" },
    messages: { type: "string", default: "5000" },
  },
});
const root = fileURLToPath(new URL("..", import.meta.url));
const count = Number(values.messages);
const payload = Buffer.alloc(128, 120);

/** Operations a second, and processor time of each in microseconds. */
async function measured(operations, work) {
  const begun = performance.now();
  const before = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(before);
  return { per_s: Math.round(operations / ((performance.now() - begun) / 1000)), cpu_us: Math.round((user + system) / operations) };
}

async function javascript(topic) {
  const client = await DanubeClient.connect(values.url);
  const producer = await client.createProducer({ topic });
  const consumer = await client.subscribe({ topic, subscription: "s", type: "exclusive" });
  const send = async (times) => {
    for (let n = 0; n < times; n++) await producer.send(payload);
  };
  const together = (times) => Promise.all(Array.from({ length: 64 }, () => send(times)));
  const [single, each] = [Math.floor(count / 10), Math.floor(count / 64)];
  await together(each); // Node compiles what runs often
  const one = await measured(single, () => send(single));
  const many = await measured(each * 64, () => together(each));
  const all = single + 2 * each * 64;
  const deliveries = await measured(all, async () => {
    const acks = new Set();
    for (let n = 0; n < all; n++) {
      const message = await consumer.next();
      const ack = message.ack().finally(() => acks.delete(ack));
      acks.add(ack);
      if (acks.size >= 64) await Promise.race(acks);
    }
    await Promise.all(acks);
  });
  await client.close();
  return { one_in_flight: one, in_flight_64: many, deliveries };
}

function officialPython(topic) {
  const tools = `${root}.tools/`;
  const folder = readdirSync(tools).find((name) => name.startsWith("danube-client-"));
  const words = [`${root}benchmarks/javascript_official.py`, values.url, topic, String(count)];
  const env = { ...process.env, PYTHONPATH: `${tools}${folder}` };
  return JSON.parse(execFileSync(`${root}.venv/bin/python`, words, { env, encoding: "utf8" }));
}

const rounds = [];
for (let round = 1; round <= Number(values.rounds); round++) {
  const name = `bench-${Date.now()}`;
  const clients = [["javascript", javascript], ["python", officialPython]];
  if (round % 2 === 0) clients.reverse();
  const found = {};
  for (const [client, measure] of clients) found[client] = await measure(`/default/${name}-${client}`);
  rounds.push(found);
  console.log(JSON.stringify({ round, javascript: found.javascript, python: found.python }));
}
const median = (client, what, unit) => {
  const all = rounds.map((found) => found[client][what][unit]).sort((a, b) => a - b);
  return all[Math.floor(all.length / 2)];
};
for (const what of ["one_in_flight", "in_flight_64", "deliveries"]) {
  for (const unit of ["per_s", "cpu_us"]) {
    const [ours, theirs] = [median("javascript", what, unit), median("python", what, unit)];
    console.log(`${what} ${unit}: javascript ${ours}, python ${theirs}, ratio ${(ours / theirs).toFixed(2)}`);
  }
}
