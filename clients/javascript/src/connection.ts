/**
 * Connections: one HTTP/2 channel per address, and the calls over it.
 *
 * The scheme of the first address decides about TLS for all: an answer of a broker that names another address cannot make the
 * client speak, or show its token, in the clear.
 */

import { createSecureContext, type SecureContext } from "node:tls";

import { cancelled, closed, DanubeError, invalid, protocolError, textOf } from "./errors";
import { AuthServiceDefinition, type MessageFns } from "./generated/danube";
import { object, type ConnectOptions, type Token, type TlsOptions } from "./options";
import { Channel, type Call, type Receiver } from "./transport";
import { retrying, sleep, watch } from "./waiting";

const TOKEN_LIFE_MS = 3_000_000; // of one that was exchanged for an API key: they live for an hour

/** A generated service, and one of its methods. */
export interface Service {
  readonly fullName: string;
}
export interface Method<Q, A> {
  readonly name: string;
  readonly requestType: MessageFns<Q>;
  readonly responseType: MessageFns<A>;
}

/** Where a call goes: an address, and the broker behind it where that is a proxy. */
export interface Target {
  readonly address: string;
  /** The owner's own URL, for the proxy; undefined without one. */
  readonly brokerUrl: string | undefined;
}

export interface CallOptions {
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

export class Connections {
  /** The addresses that the program gave. */
  readonly services: readonly string[];
  /** Aborted by `close`. */
  readonly ended = new AbortController();
  readonly #requestTimeoutMs: number;
  readonly #tls: boolean;
  readonly #secure: SecureContext | undefined;
  readonly #token: Token | undefined;
  readonly #channels = new Map<string, Channel>();

