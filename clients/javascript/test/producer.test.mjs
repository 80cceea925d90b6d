// Producers: one settlement of each send, back-pressure, order, recovery.

import assert from "node:assert/strict";
import { test } from "node:test";

import { DanubeError } from "danube-client";

import { failure, grpc, pair, refusal, until } from "./fake.mjs";

const { status } = grpc;

/** Answers that the test gives when it wants to. */
function held(broker) {
  const waiting = [];
  broker.answers.sendMessage = (request) => new Promise((resolve, reject) => waiting.push({ request, resolve, reject }));
  return waiting;
}

const text = (request) => request.payload.toString();

test("a send is acknowledged with an id of its own", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", name: "p" });
  assert.deepEqual(await Promise.all([producer.send("a"), producer.send("b")]), [1n, 2n]);
  const sent = broker.calls.filter(({ method }) => method === "sendMessage").map(({ request }) => request);
  assert.deepEqual(sent.map(text), ["a", "b"]);
  assert.deepEqual([sent[0].msgId.topicName, sent[0].msgId.producerId, sent[0].producerName], ["/default/t", 7n, "p"]);
  assert.equal(sent[0].msgId.brokerAddr, broker.url);
  assert.equal(sent[0].routingKey, undefined);
});

test("an empty key is a key", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  await producer.send("a", { key: "" });
  assert.equal(broker.calls.at(-1).request.routingKey, "");
});

test("a refusal by the broker is final and carries its facts", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  broker.answers.sendMessage = () => {
    throw refusal(status.INVALID_ARGUMENT, {
      code: "PAYLOAD_INVALID", message: "no", retryable: false, details: { field: "payload" },
    });
  };
  await assert.rejects(producer.send("a"), (error) => {
    assert.ok(error instanceof DanubeError && error instanceof Error);
    assert.deepEqual([error.code, error.retryable, error.outcome, error.details], ["PAYLOAD_INVALID", false, "refused", { field: "payload" }]);
    return true;
  });
  assert.equal(broker.count("sendMessage"), 1);
});

test("what the broker does not know itself is unknown, and not sent again", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  broker.answers.sendMessage = () => {
    throw refusal(status.INTERNAL, { code: "JOURNAL_READ_ONLY", message: "sync failed", retryable: false, details: { outcome: "unknown" } });
  };
  await assert.rejects(producer.send("a"), { code: "JOURNAL_READ_ONLY", outcome: "unknown" });
  assert.equal(broker.count("sendMessage"), 1);
});

test("a lost answer is unknown where messages are not to be sent again", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", resend: false });
  broker.answers.sendMessage = () => {
    throw failure(status.UNAVAILABLE, "read ECONNRESET");
  };
  await assert.rejects(producer.send("a"), { code: "UNAVAILABLE", outcome: "unknown", retryable: true });
  assert.equal(broker.count("sendMessage"), 1);
});

test("a send that may be stored stays unknown though its last try was refused", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  const answers = [failure(status.UNAVAILABLE, "read ECONNRESET"), refusal(status.INVALID_ARGUMENT, { code: "MESSAGE_TOO_LARGE", retryable: false })];
  broker.answers.sendMessage = () => {
    throw answers.shift();
  };
  await assert.rejects(producer.send("a"), { code: "MESSAGE_TOO_LARGE", outcome: "unknown" });
});

test("a session that the broker forgot is made again", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  let id = 7n;
  broker.answers.createProducer = ({ requestId, producerName }) => ({ requestId, producerId: (id = 8n), producerName });
  broker.answers.sendMessage = ({ requestId, msgId }) => {
    if (msgId.producerId !== 8n) throw failure(status.NOT_FOUND, "producer not found");
    return { requestId };
  };
  await producer.send("a");
  assert.equal(id, 8n);
  broker.answers.sendMessage = () => {
    throw failure(status.NOT_FOUND, "producer not found");
  };
  await assert.rejects(producer.send("b"), { code: "NOT_FOUND", outcome: "refused" });
});

test("the topic's order holds when sends fail and are sent again", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", maxInFlight: 3 });
  const stored = [];
  let fail = 4;
  broker.answers.sendMessage = (request) => {
    if (fail-- > 0) throw refusal(status.UNAVAILABLE, { code: "NOT_OWNER", message: "moved", retryable: true });
    stored.push(text(request));
    return { requestId: request.requestId };
  };
  const names = Array.from({ length: 20 }, (_, n) => `m${n}`);
  await Promise.all(names.map((name) => producer.send(name)));
  assert.deepEqual(stored, names);
});

