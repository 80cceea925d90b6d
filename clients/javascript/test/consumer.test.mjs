// Consumers: bounded buffers, answers, recovery, the loop, hostile streams.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { delivered, failure, grpc, pair, refusal, until, wire } from "./fake.mjs";

const { status } = grpc;
const TOPIC = "/default/t";
const subscription = { topic: "t", subscription: "s", name: "c" };

/** Streams that deliver this and stay open. */
const delivering = (broker, messages) => {
  broker.streaming = (call) => {
    for (const message of messages) call.write(message);
  };
};
const some = (count, more) => Array.from({ length: count }, (_, n) => delivered(TOPIC, n, more?.(n)));
const soon = () => ({ signal: AbortSignal.timeout(30_000) });
const encoded = (message) => Buffer.from(wire.StreamMessage.encode(message).finish());

test("messages come with all that they carry, exactly", async (t) => {
  const { broker, client } = await pair(t);
  const large = 2n ** 63n - 25n;
  delivering(broker, [delivered(TOPIC, large, {
    attributes: new Map([["a", "b"], ["__proto__", "c"]]), routingKey: "", schemaId: 2n ** 64n - 1n, schemaVersion: 3,
  })]);
  const consumer = await client.subscribe(subscription);
  const message = await consumer.next(soon());
  assert.equal(message.offset, large);
  assert.deepEqual([message.key, message.schemaId, message.schemaVersion, message.producer], ["", 2n ** 64n - 1n, 3, "p"]);
  assert.deepEqual(Object.entries(message.attributes), [["a", "b"], ["__proto__", "c"]]);
  assert.equal(Object.getPrototypeOf(message.attributes), Object.prototype);
  assert.equal(message.publishTime.toISOString(), "2023-11-14T22:13:20.000Z");
  await message.ack();
  const { request } = broker.calls.at(-1);
  assert.deepEqual([request.msgId.topicOffset, request.msgId.topicName, request.subscriptionName], [large, TOPIC, "s"]);
});

test("a full buffer stops reading, and sends of the same client go on", async (t) => {
  const { broker, client } = await pair(t);
  let written = 0;
  broker.streaming = (call) => {
    const more = () => {
      while (written < 1000) {
        if (!call.write(delivered(TOPIC, written++, { payload: Buffer.alloc(50_000) }))) return call.once("drain", more);
      }
    };
    more();
  };
  const consumer = await client.subscribe({ ...subscription, maxBuffered: 10 });
  await until(() => consumer.statistics().buffered === 10);
  await pause(300); // what would come, has come
  assert.equal(consumer.statistics().buffered, 10);
  assert.ok(written < 200, `${written} of 1000 were written to a consumer that takes none`);
  const producer = await client.createProducer({ topic: "t" });
  await producer.send("goes on");
  for (let n = 0; n < 1000; n++) assert.equal((await consumer.next(soon())).offset, BigInt(n));
});

test("the buffer is bounded in bytes, too", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(50, () => ({ payload: Buffer.alloc(1000) })));
  const consumer = await client.subscribe({ ...subscription, maxBufferedBytes: 4500 });
  await until(() => consumer.statistics().buffered === 5);
  await pause(100);
  assert.deepEqual([consumer.statistics().buffered, consumer.statistics().bufferedBytes], [5, 5000]);
  for (let n = 0; n < 50; n++) await consumer.next(soon());
});

test("leaving a loop leaves the consumer open; close ends the loop", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(3));
  const consumer = await client.subscribe(subscription);
  const seen = [];
  for await (const message of consumer) {
    seen.push(message.text());
    if (seen.length === 2) break;
  }
  for await (const message of consumer) {
    seen.push(message.text());
    void consumer.close();
  }
  assert.deepEqual(seen, ["m0", "m1", "m2"]);
  assert.equal(await consumer.next(), undefined);
});

test("a stream that ends is begun anew, with a new subscription and growing delays", async (t) => {
  const { broker, client } = await pair(t);
  const delays = [];
  client.on("reconnecting", ({ delayMs, attempt }) => delays.push([attempt, delayMs]));
  let streams = 0;
  broker.streaming = (call) => {
    call.write(delivered(TOPIC, streams++));
    const ends = [() => call.end(), () => call.emit("error", failure(status.UNAVAILABLE)), () => call.emit("error", failure(status.UNKNOWN, "socket hang up"))];
    if (streams <= 3) setTimeout(ends[streams - 1], 100);
  };
  const consumer = await client.subscribe(subscription);
  for (let n = 0; n < 4; n++) assert.equal((await consumer.next(soon())).offset, BigInt(n));
  assert.equal(broker.count("subscribe"), 4);
  assert.deepEqual(delays.map(([attempt]) => attempt), [1, 2, 3]);
  for (const [attempt, delayMs] of delays) assert.ok(delayMs >= 50 * 2 ** (attempt - 1) && delayMs <= 100 * 2 ** (attempt - 1), `${delays}`);
});