  constructor(urls: unknown, options: ConnectOptions, requestTimeoutMs: number) {
    const given = (Array.isArray(urls) ? urls : [urls]).flatMap((url) => {
      const found = addresses(url);
      if (found === undefined) throw invalid("url", url, "write http://host:port, or https:// for TLS");
      return found;
    });
    if (given.length === 0) throw invalid("url", urls, "give an address such as http://127.0.0.1:6650");
    this.#tls = given[0]?.tls ?? false;
    if (given.some((each) => each.tls !== this.#tls)) throw invalid("url", urls, "all with TLS, or none");
    this.services = [...new Set(given.map((each) => each.address))];
    this.#secure = secureContext(options.tls, this.#tls);
    this.#requestTimeoutMs = requestTimeoutMs;
    const { token } = options;
    if (options.apiKey !== undefined) this.#token = this.#exchanging(options);
    else this.#token = token === undefined || typeof token === "function" ? token : printable(token);
    for (const address of this.services) this.#checkSecrecy(address);
  }

  /** A unary call. Rejects with a `DanubeError`; after `close` with `CLOSED`. */
  call<Q, A>(service: Service, method: Method<Q, A>, request: Q, target: Target, options: CallOptions = {}): Promise<A> {
    const token = this.#token;
    const timeoutMs = Math.min(options.timeoutMs ?? Infinity, this.#requestTimeoutMs);
    if (typeof token !== "function") return this.#once(service, method, request, target, timeoutMs, options.signal, token);
    const deadline = Date.now() + timeoutMs;
    const renewed = async (fresh: boolean): Promise<A> => {
      const shown = await this.#tokenOf(token, deadline - Date.now(), options.signal, fresh);
      return this.#once(service, method, request, target, deadline - Date.now(), options.signal, shown);
    };
    return renewed(false).catch((error: unknown) => {
      if (!(error instanceof DanubeError) || error.code !== "UNAUTHENTICATED") throw error;
      return renewed(true);
    });
  }

  /** A unary call to one service address after another, repeated while it fails in a way that may pass. */
  async anywhere<Q, A>(
    service: Service, method: Method<Q, A>, request: Q, deadline: number, signal: AbortSignal | undefined, timeoutMs = Infinity,
  ): Promise<A> {
    let turn = 0;
    const ask = (): Promise<A> => {
      const address = this.services[turn++ % this.services.length] as string;
      const options = { timeoutMs: Math.min(timeoutMs, deadline - Date.now()), signal };
      return this.call(service, method, request, { address, brokerUrl: undefined }, options);
    };
    return await retrying(ask, deadline, [signal, this.ended.signal]);
  }

  #once<Q, A>(
    service: Service, method: Method<Q, A>, request: Q, target: Target, timeoutMs: number, signal: AbortSignal | undefined,
    token: string | undefined,
  ): Promise<A> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) throw cancelled(signal);
      let answer: A | undefined;
      let unwatch = (): void => undefined; // a call may end while it is begun
      const receiver: Receiver<A> = {
        decode: (bytes) => method.responseType.decode(bytes),
        message: (message) => (answer = message),
        ended: (error) => {
          unwatch();
          if (error !== undefined) reject(error);
          else if (answer === undefined) reject(protocolError(`${target.address} answered ${method.name} without a message`));
          else resolve(answer);
        },
      };
      const call = this.#open(service, method, request, target, token, Math.max(1, timeoutMs), receiver);
      unwatch = watch(signal, () => call.cancel(cancelled(signal as AbortSignal, call.outcome)));
    });
  }

  /** A call whose answers are a stream. Rejects if it cannot begin. What happens later is the receiver's. */
  async stream<Q, A>(
    service: Service, method: Method<Q, A>, request: Q, target: Target, signal: AbortSignal, receiver: Receiver<A>,
  ): Promise<Call> {
    const given = this.#token;
    const token = typeof given === "function" ? await this.#tokenOf(given, this.#requestTimeoutMs, signal) : given;
    return this.#open(service, method, request, target, token, Infinity, receiver);
  }

  /** The address of a URL that a broker gave; undefined where it is none. */
  addressOf(url: string): string | undefined { return addresses(url)?.[0]?.address; }

  /** End every call and connection. */
  close(): void {
    this.ended.abort(closed("the client"));
    const error = new DanubeError("CLOSED", "the client was closed", { outcome: "unknown" });
    for (const channel of this.#channels.values()) channel.close(error);
    this.#channels.clear();
  }

  #open<Q, A>(
    service: Service, method: Method<Q, A>, request: Q, target: Target, token: string | undefined, timeoutMs: number,
    receiver: Receiver<A>,
  ): Call {
    const headers: Record<string, string> = {
      ":method": "POST", ":path": `/${service.fullName}/${method.name}`, "content-type": "application/grpc", te: "trailers",
    };
    if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
    if (target.brokerUrl !== undefined) headers["x-danube-broker-url"] = target.brokerUrl;
    const body = method.requestType.encode(request).finish();
    return this.#channel(target.address).open(headers, body, timeoutMs, receiver);
  }

  #channel(address: string): Channel {
    if (this.ended.signal.aborted) throw closed("the client");
    const known = this.#channels.get(address);
    if (known !== undefined) return known;
    this.#checkSecrecy(address);
    const made = new Channel(address, this.#secure, () => this.#channels.delete(address));
    this.#channels.set(address, made);
    return made;
  }

  /** Refuse to show a token unencrypted over a network. */
  #checkSecrecy(address: string): void {
    if (this.#token === undefined || this.#tls || isHere(address)) return;
    throw invalid("url", `http://${address}`, "a token is not sent over a network without TLS: write https://");
  }

  /** A token function that asks the broker for the token of an API key. */
  #exchanging(options: ConnectOptions): (fresh?: boolean) => string | Promise<string> {
    const apiKey = options.apiKey;
    if (options.token !== undefined) throw invalid("apiKey", "…", "give a token or an API key, not both");
    if (typeof apiKey !== "string" || apiKey === "") throw invalid("apiKey", typeof apiKey, "give the key as text");
    let current: Promise<string> | string | undefined;
    let until = 0;
    const exchange = async (): Promise<string> => {
      let failure: unknown;
      for (const address of this.services) {
        try {
          const target = { address, brokerUrl: undefined };
          const timeoutMs = this.#requestTimeoutMs; // of the first call's signal the others know nothing
          const { authenticate } = AuthServiceDefinition.methods;
          return (await this.#once(AuthServiceDefinition, authenticate, { apiKey }, target, timeoutMs, undefined, undefined)).token;
        } catch (error) {
          failure = error;
        }
      }
      throw failure;
    };
    return (fresh = false) => {
      if (current !== undefined && !fresh && Date.now() <= until) return current;
      const mine = (current = exchange());
      until = Date.now() + TOKEN_LIFE_MS;
      const settled = (token?: string): void => void (current === mine && (current = token));
      mine.then(settled, () => settled());
      return mine;
    };
  }

  /** The token of a function, within a time. */
  async #tokenOf(
    source: (fresh?: boolean) => string | Promise<string>, timeoutMs: number, signal: AbortSignal | undefined, fresh?: boolean,
  ): Promise<string> {
    const settled = new AbortController();
    try {
      const given = source(fresh);
      if (typeof given === "string") return printable(given);
      const late = sleep(timeoutMs, signal, this.ended.signal, settled.signal).then(() => {
        throw new DanubeError("DEADLINE_EXCEEDED", `no token within ${Math.round(timeoutMs)} ms`, { retryable: true });
      });
      return printable(await Promise.race([given, late]));
    } catch (error) {
      if (error instanceof DanubeError) throw error;
      throw new DanubeError("UNAUTHENTICATED", `the token function failed: ${textOf(error)}`, { cause: error });
    } finally {
      settled.abort();
    }
  }
}

