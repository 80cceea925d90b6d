/**
 * gRPC over Node's own HTTP/2. A channel is the connection to one address, made at its first call and again after its end.
 *
 * It has what this client uses of gRPC: one request, one answer or a stream of them, a deadline, a status. `@grpc/grpc-js` took three
 * times the processor time for each call, and did not say whether a call that failed had left.
 */

import { connect, constants, type ClientHttp2Session, type ClientHttp2Stream, type IncomingHttpHeaders } from "node:http2";

import type { SecureContext } from "node:tls";

import { DanubeError, fromStatus, protocolError, type Outcome } from "./errors";

// Bytes. A message has at most 4 MiB in the official clients; a broker may be set to take more.
const MAX_RECEIVE_BYTES = 16 * 1024 * 1024;
const PREFIX_BYTES = 5; // of a message: whether it is compressed, its length
const STREAM_WINDOW_BYTES = 1024 * 1024;
const CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024; // streams that are not read take nothing of it
const CONNECT_TIMEOUT_MS = 10_000;
const KEEPALIVE_MS = 20_000; // a peer that is gone without a word; asked only during calls, as servers of gRPC require
const MAX_KEEPALIVE_MS = 3_600_000; // a timer of more than 2³¹ fires at once
const PING_TIMEOUT_MS = 10_000;
const LAST_STREAM_ID = 2 ** 30; // a connection has 2³¹ of them
// gRPC's table of statuses that proxies give instead of an answer; any other is UNKNOWN
const HTTP_STATUS: Record<number, number> = { 400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14 };

/** Gets the answers to a call. */
export interface Receiver<A> {
  /** The first headers came. */
  begun?(): void;
  /** Read one answer. What it throws ends the call. */
  decode(bytes: Uint8Array): A;
  message(answer: A, call: Call): void;
  /** Called once, after the last message. Without an error the broker's status was OK. */
  ended(error: DanubeError | undefined): void;
}

export class Channel {
  readonly #calls = new Set<Call>();
  readonly #sessions = new Set<ClientHttp2Session>(); // the one that takes calls, and those whose last calls are under way
  #session: ClientHttp2Session | undefined;
  #ready = false;
  #keepaliveMs = KEEPALIVE_MS;

  /** @param unused is called when there is no call and no connection any more. */
  constructor(
    private readonly address: string,
    private readonly tls: SecureContext | undefined,
    private readonly unused: () => void = () => undefined,
  ) {}