test("a busy broker is left alone for as long as it wishes, with the session kept", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  let first = true;
  broker.answers.sendMessage = ({ requestId }) => {
    if (!first) return { requestId };
    first = false;
    throw refusal(status.RESOURCE_EXHAUSTED, { code: "OVERLOADED", message: "busy", retryable: true, details: { retry_after_ms: 400 } });
  };
  const delays = [];
  client.on("reconnecting", ({ delayMs }) => delays.push(delayMs));
  await producer.send("a");
  assert.ok(delays.length === 1 && delays[0] >= 400, `${delays}`);
  assert.equal(broker.count("createProducer"), 1);
});

test("maxPending holds sends back, in order, and maxWaiting refuses them", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", maxPending: 2, maxWaiting: 2 });
  const waiting = held(broker);
  const sends = ["a", "b", "c", "d"].map((each) => producer.send(each));
  await until(() => waiting.length === 2);
  assert.deepEqual(producer.statistics(), { pending: 2, inFlight: 2, waiting: 2, acknowledged: 0, failed: 0 });
  await assert.rejects(producer.send("e"), { code: "OVERLOADED", retryable: true, outcome: "refused" });
  assert.deepEqual(waiting.map(({ request }) => text(request)), ["a", "b"]);
  waiting[0].resolve({ requestId: waiting[0].request.requestId });
  await until(() => waiting.length === 3);
  waiting[1].resolve({ requestId: waiting[1].request.requestId });
  await until(() => waiting.length === 4);
  assert.deepEqual(waiting.map(({ request }) => text(request)), ["a", "b", "c", "d"]);
  for (const { request, resolve } of waiting.slice(2)) resolve({ requestId: request.requestId });
  assert.deepEqual(await Promise.all(sends), [1n, 2n, 3n, 4n]);
  assert.equal(producer.statistics().acknowledged, 4);
});

test("maxInFlight bounds the calls of a partition", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", maxInFlight: 1 });
  const waiting = held(broker);
  const sends = Promise.all(["a", "b"].map((each) => producer.send(each)));
  await until(() => waiting.length === 1);
  assert.equal(producer.statistics().inFlight, 1);
  waiting[0].resolve({ requestId: 1n });
  await until(() => waiting.length === 2);
  waiting[1].resolve({ requestId: 2n });
  await sends;
});

test("a signal ends a send wherever it is, once", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", maxPending: 2, maxInFlight: 1 });
  const waiting = held(broker);
  const [flying, queued, turn] = [new AbortController(), new AbortController(), new AbortController()];
  const sends = [flying, queued, turn].map(({ signal }, n) => producer.send(`m${n}`, { signal }));
  const rest = producer.send("rest");
  await until(() => waiting.length === 1);
  turn.abort();
  await assert.rejects(sends[2], { code: "CANCELLED", name: "AbortError", outcome: "refused" });
  queued.abort();
  await assert.rejects(sends[1], { code: "CANCELLED", outcome: "refused" });
  flying.abort(new Error("enough"));
  await assert.rejects(sends[0], (error) => error.code === "CANCELLED" && error.outcome === "unknown" && error.cause.message === "enough");
  await until(() => waiting.length === 2);
  assert.equal(text(waiting[1].request), "rest");
  waiting[0].resolve({ requestId: 1n }); // too late: nothing is settled twice
  waiting[1].resolve({ requestId: waiting[1].request.requestId });
  await rest;
  await assert.rejects(producer.send("x", { signal: AbortSignal.abort() }), { code: "CANCELLED", outcome: "refused" });
  assert.deepEqual(producer.statistics(), { pending: 0, inFlight: 0, waiting: 0, acknowledged: 1, failed: 3 });
});

test("one signal serves any number of sends", async (t) => {
  const { client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  const warnings = [];
  const listener = (warning) => warnings.push(warning.message);
  process.on("warning", listener);
  t.after(() => process.off("warning", listener));
  const { signal } = new AbortController();
  await Promise.all(Array.from({ length: 100 }, () => producer.send("x", { signal })));
  assert.deepEqual(warnings, []);
});

test("a send has its time: unknown if it was under way, refused if it never left", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", maxInFlight: 1, sendTimeoutMs: 300 });
  held(broker);
  const [flying, queued] = [producer.send("a"), producer.send("b")];
  await assert.rejects(flying, { code: "DEADLINE_EXCEEDED", outcome: "unknown", retryable: true });
  await assert.rejects(queued, { code: "DEADLINE_EXCEEDED", outcome: "refused" });
});