function printable(token: unknown): string {
  if (typeof token === "string" && /^[\x21-\x7e]{1,16000}$/.test(token)) return token;
  throw new DanubeError("UNAUTHENTICATED", "the token is no text of printable ASCII characters");
}

function secureContext(tls: TlsOptions | undefined = {}, on: boolean): SecureContext | undefined {
  object("tls", tls, "ca cert key");
  if (!on && Object.keys(tls).length === 0) return undefined;
  if (!on) throw invalid("tls", "…", "write https:// as the scheme of the address");
  for (const field of ["ca", "cert", "key"] as const) {
    const pem = tls[field];
    if (pem !== undefined && !((typeof pem === "string" || pem instanceof Uint8Array) && Buffer.from(pem).includes("-----BEGIN "))) {
      throw invalid(`tls.${field}`, typeof pem, `give the text of the PEM file: readFileSync("…")`);
    }
  }
  if ((tls.cert === undefined) !== (tls.key === undefined)) throw invalid("tls.key", "…", "cert and key go together");
  try {
    const { ca, cert, key } = tls;
    const pair = cert && key && { cert: Buffer.from(cert), key: Buffer.from(key) };
    return createSecureContext({ ...(ca && { ca: Buffer.from(ca) }), ...pair });
  } catch (error) {
    throw invalid("tls", "…", `OpenSSL does not take it: ${textOf(error)}`);
  }
}

/** Addresses of a URL; `danube://a:1,b:2` has several. Undefined where it is none. */
function addresses(url: unknown): { address: string; tls: boolean }[] | undefined {
  const found = typeof url === "string" && /^(?:(https?|danubes?):\/\/)?([^/\s@?#]+)\/?$/i.exec(url);
  if (!found) return undefined;
  const tls = /^(https|danubes)$/i.test(found[1] ?? "");
  const parts = (found[2] ?? "").split(",").map((each) => /^(\[[0-9a-f:.]+\]|[^:[\]]+)(?::(\d{1,5}))?$/i.exec(each));
  const made = parts.map((each) => ({ host: each?.[1] ?? "", port: Number(each?.[2] ?? 6650) }));
  if (made.some(({ host, port }) => port < 1 || port > 65_535 || !URL.canParse(`http://${host}`))) return undefined;
  return made.map(({ host, port }) => ({ address: `${host}:${port}`, tls }));
}

function isHere(address: string): boolean { return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\]):\d+$/i.test(address); }