  open<A>(headers: Record<string, string>, request: Uint8Array, timeoutMs: number, receiver: Receiver<A>): Call {
    const call = new Call(this.address, headers, request, receiver as Receiver<unknown>, (ended) => this.#calls.delete(ended));
    if (timeoutMs < Infinity) call.expireAfter(timeoutMs);
    this.#calls.add(call);
    const session = this.#session;
    if (session === undefined || session.closed || session.destroyed) this.#connect();
    if (this.#ready) this.#start(call, this.#session as ClientHttp2Session);
    return call;
  }

  /** End every call with this error, and the connection. */
  close(error: DanubeError): void {
    for (const call of [...this.#calls]) call.cancel(error);
    this.#session = undefined;
    for (const session of this.#sessions) session.destroy();
  }

  /** The calls that wait for the connection. */
  #unstarted(): Call[] { return [...this.#calls].filter((call) => call.outcome === "refused"); }

  #start(call: Call, session: ClientHttp2Session): void {
    if (call.start(session) > LAST_STREAM_ID) this.#retire(session);
  }

  /** Give it no more calls. */
  #retire(session: ClientHttp2Session): void {
    if (this.#session === session) this.#session = undefined;
    if (!session.closed) session.close();
  }

  #connect(): void {
    const url = `${this.tls === undefined ? "http" : "https"}://${this.address}`;
    const options = {
      ...(this.tls === undefined ? {} : { secureContext: this.tls }),
      autoSelectFamilyAttemptTimeout: 2_000,
      maxSessionMemory: 4_000, // MB; what is under way is bounded by its producers and consumers
      settings: { enablePush: false, initialWindowSize: STREAM_WINDOW_BYTES },
    };
    const session = connect(url, options);
    this.#sessions.add(session);
    this.#session = session;
    this.#ready = false;
    let ready = false;
    let reason = `the other side closed the connection${this.tls === undefined ? ". If it expects TLS, write https://" : ""}`;
    let keepalive: NodeJS.Timeout | undefined;
    const late = setTimeout(() => session.destroy(new Error(`no answer within ${CONNECT_TIMEOUT_MS} ms`)), CONNECT_TIMEOUT_MS);
    session.once("remoteSettings", () => {
      clearTimeout(late);
      if (this.#session !== session) return;
      ready = this.#ready = true;
      session.setLocalWindowSize(CONNECTION_WINDOW_BYTES);
      keepalive = setInterval(() => this.#ping(session), this.#keepaliveMs);
      for (const call of this.#unstarted()) this.#start(call, session);
    });
    // Node gives no message where a name has several addresses, and none answers
    session.on("error", (error: NodeJS.ErrnoException) => (reason = error.message || (error.code ?? reason)));
    session.on("goaway", (code: number) => {
      if (code === constants.NGHTTP2_ENHANCE_YOUR_CALM) this.#keepaliveMs = Math.min(2 * this.#keepaliveMs, MAX_KEEPALIVE_MS);
      this.#retire(session);
    });
    session.once("close", () => {
      clearTimeout(late);
      clearInterval(keepalive);
      this.#sessions.delete(session);
      if (this.#session === session) this.#session = undefined;
      if (!ready && this.#session === undefined) {
        for (const call of this.#unstarted()) call.cancel(unavailable(`no connection to ${url}: ${reason}`, "refused"));
      }
      if (this.#sessions.size === 0 && this.#calls.size === 0) this.unused();
    });
  }

  #ping(session: ClientHttp2Session): void {
    if (this.#calls.size === 0 || session.destroyed) return;
    const late = setTimeout(() => session.destroy(new Error(`no answer to a ping within ${PING_TIMEOUT_MS} ms`)), PING_TIMEOUT_MS);
    if (!session.ping(() => clearTimeout(late))) clearTimeout(late);
  }
}

/** One call. It ends once: with the broker's status, its deadline, the connection's end, or `cancel`. */
export class Call {
  #stream: ClientHttp2Stream | undefined;
  #timer: NodeJS.Timeout | undefined;
  #status: IncomingHttpHeaders | undefined;
  #httpStatus = 0;
  #failure: Error | undefined;
  #chunks: Buffer[] = [];
  #bytes = 0;
  #needed = PREFIX_BYTES;
  #paused = false;
  #receiver: Receiver<unknown> | undefined; // until the call ends

  constructor(
    private readonly address: string,
    private readonly headers: Record<string, string>,
    private readonly request: Uint8Array,
    receiver: Receiver<unknown>,
    private readonly forget: (call: Call) => unknown,
  ) {
    this.#receiver = receiver;
  }

  /** What a call that ends now may have done. */
  get outcome(): Outcome { return this.#stream === undefined ? "refused" : "unknown"; }

  expireAfter(ms: number): void {
    this.headers["grpc-timeout"] = ms > 99_000 ? `${Math.ceil(ms / 1000)}S` : `${Math.ceil(ms)}m`;
    this.#timer = setTimeout(() => {
      const message = `${this.address} did not answer within ${Math.round(ms)} ms`;
      this.cancel(new DanubeError("DEADLINE_EXCEEDED", message, { retryable: true, outcome: this.outcome }));
    }, ms);
  }

  /** Send the request. Returns the stream's id. */
  start(session: ClientHttp2Session): number {
    try {
      this.#stream = session.request(this.headers);
    } catch (error) {
      this.cancel(unavailable(`the connection to ${this.address} has ended: ${(error as Error).message}`, "refused"));
      return 0;
    }
    const stream = this.#stream;
    stream.on("response", (headers, flags) => {
      this.#httpStatus = headers[":status"] ?? 0;
      if (flags & constants.NGHTTP2_FLAG_END_STREAM) this.#status = headers;
      if (this.#httpStatus !== 200) return;
      const type = headers["content-type"] ?? "";
      if (type.startsWith("application/grpc")) this.#receiver?.begun?.();
      else this.cancel(protocolError(`${this.address} is no broker: it answered with the content type ${type.slice(0, 100)}`));
    });
    stream.on("trailers", (headers) => (this.#status = headers));
    stream.on("data", (chunk: Buffer) => this.#take(chunk));
    stream.on("error", (error) => (this.#failure = error));
    stream.on("close", () => this.#end(this.#verdict()));
    if (this.#paused) stream.pause();
    const body = Buffer.allocUnsafe(PREFIX_BYTES + this.request.length);
    body[0] = 0;
    body.writeUInt32BE(this.request.length, 1);
    body.set(this.request, PREFIX_BYTES);
    stream.end(body);
    return stream.id ?? 0;
  }

  cancel(error: DanubeError): void {
    const stream = this.#stream;
    this.#end(error);
    stream?.close(constants.NGHTTP2_CANCEL);
    stream?.resume(); // what is left is dropped
  }

  /** Deliver no more, and read no more than is on its way. */
  pause(): void {
    this.#paused = true;
    this.#stream?.pause();
  }

  resume(): void {
    this.#paused = false;
    this.#deliver();
    if (!this.#paused) this.#stream?.resume();
  }

  #take(chunk: Buffer): void {
    if (this.#httpStatus !== 200) return;
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    this.#deliver();
  }

  #deliver(): void {
    while (this.#bytes >= this.#needed && !this.#paused && this.#receiver !== undefined) {
      const held = this.#chunks.length === 1 ? (this.#chunks[0] as Buffer) : Buffer.concat(this.#chunks, this.#bytes);
      const length = held.readUInt32BE(1);
      if (held[0] !== 0 || length > MAX_RECEIVE_BYTES) {
        const what = held[0] !== 0 ? "is compressed, which was not offered" : `has ${length} bytes, more than ${MAX_RECEIVE_BYTES}`;
        return this.cancel(protocolError(`an answer of ${this.address} ${what}`));
      }
      const end = PREFIX_BYTES + length;
      this.#chunks = [held];
      this.#needed = end;
      if (held.length < end) return;
      this.#chunks = held.length > end ? [held.subarray(end)] : [];
      this.#bytes -= end;
      this.#needed = PREFIX_BYTES;
      let answer: unknown;
      try {
        answer = this.#receiver.decode(held.subarray(PREFIX_BYTES, end));
      } catch (failure) {
        const why = (failure as Error).message;
        return this.cancel(protocolError(`the answer of ${this.address} to ${this.headers[":path"]} cannot be read: ${why}`));
      }
      this.#receiver.message(answer, this);
    }
  }

  /** What the end of the stream means. */
  #verdict(): DanubeError | undefined {
    const { "grpc-status": code, "grpc-message": message = "", "danube-error-bin": whole = "" } = this.#status ?? {};
    if (typeof code === "string" && this.#httpStatus === 200) {
      if (code !== "0") return fromStatus(Number(code), String(message), String(whole));
      return this.#bytes > 0 && !this.#paused ? protocolError(`an answer of ${this.address} is cut off`) : undefined;
    }
    if (this.#httpStatus !== 0 && this.#httpStatus !== 200) {
      return fromStatus(HTTP_STATUS[this.#httpStatus] ?? 2, `${this.address} answered with HTTP status ${this.#httpStatus}`, "");
    }
    const refused = this.#stream?.rstCode === constants.NGHTTP2_REFUSED_STREAM;
    const why = this.#failure?.message ?? "the stream ended without a status";
    return unavailable(`the connection to ${this.address} was lost: ${why}`, refused ? "refused" : "unknown");
  }

  #end(error: DanubeError | undefined): void {
    const receiver = this.#receiver;
    if (receiver === undefined) return;
    clearTimeout(this.#timer);
    this.forget(this);
    // Node keeps a stream until a full collection, and with it what it leads to: that costs a tenth of a send's processor time
    this.#receiver = this.#stream = this.#status = this.#timer = undefined;
    this.#chunks = [];
    receiver.ended(error);
  }
}

/** @internal */
export function unavailable(message: string, outcome: Outcome): DanubeError {
  return new DanubeError("UNAVAILABLE", message, { retryable: true, outcome });
}