test("what the program did not take when its stream broke is not delivered twice", async (t) => {
  const { broker, client } = await pair(t);
  let streams = 0;
  broker.streaming = (call) => {
    for (const message of some(5)) call.write(message);
    if (streams++ === 0) setTimeout(() => call.emit("error", failure(status.UNAVAILABLE)), 200);
  };
  const consumer = await client.subscribe(subscription);
  await until(() => streams === 2 && consumer.statistics().received === 10);
  assert.equal(consumer.statistics().buffered, 5);
});

for (const [what, bytes] of [
  ["truncated", encoded(delivered(TOPIC, 1)).subarray(0, 12)],
  ["of wrong types", Buffer.from([0x0a, 0x02, 0x68, 0x69, 0x10, 0x07])],
  ["without an id", encoded({ ...delivered(TOPIC, 1), msgId: undefined })],
  ["noise", Buffer.alloc(64, 0xff)],
  ["over the limit", Buffer.alloc(17 * 1024 * 1024)],
]) {
  test(`a message that is ${what} costs its stream, with a pause, and nothing else`, async (t) => {
    const { broker, client } = await pair(t);
    const errors = [];
    client.on("reconnecting", ({ error }) => errors.push(error));
    broker.streaming = (call) => call.write(errors.length < 2 ? bytes : delivered(TOPIC, 5));
    const consumer = await client.subscribe(subscription);
    assert.equal((await consumer.next(soon())).offset, 5n);
    assert.equal(errors.length, 2);
  });
}

test("an endless stream of endings is not followed without pause", async (t) => {
  const { broker, client } = await pair(t);
  broker.streaming = (call) => call.end();
  await client.subscribe(subscription);
  await pause(1000);
  assert.ok(broker.count("subscribe") <= 6, `${broker.count("subscribe")} in a second`);
});

test("a consumer that may not come back ends its loop with the reason", async (t) => {
  const { broker, client } = await pair(t);
  const consumer = await client.subscribe(subscription);
  await until(() => broker.count("receiveMessages") === 1);
  broker.answers.subscribe = () => {
    throw refusal(status.PERMISSION_DENIED, { code: "CONSUMER_BUSY", message: "another has the place", retryable: false });
  };
  const failed = [];
  client.on("failed", ({ error, role }) => failed.push([role, error.code]));
  broker.answers.healthCheck = () => ({ status: 1 }); // CLOSE: begin again
  await assert.rejects(async () => {
    for await (const message of consumer) assert.fail(message.text());
  }, { code: "CONSUMER_BUSY" });
  assert.deepEqual(failed, [["consumer", "CONSUMER_BUSY"]]);
  await assert.rejects(consumer.next(), { code: "CONSUMER_BUSY" });
});

test("an acknowledgement is retried over a broken connection, and one that fails is an event", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(3));
  const consumer = await client.subscribe(subscription);
  const [first, second] = [await consumer.next(soon()), await consumer.next(soon())];
  let tries = 0;
  broker.answers.ack = ({ requestId }) => {
    if (++tries < 3) throw failure(status.UNAVAILABLE, "read ECONNRESET");
    return { requestId };
  };
  await Promise.all([first.ack(), first.ack()]);
  assert.equal(tries, 3);
  broker.answers.ack = () => {
    throw failure(status.INTERNAL, "SUBSCRIPTION_NOT_FOUND: gone");
  };
  const failed = [];
  client.on("ackFailed", ({ offset, error }) => failed.push([offset, error.code]));
  second.ack(); // not awaited: the process lives on
  await until(() => failed.length === 1);
  assert.deepEqual(failed, [[1n, "SUBSCRIPTION_NOT_FOUND"]]);
  broker.answers.ack = ({ requestId }) => ({ requestId });
  await second.ack(); // that failed, so it may be tried again
});

test("close waits for acknowledgements under way", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(1));
  const consumer = await client.subscribe(subscription);
  const message = await consumer.next(soon());
  let answer;
  broker.answers.ack = ({ requestId }) => new Promise((resolve) => (answer = () => resolve({ requestId })));
  let acked = false;
  void message.ack().then(() => (acked = true));
  await until(() => answer !== undefined);
  const closing = consumer.close();
  answer();
  await closing;
  assert.ok(acked);
  await assert.rejects(message.nack(), { code: "MISUSE" });
});