test("an answer about another message settles nothing as acknowledged", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  broker.answers.sendMessage = () => ({ requestId: 99n });
  await assert.rejects(producer.send("a"), { code: "PROTOCOL_ERROR", outcome: "unknown" });
});

test("an answer that cannot be read is unknown", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  for (const bytes of [Buffer.from([0x08]), Buffer.from([0x0a, 0xff]), Buffer.alloc(100, 0xff), Buffer.alloc(0), Buffer.alloc(20_000_000, 8)]) {
    broker.answers.sendMessage = () => bytes;
    await assert.rejects(producer.send("a"), (error) => error instanceof DanubeError && error.outcome === "unknown", bytes.toString("hex", 0, 4));
  }
  broker.answers.sendMessage = ({ requestId }) => ({ requestId });
  await producer.send("b");
});

test("flush waits for what was sent before it, and for nothing else", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  await producer.flush();
  const waiting = held(broker);
  const before = producer.send("before");
  let flushed = 0;
  const flushes = [1, 2].map(() => producer.flush().then(() => flushed++));
  const after = producer.send("after");
  await until(() => waiting.length === 2);
  assert.equal(flushed, 0);
  waiting[0].resolve({ requestId: 1n });
  await before;
  await Promise.all(flushes);
  waiting[1].resolve({ requestId: 2n });
  await after;
});

test("close waits for what is under way, and takes nothing more", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  const waiting = held(broker);
  const send = producer.send("a");
  await until(() => waiting.length === 1);
  const closing = producer.close();
  await assert.rejects(producer.send("b"), { code: "CLOSED", outcome: "refused" });
  waiting[0].resolve({ requestId: 1n });
  assert.equal(await send, 1n);
  await closing;
  assert.equal(producer.close(), closing);
});

test("close rejects what is not settled in its time, each once", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", maxPending: 2, maxInFlight: 1 });
  const waiting = held(broker);
  const sends = ["a", "b", "c"].map((each) => producer.send(each));
  await until(() => waiting.length === 1);
  const outcomes = Promise.allSettled(sends);
  await client.close({ timeoutMs: 100 });
  assert.deepEqual((await outcomes).map(({ reason }) => [reason.code, reason.outcome]), [
    ["CLOSED", "unknown"], ["CLOSED", "refused"], ["CLOSED", "refused"],
  ]);
});

test("a producer that is refused on its way back rejects what waits, and tries again for the next", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  const create = broker.answers.createProducer;
  const failed = [];
  client.on("failed", ({ error }) => failed.push(error.code));
  broker.answers.sendMessage = () => {
    throw refusal(status.UNAVAILABLE, { code: "NOT_OWNER", message: "moved", retryable: true });
  };
  broker.answers.createProducer = () => {
    throw refusal(status.PERMISSION_DENIED, { code: "PERMISSION_DENIED", message: "not any more", retryable: false });
  };
  await assert.rejects(producer.send("a"), { code: "PERMISSION_DENIED", outcome: "refused" });
  assert.deepEqual(failed, ["PERMISSION_DENIED"]);
  broker.answers.createProducer = create;
  broker.answers.sendMessage = ({ requestId }) => ({ requestId });
  await producer.send("b");
});

test("what is wrong with an argument is said before anything is sent", async (t) => {
  const { broker, client } = await pair(t);
  const wrong = [
    [{ topic: 3 }, "topic"], [{ topic: "a/b/c" }, "topic"], [{ topic: "t", partitions: 0 }, "partitions"],
    [{ topic: "t", maxPending: 1.5 }, "maxPending"], [{ topic: "t", name: "" }, "name"], [{ topic: "t", reliable: "yes" }, "reliable"],
    [{ topic: "t", schema: { subject: "" } }, "schema.subject"], [{ topic: "t", signal: 3 }, "signal"], [undefined, "options"],
  ];
  for (const [options, field] of wrong) {
    await assert.rejects(client.createProducer(options), (error) => error.code === "INVALID_ARGUMENT" && error.details.field === field, field);
  }
  assert.equal(broker.count("createProducer"), 0);
  const producer = await client.createProducer({ topic: "t" });
  for (const [payload, options] of [[{}, {}], ["x", { key: 3 }], ["x", { key: "\ud800" }], ["x", { attributes: { a: 1 } }], ["x", { attributes: "x" }], [undefined, {}]]) {
    await assert.rejects(producer.send(payload, options), { code: "INVALID_ARGUMENT", outcome: "refused" });
  }
  assert.equal(broker.count("sendMessage"), 0);
});

