// The transport: what servers, proxies and networks do to a call below gRPC, and what of it a program sees.

import assert from "node:assert/strict";
import { createServer } from "node:http2";
import net from "node:net";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { DanubeClient } from "danube-client";
import * as wire from "../dist/generated/danube.js";
import { Channel } from "../dist/transport.js";
import { until } from "./fake.mjs";

const GRPC = { ":status": 200, "content-type": "application/grpc" };
const framed = (bytes) => {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
};
const HEALTHY = framed(Buffer.from(wire.HealthCheckResponse.encode({ status: 0 }).finish()));

/** A server that treats each stream as it is told. Returns its address. */
async function served(t, treat) {
  const server = createServer();
  const sessions = new Set();
  server.on("session", (session) => {
    sessions.add(session);
    session.on("error", () => undefined);
    session.on("close", () => sessions.delete(session));
  });
  server.on("stream", (stream, headers) => {
    stream.on("error", () => undefined);
    treat(stream, headers);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    for (const session of sessions) session.destroy();
    server.close();
  });
  return { address: `127.0.0.1:${server.address().port}`, sessions };
}

const answered = (stream, body = HEALTHY, status = "0") => {
  stream.respond(GRPC, { waitForTrailers: true });
  stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": status }));
  stream.end(body);
};

/** How one call ends: its messages and its error. */
function called(channel, timeoutMs = 30_000) {
  const found = { messages: [] };
  found.ended = new Promise((resolve) => {
    found.call = channel.open({ ":method": "POST", ":path": "/a.B/C", te: "trailers", "content-type": "application/grpc" }, Buffer.from("x"), timeoutMs, {
      decode: (bytes) => bytes,
      message: (bytes) => found.messages.push(Buffer.from(bytes).toString("latin1")),
      ended: resolve,
    });
  });
  return found;
}

function channelTo(t, address) {
  const channel = new Channel(address, undefined);
  t.after(() => channel.close(new Error("over")));
  return channel;
}

for (const [what, treat, code, outcome, words] of [
  ["a proxy's 503", (s) => (s.respond({ ":status": 503 }), s.end("<html>")), "UNAVAILABLE", "unknown", /HTTP status 503/],
  ["a proxy's 404", (s) => (s.respond({ ":status": 404 }), s.end()), "UNIMPLEMENTED", "refused", /HTTP status 404/],
  ["a page", (s) => (s.respond({ ":status": 200, "content-type": "text/html" }), s.end("<html>")), "PROTOCOL_ERROR", "unknown", /no broker.*text\/html/],
  ["a refused stream", (s) => s.close(7), "UNAVAILABLE", "refused", /lost/],
  ["a reset stream", (s) => s.close(2), "UNAVAILABLE", "unknown", /lost/],
  ["a cancelled stream", (s) => s.close(8), "UNAVAILABLE", "unknown", /lost/],
  ["an end without a status", (s) => (s.respond(GRPC), s.end(HEALTHY)), "UNAVAILABLE", "unknown", /without a status/],
  ["a lost connection", (s) => s.session.destroy(), "UNAVAILABLE", "unknown", /lost/],
  ["a message that is cut off", (s) => answered(s, HEALTHY.subarray(0, 4)), "PROTOCOL_ERROR", "unknown", /cut off/],
  ["a compressed message", (s) => answered(s, Buffer.from([1, 0, 0, 0, 0])), "PROTOCOL_ERROR", "unknown", /compressed/],
  ["a length beyond all bounds", (s) => answered(s, Buffer.from([0, 255, 255, 255, 255])), "PROTOCOL_ERROR", "unknown", /4294967295 bytes/],
  ["a status in the first headers", (s) => s.respond({ ...GRPC, "grpc-status": "5", "grpc-message": "no%20caf%C3%A9" }, { endStream: true }), "NOT_FOUND", "refused", /^no café$/],
  ["a message with a wrong escape", (s) => s.respond({ ...GRPC, "grpc-status": "3", "grpc-message": "100%" }, { endStream: true }), "INVALID_ARGUMENT", "refused", /^100%$/],
  ["a status that is none", (s) => s.respond({ ...GRPC, "grpc-status": "nonsense" }, { endStream: true }), "UNKNOWN", "unknown", /UNKNOWN/],
  ["a status that is nearly OK", (s) => answered(s, HEALTHY, "00"), "UNKNOWN", "unknown", /UNKNOWN/],
  ["an empty status", (s) => answered(s, HEALTHY, ""), "UNKNOWN", "unknown", /UNKNOWN/],
  ["a status before the end, and a reset", (s) => (s.respond({ ...GRPC, "grpc-status": "0" }), s.write(HEALTHY, () => s.close(2))), "UNAVAILABLE", "unknown", /lost/],
  ["a status before the end, and none at it", (s) => (s.respond({ ...GRPC, "grpc-status": "0" }), s.end(HEALTHY)), "UNAVAILABLE", "unknown", /without a status/],
  ["an error that is no JSON", (s) => s.respond({ ...GRPC, "grpc-status": "13", "danube-error-bin": "////" }, { endStream: true }), "INTERNAL", "unknown", /INTERNAL/],
]) {
  test(`${what} is an error that says what it was`, async (t) => {
    const { address } = await served(t, treat);
    const { ended } = called(channelTo(t, address));
    const error = await ended;
    assert.deepEqual([error?.code, error?.outcome], [code, outcome]);
    assert.match(error.message, words);
  });
}

