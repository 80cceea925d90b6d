// The client: addresses, look-ups, credentials, events, its end.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";

import * as esm from "danube-client";

import { partitionOf } from "../dist/names.js";
import { FakeBroker, delivered, failure, grpc, pair, refusal, until } from "./fake.mjs";

const { DanubeClient, DanubeError } = esm;
const { status } = grpc;

test("both kinds of modules have the same names, and one class of errors", () => {
  const cjs = createRequire(import.meta.url)("danube-client");
  assert.deepEqual(Object.keys(cjs).sort(), Object.keys(esm).sort());
  assert.equal(cjs.DanubeError, DanubeError);
});

test("keys are hashed as in the other clients", () => {
  for (const [key, of3, of4] of [["order-1", 0, 1], ["user-42", 0, 3], ["é", 1, 1]]) {
    assert.deepEqual([partitionOf(key, 3), partitionOf(key, 4)], [of3, of4]);
  }
  const plain = (key, count) => {
    let hash = 0xcbf29ce484222325n;
    for (const byte of Buffer.from(key)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
    return Number(hash % BigInt(count));
  };
  for (let n = 0; n < 5000; n++) {
    const key = Array.from({ length: n % 40 }, () => String.fromCodePoint(Math.floor(Math.random() * 0xd7ff))).join("");
    const count = 1 + Math.floor(Math.random() * 10_000);
    assert.equal(partitionOf(key, count), plain(key, count), JSON.stringify([key, count]));
  }
});

test("addresses that are none are refused, with the field", async () => {
  const wrong = ["", "ftp://x", "http://h:0", "http://h:99999", "http://h/path", "http://u@h", 7, [], [undefined], ["http://a", "https://b"]];
  for (const url of wrong) {
    await assert.rejects(DanubeClient.connect(url), (error) => error.code === "INVALID_ARGUMENT" && error.details.field === "url", String(url));
  }
  for (const [options, field] of [
    [{ tls: { ca: "x" } }, "tls"], [{ connectTimeoutMs: "1" }, "connectTimeoutMs"], [{ apiKey: "a", token: "b" }, "apiKey"],
  ]) {
    await assert.rejects(DanubeClient.connect("http://127.0.0.1:1", options), (error) => error.details?.field === field, field);
  }
  for (const tls of [{ ca: "/etc/ca.pem" }, { cert: "-----BEGIN CERTIFICATE-----" }]) {
    await assert.rejects(DanubeClient.connect("https://127.0.0.1:1", { tls }), { code: "INVALID_ARGUMENT" });
  }
  await assert.rejects(DanubeClient.connect("http://broker.example:6650", { token: "secret" }), { code: "INVALID_ARGUMENT" });
});

test("a cluster where no broker answers is given up in time, or at the caller's wish", async () => {
  const begun = Date.now();
  await assert.rejects(DanubeClient.connect("http://127.0.0.1:1", { connectTimeoutMs: 300 }), (error) => error instanceof DanubeError && error.retryable);
  assert.ok(Date.now() - begun < 5_000);
  await assert.rejects(DanubeClient.connect("http://127.0.0.1:1", { signal: AbortSignal.timeout(200) }), { code: "CANCELLED" });
});

test("of several addresses one that answers is enough", async (t) => {
  const broker = await new FakeBroker().start();
  const client = await DanubeClient.connect(["http://127.0.0.1:1", broker.url, "http://127.0.0.1:2"]);
  t.after(async () => (await client.close(), broker.stop()));
  await (await client.createProducer({ topic: "t" })).send("a");
  const other = await DanubeClient.connect(`danube://127.0.0.1:1,127.0.0.1:${broker.port}`);
  await other.close();
});

test("a topic's owner is where the look-up says, and the proxy is told whom to ask", async (t) => {
  const { broker, client } = await pair(t);
  const owner = await new FakeBroker().start();
  t.after(() => owner.stop());
  broker.answers.topicLookup = () => ({ requestId: 0n, responseType: 0, connectUrl: `${owner.url}/`, brokerUrl: "http://inner:6650", proxy: true });
  owner.streaming = (call) => call.write(delivered("/default/t", 0));
  const producer = await client.createProducer({ topic: "t" });
  await producer.send("a");
  const consumer = await client.subscribe({ topic: "t", subscription: "s" });
  await (await consumer.next()).ack();
  for (const method of ["createProducer", "sendMessage", "subscribe", "receiveMessages", "ack"]) {
    const call = owner.calls.find((each) => each.method === method);
    assert.deepEqual(call?.metadata.get("x-danube-broker-url"), ["http://inner:6650"], method);
  }
  for (const { method, metadata } of broker.calls) assert.deepEqual(metadata.get("x-danube-broker-url"), [], method);
  assert.equal(owner.calls.find((each) => each.method === "sendMessage").request.msgId.brokerAddr, "http://inner:6650");
});

test("look-ups that name no broker are no way on, and not the end", async (t) => {
  const { broker, client } = await pair(t);
  const right = broker.answers.topicLookup;
  const wrong = ["", "nonsense://", "http://", "http://h:1/x", "\u0000"].map((connectUrl) => ({ requestId: 0n, responseType: 1, connectUrl, brokerUrl: "", proxy: true }));
  wrong.push({ requestId: 0n, responseType: 2, connectUrl: broker.url, brokerUrl: broker.url, proxy: false }, Buffer.alloc(50, 0xff));
  broker.answers.topicLookup = (request) => wrong.shift() ?? right(request);
  const producer = await client.createProducer({ topic: "t" });
  await producer.send("a");
  assert.equal(wrong.length, 0);
});

test("a producer finds its topic's new owner when the old one is gone for good", async (t) => {
  const { broker, client } = await pair(t);
  const [first, second] = [await new FakeBroker().start(), await new FakeBroker().start()];
  t.after(() => second.stop());
  let owner = first;
  broker.answers.topicLookup = () => ({ requestId: 0n, responseType: 0, connectUrl: owner.url, brokerUrl: owner.url, proxy: false });
  const producer = await client.createProducer({ topic: "t" });
  await producer.send("a");
  owner = second;
  first.stop();
  await producer.send("b");
  assert.equal(second.calls.find(({ method }) => method === "sendMessage").request.payload.toString(), "b");
});

test("partitions of another topic are not believed", async (t) => {
  const { broker, client } = await pair(t);
  broker.answers.topicPartitions = () => ({ requestId: 0n, partitions: ["/default/other"] });
  await assert.rejects(client.subscribe({ topic: "t", subscription: "s", signal: AbortSignal.timeout(500) }), DanubeError);
});

test("a token is shown with each call, and a function is asked again when it has run out", async (t) => {
  const broker = await new FakeBroker().start();
  t.after(() => broker.stop());
  let token = "first";
  let asked = 0;
  const client = await DanubeClient.connect(broker.url, { token: async () => (asked++, token) });
  t.after(() => client.close());
  const producer = await client.createProducer({ topic: "t" });
  for (const { metadata } of broker.calls) assert.deepEqual(metadata.get("authorization"), ["Bearer first"]);
  token = "second";
  const send = broker.answers.sendMessage;
  broker.answers.sendMessage = (request, call) => {
    if (call.metadata.get("authorization")[0] !== "Bearer third") throw failure(status.UNAUTHENTICATED, "expired");
    return send(request);
  };
  await assert.rejects(producer.send("a"), { code: "UNAUTHENTICATED", outcome: "refused" });
  token = "third";
  await producer.send("b");
  assert.ok(asked > 3);
  token = "not\nprintable";
  await assert.rejects(producer.send("c"), { code: "UNAUTHENTICATED" });
  token = undefined;
  await assert.rejects(producer.send("d"), { code: "UNAUTHENTICATED" });
});

test("an API key is exchanged once, and again when its token has run out", async (t) => {
  const broker = await new FakeBroker().start();
  t.after(() => broker.stop());
  const client = await DanubeClient.connect(broker.url, { apiKey: "key" });
  t.after(() => client.close());
  const producer = await client.createProducer({ topic: "t" });
  await producer.send("a");
  assert.equal(broker.count("authenticate"), 1);
  assert.deepEqual(broker.calls.at(-1).metadata.get("authorization"), ["Bearer token-of-key"]);
  broker.answers.authenticate = () => ({ token: "newer" });
  const send = broker.answers.sendMessage;
  broker.answers.sendMessage = (request, call) => {
    if (call.metadata.get("authorization")[0] !== "Bearer newer") throw failure(status.UNAUTHENTICATED, "expired");
    return send(request);
  };
  await producer.send("b");
  assert.equal(broker.count("authenticate"), 2);
  broker.answers.authenticate = () => {
    throw refusal(status.UNAUTHENTICATED, { code: "UNAUTHENTICATED", message: "no such key" });
  };
  await assert.rejects(DanubeClient.connect(broker.url, { apiKey: "other" }), { code: "UNAUTHENTICATED" });
});

test("a closed client takes nothing more, and everything ends", async (t) => {
  const { broker, client } = await pair(t);
  const consumer = await client.subscribe({ topic: "t", subscription: "s" });
  const waiting = consumer.next();
  const opening = client.createProducer({ topic: "slow" }).catch((error) => error.code);
  broker.answers.createProducer = () => new Promise(() => undefined);
  let closed = 0;
  client.on("closed", () => closed++);
  await Promise.all([client.close(), client.close()]);
  assert.equal(await waiting, undefined);
  assert.equal(await opening, "CLOSED");
  assert.equal(closed, 1);
  await assert.rejects(client.createProducer({ topic: "t" }), { code: "CLOSED" });
  await assert.rejects(client.subscribe({ topic: "t", subscription: "s" }), { code: "CLOSED" });
  await assert.rejects(client.schemas.get("s"), { code: "CLOSED" });
});

test("asynchronous disposal closes", async (t) => {
  const { client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  const consumer = await client.subscribe({ topic: "t", subscription: "s" });
  await consumer[Symbol.asyncDispose]();
  await producer[Symbol.asyncDispose]();
  await assert.rejects(producer.send("x"), { code: "CLOSED" });
  await client[Symbol.asyncDispose]();
  await assert.rejects(client.subscribe({ topic: "t", subscription: "s" }), { code: "CLOSED" });
});

// Programs of their own: do they end, and without a word about rejections that nobody handled?
const CLOSING = `
  import { DanubeClient } from "danube-client";
  const client = await DanubeClient.connect(process.argv[1], { requestTimeoutMs: 60_000 });
  const producer = await client.createProducer({ topic: "t", maxPending: 10 });
  const consumer = await client.subscribe({ topic: "t", subscription: "s" });
  const sends = Promise.allSettled(Array.from({ length: 50 }, () => producer.send("x")));
  const loop = consumer.run(() => undefined);
  const message = await consumer.next();
  if (process.argv[2] === "kill") console.log("ready"), await new Promise((resolve) => process.stdin.once("data", resolve));
  message.ack();
  await client.close({ timeoutMs: 100 });
  process.stdin.unref();
  await loop; await sends; await message.ack().catch(() => undefined);
  console.log("done");
`;
const LISTENING = `
  import { DanubeClient } from "danube-client";
  process.on("uncaughtException", (error) => console.log("uncaught", error.message));
  const client = await DanubeClient.connect(process.argv[1]);
  const off = client.on("connected", () => { throw new Error("mine") });
  await (await client.createProducer({ topic: "t" })).send("a");
  off();
  await client.createProducer({ topic: "t2" });
  await client.close();
  console.log("done");
`;

function program(t, source, ...words) {
  const child = spawn(process.execPath, ["--unhandled-rejections=strict", "--input-type=module", "-e", source, ...words], {
    cwd: new URL(".", import.meta.url).pathname,
    stdio: ["pipe", "pipe", "pipe"],
  });
  t.after(() => child.kill("SIGKILL"));
  const run = { output: "", stdin: child.stdin };
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (run.output += data));
  const ended = once(child, "exit");
  run.end = async () => {
    const [code] = await Promise.race([ended, pause(60_000, ["still running"], { ref: false })]);
    assert.equal(code, 0, run.output);
    return run.output.trim().split("\n");
  };
  return run;
}

for (const way of ["quiet", "hanging", "kill"]) {
  test(`a process ends when its client is closed: ${way}`, async (t) => {
    const broker = await new FakeBroker().start();
    t.after(() => broker.stop());
    broker.streaming = (call) => {
      for (let n = 0; n < 300; n++) call.write(delivered("/default/t", n));
    };
    if (way === "hanging") {
      broker.answers.sendMessage = broker.answers.ack = broker.answers.nack = () => new Promise(() => undefined);
    }
    const run = program(t, CLOSING, broker.url, way);
    if (way === "kill") {
      await until(() => run.output.includes("ready"));
      broker.stop();
      run.stdin.write("\n");
    }
    assert.equal((await run.end()).at(-1), "done");
  });
}

test("a listener that throws is its program's uncaught exception, and the client goes on", async (t) => {
  const broker = await new FakeBroker().start();
  t.after(() => broker.stop());
  assert.deepEqual(await program(t, LISTENING, broker.url).end(), ["uncaught mine", "done"]);
});

const circle = {};
circle.itself = circle;
/** Each call with each kind of wrong argument, and the field that the error names. */
const WRONG = [
  ...[null, "options", AbortSignal.abort()].flatMap((each) => [
    [({ client }) => client.createProducer(each), "options"], [({ client }) => client.subscribe(each), "options"],
    [({ producer }) => producer.send("x", each), "options"], [({ consumer }) => consumer.next(each), "options"],
    [({ consumer }) => consumer.run(() => 1, each), "options"], [({ message }) => message.ack(each), "options"],
    [({ message }) => message.nack(each), "options"], [({ client }) => client.close(each), "options"],
    [({ producer }) => producer.close(each), "options"], [({ consumer }) => consumer.close(each), "options"],
    [({ schemas }) => schemas.register("s", each), "options"], [({ schemas }) => schemas.get("s", each), "options"],
    [({ schemas }) => schemas.versions("s", each), "options"], [({ schemas }) => schemas.subjects(each), "options"],
    [({ schemas }) => schemas.checkCompatibility("s", each), "options"], [({ schemas }) => schemas.delete("s", 1, each), "options"],
    [({ schemas }) => schemas.setCompatibility("s", "none", each), "options"], [({ schemas }) => schemas.ofTopic("t", each), "options"],
    [({ schemas }) => schemas.configureTopic("t", each), "options"],
  ]),
  [({ client }) => client.createProducer({ topic: Object.create(null) }), "topic"],
  [({ client }) => client.createProducer({ topic: "t", maxinflight: 1 }), "maxinflight"],
  [({ client }) => client.createProducer({ topic: "t", schema: { subject: "s", minversion: 1 } }), "minversion"],
  [({ producer }) => producer.send("x", { kye: "a" }), "kye"],
  [({ producer }) => producer.send("x", { attributes: new Map([["a", "b"]]) }), "attributes"],
  [({ producer }) => producer.send("x", { attributes: ["a"] }), "attributes"],
  [({ producer }) => producer.send("x", { attributes: { a: "\ud800" } }), "attributes.a"],
  [({ client }) => client.subscribe({ topic: "t", subscription: "s", type: "toString" }), "type"],
  [({ client }) => client.subscribe({ topic: "t", subscription: "s", type: "key_shared", keyFilters: 5 }), "keyFilters"],
  [({ client }) => client.subscribe({ topic: "t", subscription: "s", type: "key_shared", keyFilters: "abc" }), "keyFilters"],
  [({ message }) => message.ack({ signal: 4 }), "signal"],
  [({ message }) => message.nack({ delayMs: 1.5 }), "delayMs"],
  [({ message }) => message.nack({ reason: 5 }), "reason"],
  [({ schemas }) => schemas.register("s", { type: "json_schema", definition: circle }), "definition"],
  [({ schemas }) => schemas.register("s", { type: "json_schema", definition: { a: 1n } }), "definition"],
  [({ schemas }) => schemas.register("s", { type: "json_schema", definition: { toJSON: () => undefined } }), "definition"],
  [({ schemas }) => schemas.register("s", { type: "string", definition: "", tags: "abc" }), "tags"],
  [({ schemas }) => schemas.register("s", { type: "string", definition: "", tags: [5] }), "tags"],
  [({ schemas }) => schemas.register("s", { type: "string", definition: "", description: 5 }), "description"],
  [({ schemas }) => schemas.get(-1n), "subject"], [({ schemas }) => schemas.get(2n ** 64n), "subject"],
  [({ schemas }) => schemas.get("s", { version: -1 }), "version"], [({ schemas }) => schemas.get("s", { version: 1.5 }), "version"],
  [({ schemas }) => schemas.get(1n, { version: "1" }), "version"], [({ schemas }) => schemas.delete("s", 2 ** 40), "version"],
  [({ schemas }) => schemas.delete("s"), "version"],
  [({ schemas }) => schemas.checkCompatibility("s", { type: "string", definition: "", compatibility: 5 }), "compatibility"],
  [({ schemas }) => schemas.configureTopic("t", { subject: "s", policy: "none", validatePayloads: "yes" }), "validatePayloads"],
  [async ({ client }) => client.on("conected", () => 1), "event"], [async ({ client }) => client.on("connected", 5), "listener"],
  [({ url }) => DanubeClient.connect(url, { tokne: "x" }), "tokne"],
  [({ url }) => DanubeClient.connect(url.replace("http", "https"), { tls: null }), "tls"],
  [({ url }) => DanubeClient.connect(url.replace("http", "https"), { tls: "-----BEGIN CERTIFICATE-----" }), "tls"],
];

test("a wrong argument of any call is a DanubeError that names it", async (t) => {
  const { broker, client } = await pair(t);
  broker.streaming = (call) => call.write(delivered("/default/t", 0));
  const producer = await client.createProducer({ topic: "t" });
  const consumer = await client.subscribe({ topic: "t", subscription: "s" });
  const message = await consumer.next();
  const made = { client, producer, consumer, message, schemas: client.schemas, url: broker.url };
  for (const [call, field] of WRONG) {
    await assert.rejects(call(made), (error) => {
      assert.ok(error instanceof DanubeError, `${call}: ${error.stack}`);
      assert.deepEqual([error.code, error.outcome, error.details.field], ["INVALID_ARGUMENT", "refused", field], String(call));
      return true;
    }, String(call));
  }
  await message.ack();
  await producer.send("they are open, whatever was asked of their close");
});

test("a close with wrong options closes nothing, and the next one does", async (t) => {
  const { client } = await pair(t);
  const producer = await client.createProducer({ topic: "t" });
  const consumer = await client.subscribe({ topic: "t", subscription: "s" });
  for (const each of [producer, consumer, client]) await assert.rejects(each.close({ timeoutMs: -1 }), { code: "INVALID_ARGUMENT" });
  await producer.send("open");
  await client.close();
  await assert.rejects(producer.send("closed"), { code: "CLOSED" });
});

test("certificates that OpenSSL does not take are a wrong argument, not a connection's failure", async () => {
  const pem = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
  await assert.rejects(DanubeClient.connect("https://127.0.0.1:1", { tls: { cert: pem, key: pem } }), (error) => {
    assert.ok(error instanceof DanubeError, error.stack);
    return error.code === "INVALID_ARGUMENT" && error.details.field === "tls";
  });
});

test("a token function that never answers costs a call its time, and the end nothing", async (t) => {
  const endless = () => new Promise(() => undefined);
  await assert.rejects(DanubeClient.connect("http://127.0.0.1:1", { token: endless, connectTimeoutMs: 200 }), { code: "DEADLINE_EXCEEDED" });
  let token = () => "a";
  const { broker, client } = await pair(t, { token: () => token() });
  const producer = await client.createProducer({ topic: "t", sendTimeoutMs: 200 });
  token = endless;
  await assert.rejects(producer.send("x"), { code: "DEADLINE_EXCEEDED", outcome: "refused" });
  await assert.rejects(client.schemas.get("s", { signal: AbortSignal.timeout(100) }), { code: "CANCELLED" });
  const opening = assert.rejects(client.subscribe({ topic: "t", subscription: "s" }), { code: "CLOSED" });
  await client.close({ timeoutMs: 0 });
  await opening;
  assert.equal(broker.count("sendMessage"), 0);
});

test("close ends what waits for its next try", async (t) => {
  const { broker, client } = await pair(t);
  const later = () => {
    throw refusal(status.UNAVAILABLE, { code: "OVERLOADED", retryable: true, details: { retry_after_ms: 28_000 } });
  };
  broker.streaming = (call) => call.write(delivered("/default/t", 0));
  const consumer = await client.subscribe({ topic: "t", subscription: "s" });
  const message = await consumer.next();
  const { topicPartitions } = broker.answers;
  Object.assign(broker.answers, { createProducer: later, ack: later, topicPartitions: (request) => (request.topic.endsWith("late") ? later() : topicPartitions(request)) });
  const waiting = [client.createProducer({ topic: "t" }), client.subscribe({ topic: "late", subscription: "s2" }), message.ack()];
  const ends = Promise.allSettled(waiting);
  await until(() => broker.count("createProducer") === 1 && broker.count("topicPartitions") === 3 && broker.count("ack") === 1);
  const begun = Date.now();
  await client.close({ timeoutMs: 0 });
  assert.deepEqual((await ends).map(({ reason }) => reason.code), ["CLOSED", "CLOSED", "CLOSED"]);
  assert.ok(Date.now() - begun < 15_000, `${Date.now() - begun} ms`);
});

test("a listener that throws keeps the event from no other", async (t) => {
  const broker = await new FakeBroker().start();
  t.after(() => broker.stop());
  const source = LISTENING.replace("off();", 'off(); client.on("connected", () => { throw new Error("first") }); client.on("connected", () => console.log("second"));');
  assert.deepEqual(await program(t, source, broker.url).end(), ["uncaught mine", "uncaught first", "second", "done"]);
});
