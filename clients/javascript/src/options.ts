/** Options of each call, and their checks. */

import { invalid } from "./errors";

/** A call that an `AbortSignal` may end. */
export interface Cancellable {
  readonly signal?: AbortSignal | undefined;
}

/** Certificates, as PEM text: `readFileSync("ca.crt")`. */
export interface TlsOptions {
  /** The authorities that brokers' certificates are checked against; without it those that Node trusts. */
  readonly ca?: string | Uint8Array | undefined;
  /** This client's certificate, where the broker wants one (mTLS); with `key`. */
  readonly cert?: string | Uint8Array | undefined;
  readonly key?: string | Uint8Array | undefined;
}

/** A token, or a function that is called for each call and may fetch a new one. */
export type Token = string | (() => string | Promise<string>);

export interface ConnectOptions extends Cancellable {
  /** A JSON Web Token or an API token of the broker. */
  readonly token?: Token | undefined;
  /** An API key that the broker exchanges for a token, once an hour. */
  readonly apiKey?: string | undefined;
  readonly tls?: TlsOptions | undefined;
  /** Until the first broker has answered, in milliseconds: 10 000. */
  readonly connectTimeoutMs?: number | undefined;
  /** Of each try of a call, in milliseconds: 30 000. */
  readonly requestTimeoutMs?: number | undefined;
}

/** A schema: the newest version of a subject, or a certain one, or one not older than. */
export type SchemaChoice = string | {
  readonly subject: string;
  readonly version?: number | undefined;
  readonly minVersion?: number | undefined;
};

export interface ProducerOptions extends Cancellable {
  readonly topic: string;
  /** Identity within the topic; without it a random one. */
  readonly name?: string | undefined;
  /** Makes the topic with so many partitions. Without it the topic's own are used. */
  readonly partitions?: number | undefined;
  /** Whether messages are stored (true), or only handed to the consumers that are there. Decided when the topic is made. */
  readonly reliable?: boolean | undefined;
  readonly schema?: SchemaChoice | undefined;
  /** Messages that are accepted and not settled yet: 1 000. At so many `send` waits. */
  readonly maxPending?: number | undefined;
  /** Sends that wait for their turn because of `maxPending`: 100 000. At so many `send` is refused with `OVERLOADED`. */
  readonly maxWaiting?: number | undefined;
  /** Calls under way at a time, for each partition: 128. With 1 the order holds whatever fails. */
  readonly maxInFlight?: number | undefined;
  /** From `send` to its last try, in milliseconds: 60 000. */
  readonly sendTimeoutMs?: number | undefined;
  /** Whether a message is sent again after its answer was lost, so that it may be stored twice: true. Else `outcome: "unknown"`. */
  readonly resend?: boolean | undefined;
}

export interface SendOptions extends Cancellable {
  /** Decides the partition, and the consumer of a key-shared subscription. */
  readonly key?: string | undefined;
  readonly attributes?: Readonly<Record<string, string>> | undefined;
}

export type SubscriptionType = "exclusive" | "shared" | "failover" | "key_shared";

export interface SubscribeOptions extends Cancellable {
  readonly topic: string;
  readonly subscription: string;
  /** Of a new subscription: `shared`. One that exists keeps its type. */
  readonly type?: SubscriptionType | undefined;
  /** Identity within the subscription; without it a random one. Two consumers of one name take turns. */
  readonly name?: string | undefined;
  /** With `key_shared`: keys to receive, as globs (`*`, `?`). None: every key. */
  readonly keyFilters?: readonly string[] | undefined;
  /** Messages that are received and not taken yet: 100. At so many nothing more is read from the connection. */
  readonly maxBuffered?: number | undefined;
  /** The same in bytes of payloads, keys and attributes: 16 MiB. */
  readonly maxBufferedBytes?: number | undefined;
}

export interface NackOptions extends Cancellable {
  /** Not before so many milliseconds; the subscription's own delay where it is longer. */
  readonly delayMs?: number | undefined;
  /** For people: shown with the dead letter. */
  readonly reason?: string | undefined;
}

export interface RunOptions extends Cancellable {
  /** Handlers under way at a time: 8. Messages of one key are handled one after another. */
  readonly concurrency?: number | undefined;
}

export interface CloseOptions {
  /** For what is under way, in milliseconds: 10 000. */
  readonly timeoutMs?: number | undefined;
}

/** @internal A whole number within bounds, or the default. */
export function whole<D>(field: string, value: unknown, least: number, most: number, otherwise: D): number | D {
  if (value === undefined) return otherwise;
  if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > most) {
    throw invalid(field, value, `give a whole number from ${least} to ${most}`);
  }
  return value;
}

/** @internal A text of at least one character. */
export function text(field: string, value: unknown): string {
  if (typeof value !== "string" || value === "" || value.length > 1_000 || !value.isWellFormed()) {
    throw invalid(field, value, "give a text of 1 to 1000 characters");
  }
  return value;
}

/** @internal */
export function flag(field: string, value: unknown, otherwise: boolean): boolean {
  if (value !== undefined && typeof value !== "boolean") throw invalid(field, value, "give true or false");
  return value ?? otherwise;
}

/** @internal */ export function texts(field: string, value: unknown): string[] {
  if (value !== undefined && !Array.isArray(value)) throw invalid(field, value, "give an array of texts");
  return (value ?? []).map((each) => text(field, each));
}

/** @internal Options of these names and no others: a misspelt one would leave its default in force. */
export function object(what: string, value: unknown, names: string): void {
  const shape = `give { ${names.replaceAll(" ", ", ")} }`;
  if (typeof value !== "object" || value === null || value instanceof AbortSignal) throw invalid(what, typeof value, shape);
  const unknown = Object.keys(value).find((name) => !names.split(" ").includes(name));
  if (unknown !== undefined) throw invalid(unknown, typeof (value as Record<string, unknown>)[unknown], `unknown: ${shape}`);
  const { signal } = value as { signal?: unknown };
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw invalid("signal", signal, "give an AbortSignal");
}

/** @internal Close within the time of the options. Wrong options reject, and close nothing. */
export function closing(options: CloseOptions, close: (timeoutMs: number) => Promise<void>): Promise<void> {
  try {
    object("options", options, "timeoutMs");
    return close(whole("timeoutMs", options.timeoutMs, 0, 86_400_000, 10_000));
  } catch (error) {
    return Promise.reject(error);
  }
}