test("a connection that cannot be made says why, and that nothing was sent", async (t) => {
  const refused = await called(channelTo(t, "127.0.0.1:1")).ended;
  assert.deepEqual([refused.code, refused.outcome, refused.retryable], ["UNAVAILABLE", "refused", true]);
  assert.match(refused.message, /no connection to http:\/\/127\.0\.0\.1:1: .*ECONNREFUSED/);
  const named = await called(channelTo(t, "localhost:1")).ended;
  assert.match(named.message, /ECONNREFUSED/);
  const hangingUp = net.createServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
  await once(hangingUp, "listening");
  t.after(() => hangingUp.close());
  const closed = await called(channelTo(t, `127.0.0.1:${hangingUp.address().port}`)).ended;
  assert.equal(closed.outcome, "refused");
});

test("a server that accepts and is silent costs a call its time, and no more", async (t) => {
  const sockets = [];
  const silent = net.createServer((socket) => sockets.push(socket)).listen(0, "127.0.0.1");
  await once(silent, "listening");
  t.after(() => (sockets.forEach((each) => each.destroy()), silent.close()));
  const error = await called(channelTo(t, `127.0.0.1:${silent.address().port}`), 200).ended;
  assert.deepEqual([error.code, error.outcome], ["DEADLINE_EXCEEDED", "refused"]);
});

test("a server that speaks another protocol is no broker", async (t) => {
  const other = net.createServer((socket) => socket.end("HTTP/1.1 400 Bad Request\r\n\r\n")).listen(0, "127.0.0.1");
  await once(other, "listening");
  t.after(() => other.close());
  const error = await called(channelTo(t, `127.0.0.1:${other.address().port}`)).ended;
  assert.deepEqual([error.code, error.outcome], ["UNAVAILABLE", "refused"]);
});

test("a server that says goodbye ends what it has begun, and the next call takes a new connection", async (t) => {
  let held;
  const { address, sessions } = await served(t, (stream) => (held === undefined ? (held = stream) : answered(stream)));
  const channel = channelTo(t, address);
  const first = called(channel);
  await until(() => held !== undefined);
  const [old] = sessions;
  old.goaway(0);
  await pause(50);
  const second = called(channel);
  assert.equal(await second.ended, undefined);
  assert.equal(sessions.size, 2);
  answered(held);
  assert.equal(await first.ended, undefined);
  await until(() => sessions.size === 1);
});

test("a busy server's goodbye doubles the time between pings", async (t) => {
  const { address, sessions } = await served(t, (stream) => stream.session.goaway(11));
  const channel = channelTo(t, address);
  const error = await called(channel, 3_000).ended;
  assert.equal(error.retryable, true);
  await until(() => sessions.size === 0);
});

