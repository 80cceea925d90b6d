/**
 * Connections: one HTTP/2 channel per address, and the calls over it.
 *
 * The scheme of the first address decides about TLS for all: an answer of a broker that names another address cannot make the
 * client speak, or show its token, in the clear.
 */

import {
  Client, credentials, Metadata, type ChannelOptions, type ClientReadableStream, type ClientUnaryCall,
  type MethodDefinition, type ServiceError,
} from "@grpc/grpc-js";

import { cancelled, closed, DanubeError, fromCall, invalid } from "./errors";
import { AuthServiceService } from "./generated/danube";
import type { ConnectOptions, Token, TlsOptions } from "./options";
import { watch } from "./waiting";

// Bytes. A message has at most 4 MiB in the official clients; a broker may be set to take more.
const MAX_RECEIVE_BYTES = 16 * 1024 * 1024;
const TOKEN_LIFE_MS = 3_000_000; // of one that was exchanged for an API key: they live for an hour
const MAX_CHANNELS = 64; // addresses that brokers name: a cluster has fewer, a liar may have more

const CHANNEL: ChannelOptions = {
  "grpc.max_receive_message_length": MAX_RECEIVE_BYTES,
  "grpc.max_send_message_length": -1, // the broker says what is too large, with its limit
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
  "grpc.dns_min_time_between_resolutions_ms": 1_000,
  "grpc.keepalive_time_ms": 20_000, // a peer that is gone without a word
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.use_local_subchannel_pool": 1, // closed with this client
  "grpc.enable_retries": 0, // this client's own are enough
  "grpc.enable_http_proxy": 0,
};

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

/** A call that streams: cancel it, or wait for it to end. */
export type Stream<T> = ClientReadableStream<T>;

export class Connections {
  /** The addresses that the program gave. */
  readonly services: readonly string[];
  readonly #requestTimeoutMs: number;
  readonly #tls: boolean;
  readonly #options: TlsOptions;
  readonly #token: Token | undefined;
  readonly #channels = new Map<string, Client>();
  readonly #calls = new Set<ClientUnaryCall | Stream<never>>();
  readonly #metadata = new Map<string, Metadata>();
  #closed = false;

