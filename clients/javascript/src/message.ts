/** Messages, as consumers receive them. */

import { DanubeError } from "./errors";
import type { StreamMessage } from "./generated/danube";
import { partitionIndex } from "./names";
import type { Cancellable, NackOptions } from "./options";

/** @internal Sends the answer to a message. */
export type Answer = (kind: "ack" | "nack", message: StreamMessage, options: NackOptions) => Promise<void>;

/** One delivered message. It comes again, to this consumer or another, unless it is acknowledged. */
export class Message {
  readonly #wire: StreamMessage;
  readonly #send: Answer;
  #answer: { readonly kind: "ack" | "nack"; readonly promise: Promise<void> } | undefined;

  private constructor(wire: StreamMessage, send: Answer) {
    this.#wire = wire;
    this.#send = send;
  }

  /** @internal */
  static of(wire: StreamMessage, send: Answer): Message { return new Message(wire, send); }

  /** The concrete topic: that of a partition where there are partitions. */
  get topic(): string { return this.#wire.msgId?.topicName ?? ""; }

  /** The partition's index; undefined on a topic without partitions. */
  get partition(): number | undefined { return partitionIndex(this.topic); }

  /** Place in the topic, from 0, without gaps as stored. 0 on a topic that is not reliable. */
  get offset(): bigint { return this.#wire.msgId?.topicOffset ?? 0n; }
  get payload(): Uint8Array { return this.#wire.payload; }

  /** The payload as text, read as UTF-8. */
  text(): string { return this.#wire.payload.toString("utf8"); }

  /** The payload as parsed JSON. Throws a `SyntaxError` where it is none. */
  json<T = unknown>(): T { return JSON.parse(this.text()) as T; }

  /** Whether the message is the absence of a value for its key (`send(null)`). */
  get isNull(): boolean { return this.#wire.payload.length === 0 && this.#wire.attributes.has("danube-null"); }
  get key(): string | undefined { return this.#wire.routingKey; }
  get attributes(): Readonly<Record<string, string>> { return Object.fromEntries(this.#wire.attributes); }

  /** The producer's name; of a partition with its index behind it. */
  get producer(): string { return this.#wire.producerName; }

  /** The producer's clock, a claim of the sender. */
  get publishTime(): Date { return new Date(Number(this.#wire.publishTime)); }

  /** The id of the schema's subject, for `client.schemas.get`; undefined without a schema. */
  get schemaId(): bigint | undefined { return this.#wire.schemaId; }
  get schemaVersion(): number | undefined { return this.#wire.schemaVersion; }

  /**
   * Acknowledge. Resolves when the broker has taken it; a lost connection is retried for half a minute. Need not be awaited: a
   * failure is then the event `ackFailed`, and the message comes again.
   */
  ack(options: Cancellable = {}): Promise<void> { return this.#once("ack", options); }

  /** Give back: it is delivered again, after a delay, and at last becomes a dead letter where the subscription says so. */
  nack(options: NackOptions = {}): Promise<void> { return this.#once("nack", options); }

  /** @internal The program has given an answer, also one that failed. */
  tried = false;

  /** @internal */
  get answered(): boolean { return this.#answer !== undefined; }

  // One answer: the same again is the first one's promise, unless that failed.
  #once(kind: "ack" | "nack", options: NackOptions): Promise<void> {
    if (this.#answer !== undefined) {
      if (this.#answer.kind === kind) return this.#answer.promise;
      const message = `message ${this.offset} of ${this.topic} has its answer: ${this.#answer.kind}`;
      const refused = Promise.reject(new DanubeError("MISUSE", message));
      refused.catch(() => undefined); // it need not be awaited
      return refused;
    }
    this.tried = true;
    const promise = this.#send(kind, this.#wire, options);
    const mine = { kind, promise };
    this.#answer = mine;
    promise.catch(() => {
      if (this.#answer === mine) this.#answer = undefined;
    });
    return promise;
  }
}