test("next gives way to its signal and takes no message along", async (t) => {
  const { broker, client } = await pair(t);
  let deliver;
  broker.streaming = (call) => (deliver = () => call.write(delivered(TOPIC, 0)));
  const consumer = await client.subscribe(subscription);
  await until(() => deliver !== undefined);
  const given = new AbortController();
  const first = consumer.next({ signal: given.signal });
  const second = consumer.next(soon());
  given.abort();
  await assert.rejects(first, { code: "CANCELLED" });
  deliver();
  assert.equal((await second).offset, 0n);
});

test("the loop handles keys in order, side by side up to its concurrency", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(60, (n) => ({ routingKey: n % 6 === 5 ? undefined : `k${n % 6}` })));
  const consumer = await client.subscribe(subscription);
  const seen = {};
  const running = new Set();
  let most = 0;
  let handled = 0;
  const loop = consumer.run(async (message) => {
    const key = message.key ?? `none ${message.offset}`;
    assert.ok(!running.has(key), "two of one key at a time");
    running.add(key);
    most = Math.max(most, running.size);
    await pause(Math.random() * 5);
    (seen[key] ??= []).push(message.offset);
    running.delete(key);
    if (++handled === 60) void consumer.close();
  }, { concurrency: 4 });
  await loop;
  assert.equal(most, 4);
  for (const offsets of Object.values(seen)) assert.deepEqual(offsets, [...offsets].sort((a, b) => Number(a - b)));
  assert.equal(broker.count("ack"), 60);
});

test("the loop gives back what its handler throws at, and lets a handler answer itself", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(3));
  const consumer = await client.subscribe(subscription);
  const stop = new AbortController();
  let handled = 0;
  const loop = consumer.run(async (message) => {
    handled++;
    if (message.offset === 0n) throw new Error("cannot parse");
    if (message.offset === 1n) await message.nack({ delayMs: 700, reason: "later" });
  }, { signal: stop.signal });
  await until(() => broker.count("nack") === 2 && broker.count("ack") === 1);
  stop.abort();
  await loop;
  const nacks = broker.calls.filter(({ method }) => method === "nack").map(({ request }) => [request.msgId.topicOffset, request.delayMs, request.reason]);
  assert.deepEqual(nacks.sort(), [[0n, undefined, "cannot parse"], [1n, 700n, "later"]]);
  assert.equal(handled, 3);
});

test("a handler that hangs costs its place, and nothing for each message that passes it", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(200));
  const consumer = await client.subscribe({ ...subscription, maxBuffered: 1000 });
  const gone = new AbortController();
  let handled = 0;
  let release;
  const loop = consumer.run((message) => {
    if (message.offset === 0n) return new Promise((resolve) => (release = resolve));
    if (++handled === 199) gone.abort();
  }, { concurrency: 2, signal: gone.signal });
  await until(() => handled === 199, 100_000);
  release();
  await loop;
});

test("partitions that no topic can have are refused, and each is read once", async (t) => {
  const { broker, client } = await pair(t);
  broker.answers.topicPartitions = ({ topic }) => ({ requestId: 0n, partitions: Array.from({ length: 20_000 }, (_, n) => `${topic}-part-${n}`) });
  await assert.rejects(client.subscribe({ ...subscription, signal: AbortSignal.timeout(500) }), (error) => ["PROTOCOL_ERROR", "CANCELLED"].includes(error.code));
  broker.answers.topicPartitions = ({ topic }) => ({ requestId: 0n, partitions: [topic, topic] });
  await client.subscribe(subscription);
  assert.equal(broker.count("subscribe"), 1);
});

test("key filters, type and names are sent as given", async (t) => {
  const { broker, client } = await pair(t);
  await client.subscribe({ ...subscription, type: "key_shared", keyFilters: ["eu-*", "us-?"] });
  const { request } = broker.calls.findLast(({ method }) => method === "subscribe");
  assert.deepEqual([request.subscriptionType, request.keyFilters, request.consumerName, request.subscription], [3, ["eu-*", "us-?"], "c", "s"]);
  for (const [more, field] of [[{ type: "both" }, "type"], [{ keyFilters: ["a"] }, "keyFilters"], [{ subscription: "" }, "subscription"], [{ maxBuffered: 0 }, "maxBuffered"]]) {
    await assert.rejects(client.subscribe({ ...subscription, ...more }), (error) => error.details?.field === field, field);
  }
});