test("messages come whole however the bytes are cut, and stop while the receiver pauses", async (t) => {
  const texts = Array.from({ length: 300 }, (_, n) => "x".repeat(n));
  const all = Buffer.concat(texts.map((text) => framed(Buffer.from(text))));
  const { address } = await served(t, async (stream) => {
    stream.respond(GRPC, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    for (let at = 0; at < all.length; at += 911) {
      stream.write(all.subarray(at, at + 911));
      if (at % 7 === 0) await pause(1);
    }
    stream.end();
  });
  const found = called(channelTo(t, address), Infinity);
  await until(() => found.messages.length > 20);
  found.call.pause();
  const before = found.messages.length;
  await pause(100);
  assert.equal(found.messages.length, before);
  found.call.resume();
  assert.equal(await found.ended, undefined);
  assert.deepEqual(found.messages, texts);
});

test("a large message is put together once, not at each piece", async (t) => {
  const { address } = await served(t, (stream) => answered(stream, framed(Buffer.alloc(16 * 1024 * 1024, 120))));
  const found = called(channelTo(t, address));
  const before = process.cpuUsage();
  assert.equal(await found.ended, undefined);
  assert.equal(found.messages[0].length, 16 * 1024 * 1024);
  const { user } = process.cpuUsage(before);
  assert.ok(user < 5_000_000, `${user} µs`);
});

test("calls have their deadline in their headers, and their end once", async (t) => {
  const timeouts = [];
  const { address } = await served(t, (stream, headers) => timeouts.push(headers["grpc-timeout"]));
  const channel = channelTo(t, address);
  const error = await called(channel, 150).ended;
  assert.deepEqual([error.code, error.outcome], ["DEADLINE_EXCEEDED", "unknown"]);
  const long = called(channel, 3_600_000);
  const endless = called(channel, Infinity);
  await until(() => timeouts.length === 3);
  assert.deepEqual(timeouts, ["150m", "3600S", undefined]);
  channel.close(Object.assign(new Error("over"), { code: "CLOSED" }));
  assert.deepEqual([(await long.ended).code, (await endless.ended).code], ["CLOSED", "CLOSED"]);
});

test("a call that is cancelled before there is a connection is never sent", async (t) => {
  const paths = [];
  const { address } = await served(t, (stream, headers) => (paths.push(headers[":path"]), answered(stream)));
  const channel = channelTo(t, address);
  const gone = called(channel);
  const kept = called(channel);
  assert.equal(gone.call.outcome, "refused");
  gone.call.cancel(Object.assign(new Error("mine"), { code: "CANCELLED" }));
  assert.equal((await gone.ended).code, "CANCELLED");
  assert.equal(await kept.ended, undefined);
  assert.equal(paths.length, 1);
});

test("many calls at once go over one connection, also beyond its concurrent streams", async (t) => {
  const { address, sessions } = await served(t, (stream) => setTimeout(() => answered(stream), 5));
  sessions.clear();
  const channel = channelTo(t, address);
  const ends = await Promise.all(Array.from({ length: 500 }, () => called(channel).ended));
  assert.deepEqual([...new Set(ends)], [undefined]);
  assert.equal(sessions.size, 1);
});

test("a broker that answers with a page is named when the client connects", async (t) => {
  const { address } = await served(t, (s) => (s.respond({ ":status": 200, "content-type": "text/html" }), s.end("<html>")));
  await assert.rejects(DanubeClient.connect(`http://${address}`, { connectTimeoutMs: 500 }), /no broker/);
});

test("a busy server's goodbyes never make pings frequent", async (t) => {
  const warnings = [];
  const listener = ({ name }) => warnings.push(name);
  process.on("warning", listener);
  t.after(() => process.off("warning", listener));
  let goodbyes = 0;
  const { address } = await served(t, (stream) => (++goodbyes <= 20 ? stream.session.goaway(11) : answered(stream)));
  const channel = channelTo(t, address);
  for (let n = 0; n < 20; n++) await called(channel, 30_000).ended;
  assert.equal(await called(channel).ended, undefined);
  assert.deepEqual(warnings, []);
});