  constructor(urls: unknown, options: ConnectOptions, requestTimeoutMs: number) {
    const given = (Array.isArray(urls) ? urls : [urls]).flatMap(addresses);
    if (given.length === 0) throw invalid("url", urls, "give an address such as http://127.0.0.1:6650");
    this.#tls = given[0]?.tls ?? false;
    if (given.some((each) => each.tls !== this.#tls)) throw invalid("url", urls, "all with TLS, or none");
    this.services = [...new Set(given.map((each) => each.address))];
    this.#options = checkedTls(options.tls, this.#tls);
    this.#requestTimeoutMs = requestTimeoutMs;
    this.#token = options.apiKey === undefined ? checkedToken(options.token) : this.#exchanging(options);
    for (const address of this.services) this.#checkSecrecy(address);
  }

  /** A unary call. Rejects with a `DanubeError`; after `close` with `CLOSED`. */
  async call<Req, Res>(
    method: MethodDefinition<Req, Res>, request: Req, target: Target, options: CallOptions = {},
  ): Promise<Res> {
    if (typeof this.#token !== "function") return this.#once(method, request, target, options, this.#token);
    try {
      return await this.#once(method, request, target, options, await tokenOf(this.#token));
    } catch (error) {
      if (!(error instanceof DanubeError) || error.code !== "UNAUTHENTICATED") throw error;
      return await this.#once(method, request, target, options, await tokenOf(this.#token, true));
    }
  }

  #once<Req, Res>(
    method: MethodDefinition<Req, Res>, request: Req, target: Target, options: CallOptions, token: string | undefined,
  ): Promise<Res> {
    const { signal } = options;
    return new Promise<Res>((resolve, reject) => {
      if (signal?.aborted) return reject(cancelled(signal));
      const client = this.#client(target.address);
      const deadline = Date.now() + Math.max(1, options.timeoutMs ?? this.#requestTimeoutMs);
      const done = (error: ServiceError | null, answer?: Res): void => {
        this.#calls.delete(call);
        unwatch();
        if (error === null && answer !== undefined) return resolve(answer);
        if (signal?.aborted) return reject(cancelled(signal, "unknown"));
        if (this.#closed) return reject(new DanubeError("CLOSED", "the client was closed", { outcome: "unknown" }));
        reject(fromCall(error as ServiceError));
      };
      const call = client.makeUnaryRequest(
        method.path, method.requestSerialize, method.responseDeserialize, request, this.#headers(target, token),
        { deadline }, done,
      );
      this.#calls.add(call);
      const unwatch = watch(signal, () => call.cancel());
    });
  }

  /** A call whose answers are a stream. Its errors are `ServiceError`s. */
  async stream<Req, Res>(method: MethodDefinition<Req, Res>, request: Req, target: Target): Promise<Stream<Res>> {
    const token = typeof this.#token === "function" ? await tokenOf(this.#token) : this.#token;
    const call = this.#client(target.address).makeServerStreamRequest(
      method.path, method.requestSerialize, method.responseDeserialize, request, this.#headers(target, token),
    );
    this.#calls.add(call as Stream<never>);
    call.once("close", () => this.#calls.delete(call as Stream<never>));
    return call;
  }

  /** The address of a URL that a broker gave; undefined where it is none. */
  addressOf(url: string): string | undefined {
    try {
      return addresses(url)[0]?.address;
    } catch {
      return undefined;
    }
  }

  /** End every call and connection. */
  close(): void {
    this.#closed = true;
    for (const call of this.#calls) call.cancel();
    for (const client of this.#channels.values()) client.close();
    this.#channels.clear();
  }

  #client(address: string): Client {
    if (this.#closed) throw closed("the client");
    const known = this.#channels.get(address);
    if (known !== undefined) return known;
    if (this.#channels.size >= MAX_CHANNELS) this.#forgetOne();
    this.#checkSecrecy(address);
    const { ca, cert, key } = this.#options;
    const secure = this.#tls
      ? credentials.createSsl(buffer(ca), buffer(key), buffer(cert))
      : credentials.createInsecure();
    const made = new Client(address, secure, CHANNEL);
    this.#channels.set(address, made);
    return made;
  }

  /** Close the oldest channel that is no service address. A producer or consumer that still uses it comes back with a new one. */
  #forgetOne(): void {
    for (const [address, client] of this.#channels) {
      if (this.services.includes(address)) continue;
      this.#channels.delete(address);
      client.close();
      return;
    }
  }

  // grpc-js copies what it is given, so one object serves all calls with the same headers.
  #headers(target: Target, token: string | undefined): Metadata {
    const name = `${token ?? ""}\n${target.brokerUrl ?? ""}`;
    const known = this.#metadata.get(name);
    if (known !== undefined) return known;
    const made = new Metadata();
    if (token !== undefined) made.set("authorization", `Bearer ${token}`);
    if (target.brokerUrl !== undefined) made.set("x-danube-broker-url", target.brokerUrl);
    if (this.#metadata.size >= 100) this.#metadata.clear(); // tokens change
    this.#metadata.set(name, made);
    return made;
  }

  /** Refuse to show a token unencrypted over a network. */
  #checkSecrecy(address: string): void {
    if (this.#token === undefined || this.#tls || isHere(address)) return;
    throw invalid("url", `http://${address}`, "a token is not sent over a network without TLS: write https://");
  }

  /** A token function that asks the broker for the token of an API key. */
  #exchanging(options: ConnectOptions): Token {
    const apiKey = options.apiKey;
    if (options.token !== undefined) throw invalid("apiKey", "…", "give a token or an API key, not both");
    if (typeof apiKey !== "string" || apiKey === "") throw invalid("apiKey", typeof apiKey, "give the key as text");
    let current: { token: Promise<string>; until: number } | undefined;
    const exchange = async (): Promise<string> => {
      let failure: unknown;
      for (const address of this.services) {
        try {
          const target = { address, brokerUrl: undefined };
          return (await this.#once(AuthServiceService.authenticate, { apiKey }, target, {}, undefined)).token;
        } catch (error) {
          failure = error;
        }
      }
      throw failure;
    };
    const source = (fresh = false): Promise<string> => {
      if (current === undefined || fresh || Date.now() > current.until) {
        const mine = { token: exchange(), until: Date.now() + TOKEN_LIFE_MS };
        current = mine;
        mine.token.catch(() => {
          if (current === mine) current = undefined;
        });
      }
      return current.token;
    };
    return source;
  }
}

async function tokenOf(source: (fresh?: boolean) => string | Promise<string>, fresh?: boolean): Promise<string> {
  let token: unknown;
  try {
    token = await source(fresh);
  } catch (error) {
    if (error instanceof DanubeError) throw error;
    const message = `the token function failed: ${error instanceof Error ? error.message : String(error)}`;
    throw new DanubeError("UNAUTHENTICATED", message, { cause: error });
  }
  return printable(token);
}

function printable(token: unknown): string {
  if (typeof token === "string" && /^[\x21-\x7e]{1,16000}$/.test(token)) return token;
  throw new DanubeError("UNAUTHENTICATED", "the token is no text of printable ASCII characters");
}

function checkedToken(token: unknown): Token | undefined {
  if (token === undefined || typeof token === "function") return token as Token | undefined;
  return printable(token);
}

function checkedTls(tls: TlsOptions | undefined, on: boolean): TlsOptions {
  if (tls === undefined) return {};
  if (!on) throw invalid("tls", "…", "write https:// as the scheme of the address");
  for (const field of ["ca", "cert", "key"] as const) {
    const pem = tls[field];
    if (pem !== undefined && !buffer(pem)?.includes("-----BEGIN ")) {
      throw invalid(`tls.${field}`, typeof pem, `give the text of the PEM file: readFileSync("…")`);
    }
  }
  if ((tls.cert === undefined) !== (tls.key === undefined)) throw invalid("tls.key", "…", "cert and key go together");
  return tls;
}

function buffer(pem: string | Uint8Array | undefined): Buffer | null {
  if (typeof pem === "string") return Buffer.from(pem);
  return pem instanceof Uint8Array ? Buffer.from(pem) : null;
}

/** Addresses of a URL; `danube://a:1,b:2` has several. */
function addresses(url: unknown): { address: string; tls: boolean }[] {
  const wrong = (): DanubeError => invalid("url", url, "write http://host:port, or https:// for TLS");
  const found = typeof url === "string" && /^(?:(https?|danubes?):\/\/)?([^/\s@?#]+)\/?$/i.exec(url);
  if (!found) throw wrong();
  const scheme = (found[1] ?? "http").toLowerCase();
  const tls = scheme === "https" || scheme === "danubes";
  return (found[2] ?? "").split(",").map((each) => {
    const parts = /^(\[[0-9a-f:.]+\]|[^:[\]]+)(?::(\d{1,5}))?$/i.exec(each);
    const port = Number(parts?.[2] ?? 6650);
    if (!parts || port < 1 || port > 65_535) throw wrong();
    return { address: `${parts[1]}:${port}`, tls };
  });
}

function isHere(address: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\]):\d+$/i.test(address);
}