test("a subscription whose second partition fails leaves nothing open", async (t) => {
  const { broker, client } = await pair(t);
  broker.answers.topicPartitions = ({ topic }) => ({ requestId: 0n, partitions: [0, 1].map((n) => `${topic}-part-${n}`) });
  const subscribe = broker.answers.subscribe;
  let open = 0;
  broker.streaming = (call) => (open++, call.on("cancelled", () => open--));
  broker.answers.subscribe = async (request) => {
    if (!request.topicName.endsWith("1")) return subscribe(request);
    await until(() => open === 1);
    throw refusal(status.PERMISSION_DENIED, { code: "CONSUMER_BUSY", retryable: false });
  };
  await assert.rejects(client.subscribe(subscription), { code: "CONSUMER_BUSY" });
  await until(() => open === 0);
});

test("whatever a handler throws, the message is given back and the loop goes on", async (t) => {
  const { broker, client } = await pair(t);
  const thrown = [Object.create(null), Object.assign(new Error(), { message: 42 }), Symbol("s"), undefined, { toString: () => { throw new Error("again"); } }];
  delivering(broker, some(thrown.length));
  const consumer = await client.subscribe(subscription);
  const stop = new AbortController();
  const loop = consumer.run((message) => {
    throw thrown[Number(message.offset)];
  }, { signal: stop.signal });
  await until(() => broker.count("nack") === thrown.length);
  stop.abort();
  await loop;
});

test("a nack that failed is made no ack by the loop", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(2));
  broker.answers.nack = () => {
    throw failure(status.INTERNAL, "SUBSCRIPTION_NOT_FOUND: gone");
  };
  const failed = [];
  client.on("ackFailed", ({ error }) => failed.push(error.code));
  const consumer = await client.subscribe(subscription);
  const stop = new AbortController();
  const loop = consumer.run(async (message) => {
    message.nack(message.offset === 0n ? { delayMs: 1.5 } : {});
    if (message.offset === 1n) await until(() => failed.length === 2);
  }, { signal: stop.signal });
  await until(() => failed.length === 2);
  stop.abort();
  await loop;
  assert.deepEqual([failed.sort(), broker.count("ack")], [["INVALID_ARGUMENT", "SUBSCRIPTION_NOT_FOUND"], 0]);
});

test("a second answer that contradicts the first ends no process", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(1));
  const consumer = await client.subscribe(subscription);
  const message = await consumer.next(soon());
  message.nack();
  message.ack(); // an unhandled rejection would fail this test
  await assert.rejects(message.ack(), { code: "MISUSE" });
});

test("a loop that ends leaves the messages that wait for their key to the next one", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(30, () => ({ routingKey: "k" })));
  const consumer = await client.subscribe(subscription);
  await until(() => consumer.statistics().buffered === 30);
  const stop = new AbortController();
  const seen = [];
  await consumer.run(async ({ offset }) => {
    seen.push(offset);
    if (offset === 1n) stop.abort();
    await pause(1);
  }, { signal: stop.signal });
  assert.deepEqual(seen, [0n, 1n]);
  assert.equal(consumer.statistics().buffered, 28);
  const loop = consumer.run(({ offset }) => {
    seen.push(offset);
    if (seen.length === 30) void consumer.close();
  });
  await loop;
  assert.deepEqual(seen, some(30).map(({ msgId }) => msgId.topicOffset));
});

test("attributes and keys count for the buffer's bytes", async (t) => {
  const { broker, client } = await pair(t);
  delivering(broker, some(50, () => ({ payload: Buffer.alloc(0), routingKey: "k".repeat(500), attributes: new Map([["a", "b".repeat(499)]]) })));
  const consumer = await client.subscribe({ ...subscription, maxBufferedBytes: 4500 });
  await until(() => consumer.statistics().buffered === 5);
  await pause(100);
  assert.deepEqual([consumer.statistics().buffered, consumer.statistics().bufferedBytes], [5, 5000]);
  for (let n = 0; n < 50; n++) await consumer.next(soon());
});

test("a partition that could not be read when it was added is looked for again", async (t) => {
  const every = globalThis.setInterval;
  t.after(() => (globalThis.setInterval = every));
  let tick;
  globalThis.setInterval = (call, ms) => every((tick = call), ms); // the consumer's is the last that begins
  const { broker, client } = await pair(t);
  let count = 1;
  broker.answers.topicPartitions = ({ topic }) => ({ requestId: 0n, partitions: Array.from({ length: count }, (_, n) => `${topic}-part-${n}`) });
  const { subscribe } = broker.answers;
  await client.subscribe(subscription);
  count = 2;
  let refusals = 0;
  broker.answers.subscribe = (request) => {
    if (refusals++ > 0) return subscribe(request);
    throw refusal(status.PERMISSION_DENIED, { code: "CONSUMER_BUSY", retryable: false });
  };
  await until(() => {
    for (let n = 0; n < 12; n++) tick(); // a minute
    return broker.count("receiveMessages") === 2;
  });
  assert.ok(refusals > 1);
});