test("the payload is the one of the time of the send", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t", maxInFlight: 1 });
  const payload = Buffer.from("now");
  const sends = [producer.send("first"), producer.send(payload)];
  payload.fill("?");
  await Promise.all(sends);
  assert.equal(text(broker.calls.at(-1).request), "now");
});

test("partitions are those of the topic, whatever their order in the answer", async (t) => {
  const { broker, client } = await pair(t);
  broker.answers.topicPartitions = ({ topic }) => ({ requestId: 0n, partitions: [2, 0, 1].map((n) => `${topic}-part-${n}`) });
  const producer = await client.createProducer({ topic: "t", name: "p" });
  for (const key of [undefined, undefined, undefined, undefined, "user-42", "é"]) await producer.send("x", { key });
  const went = broker.calls.filter(({ method }) => method === "sendMessage").map(({ request }) => request.msgId.topicName.at(-1));
  assert.deepEqual(went, ["0", "1", "2", "0", "0", "1"]);
  const names = broker.calls.filter(({ method }) => method === "createProducer").map(({ request }) => request.producerName);
  assert.deepEqual(names.sort(), ["p-0", "p-1", "p-2"]);
});

test("requestTimeoutMs is the time of a send's tries, too", async (t) => {
  const { broker, client } = await pair(t, { requestTimeoutMs: 300 });
  const producer = await client.createProducer({ topic: "t" });
  let tries = 0;
  broker.answers.sendMessage = ({ requestId }) => (++tries < 3 ? new Promise(() => undefined) : { requestId });
  const begun = Date.now();
  await producer.send("a");
  assert.ok(Date.now() - begun < 25_000, `${Date.now() - begun} ms`); // by default one try alone has 30 s
});

test("what close rejects gives its place to no other", async (t) => {
  const { broker, client } = await pair(t);
  broker.answers.topicPartitions = ({ topic }) => ({ requestId: 0n, partitions: [0, 1].map((n) => `${topic}-part-${n}`) });
  const producer = await client.createProducer({ topic: "t", maxPending: 1 });
  const waiting = held(broker);
  const sends = Promise.allSettled(["a", "b", "c", "d"].map((each) => producer.send(each)));
  await until(() => waiting.length === 1);
  await producer.close({ timeoutMs: 0 });
  assert.deepEqual((await sends).map(({ reason }) => reason.outcome), ["unknown", "refused", "refused", "refused"]);
  await (await client.createProducer({ topic: "t2" })).close(); // later calls of this client have come to the broker
  assert.equal(waiting.length, 1);
});

test("a payload that no broker takes holds nothing up", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  for (const payload of [Buffer.alloc(64 * 1024 * 1024 + 1), "é".repeat(32 * 1024 * 1024 + 1)]) {
    await assert.rejects(producer.send(payload), { code: "MESSAGE_TOO_LARGE", outcome: "refused", retryable: false });
  }
  await producer.send("small");
  assert.equal(broker.count("sendMessage"), 1);
});

test("what never left is refused, though the way back failed in an unknown way", async (t) => {
  const { broker, client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  broker.answers.sendMessage = () => {
    throw refusal(status.UNAVAILABLE, { code: "NOT_OWNER", message: "moved", retryable: true });
  };
  broker.answers.createProducer = () => {
    throw failure(status.INTERNAL, "broken");
  };
  await assert.rejects(producer.send("a"), { code: "INTERNAL", outcome: "refused" });
});

test("fewer partitions than the topic has are refused: a key would go to another one than from other clients", async (t) => {
  const { broker, client } = await pair(t);
  broker.answers.topicPartitions = ({ topic }) => ({ requestId: 0n, partitions: [0, 1, 2].map((n) => `${topic}-part-${n}`) });
  await assert.rejects(client.createProducer({ topic: "t", partitions: 2 }), (error) => error.code === "INVALID_ARGUMENT" && error.details.field === "partitions");
  assert.equal(broker.count("createProducer"), 0);
  await client.createProducer({ topic: "t", partitions: 3 });
  await client.createProducer({ topic: "t", partitions: 4 });
  assert.equal(broker.count("createProducer"), 7);
});
