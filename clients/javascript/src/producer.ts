/** Producers: what a program sends with. */

import type { Connections } from "./connection";
import { cancelled, closed, DanubeError, invalid, protocolError } from "./errors";
import type { Events } from "./events";
import { DiscoveryDefinition, type SchemaReference } from "./generated/danube";
import { Lane, Sending, type SchemaIds } from "./lane";
import { partitionCount, partitionOf, topicName } from "./names";
import {
  closing, flag, object, text, whole, type CloseOptions, type ProducerOptions, type SchemaChoice, type SendOptions,
} from "./options";
import type { Schemas } from "./schemas";
import { settledWithin } from "./waiting";

const OPEN_TIMEOUT_MS = 30_000;
const MAX_PARTITIONS = 10_000;
const MAX_PAYLOAD_BYTES = 64 * 1024 * 1024; // a broker ends the call of a larger one unread, and says that it is exhausted
const NONE: ReadonlyMap<string, string> = new Map();
const NULL_ATTRIBUTE = "danube-null";

/** Numbers about a producer, for tests and screens. */
export interface ProducerStatistics {
  /** Accepted and not settled. */
  readonly pending: number;
  /** Of those, under way to a broker. */
  readonly inFlight: number;
  /** Sends that wait because of `maxPending`. */
  readonly waiting: number;
  readonly acknowledged: number;
  readonly failed: number;
}

/** The `maxPending` places of a producer, which its lanes share. */
class Places {
  readonly #blocked = new Set<Lane>();
  #taken = 0;

  /** @param waiting how many sends may wait for a place. */
  constructor(readonly count: number, readonly waiting: number) {}

  /** Whether there is a place. Where there is none, the lane goes on when there is. */
  readonly take = (lane: Lane): boolean => {
    if (this.#taken < this.count) return ++this.#taken > 0;
    this.#blocked.add(lane);
    return false;
  };

  leave(): void {
    this.#taken--;
    for (const lane of this.#blocked) {
      if (this.#taken >= this.count) return;
      this.#blocked.delete(lane);
      lane.pump();
    }
  }
}

/** Sends messages to one topic. Made by `client.createProducer`. */
export class Producer {
  /** The topic, as the broker names it. */
  readonly topic: string;
  readonly name: string;
  readonly #unsettled = new Set<Promise<bigint>>();
  #acknowledged = 0;
  #failed = 0;
  #requests = 0n;
  #keyless = 0;
  #closing: Promise<void> | undefined;

  private constructor(
    topic: string, name: string, private readonly lanes: Lane[], private readonly places: Places,
    private readonly timeoutMs: number, private readonly forget: (producer: Producer) => void,
  ) {
    this.topic = topic;
    this.name = name;
  }

  /** @internal */
  static async open(
    connections: Connections, events: Events, schemas: Schemas, options: ProducerOptions, forget: (producer: Producer) => void,
  ): Promise<Producer> {
    object("options", options, "topic name partitions reliable schema maxPending maxWaiting maxInFlight sendTimeoutMs resend signal");
    const topic = topicName(options.topic);
    const name = options.name === undefined ? `js-${randomName()}` : text("name", options.name);
    const asked = whole("partitions", options.partitions, 1, MAX_PARTITIONS, undefined);
    const schemaRef = reference(options.schema);
    const common = {
      schemaRef,
      reliable: flag("reliable", options.reliable, true),
      maxInFlight: whole("maxInFlight", options.maxInFlight, 1, 10_000, 128),
      resend: flag("resend", options.resend, true),
    };
    const timeoutMs = whole("sendTimeoutMs", options.sendTimeoutMs, 1, 86_400_000, 60_000);
    const waiting = whole("maxWaiting", options.maxWaiting, 0, 10_000_000, 100_000);
    const places = new Places(whole("maxPending", options.maxPending, 1, 1_000_000, 1_000), waiting);
    const deadline = Date.now() + OPEN_TIMEOUT_MS;
    const { signal } = options;
    const there = await partitionsOf(connections, topic, deadline, signal); // fewer: another producer may be making them
    if (there !== undefined && (asked ?? there) < there) throw invalid("partitions", asked, `${topic} has ${there}, by which keys are routed`);
    const count = asked ?? there;
    const lanes = count === undefined
      ? [new Lane(connections, events, { ...common, topic, name }, places.take)]
      : Array.from({ length: count }, (_, index) =>
          new Lane(connections, events, { ...common, topic: `${topic}-part-${index}`, name: `${name}-${index}` }, places.take));
    try {
      await Promise.all(lanes.map((lane) => lane.open(deadline, signal)));
      const schema = schemaRef && (await schemaIds(schemas, schemaRef, signal));
      for (const lane of lanes) lane.schema = schema;
    } catch (error) {
      for (const lane of lanes) lane.close(closed("the producer"));
      throw error;
    }
    return new Producer(topic, name, lanes, places, timeoutMs, forget);
  }

  /**
   * Send a message. `null` is the absence of a value for its key.
   *
   * Resolves once, when the broker has acknowledged it (on a reliable topic: when it is on disk), with an id that is unique in
   * this producer. Rejects once, with `outcome: "refused"` if it is not stored, `"unknown"` if it may be.
   */
  send(payload: Uint8Array | string | null, options: SendOptions = {}): Promise<bigint> {
    const promise = new Promise<bigint>((resolve, reject) => {
      if (this.#closing !== undefined) throw closed("the producer");
      const body = bytes(payload);
      object("options", options, "key attributes signal");
      const { key, signal } = options;
      if (key !== undefined && (typeof key !== "string" || !key.isWellFormed())) throw invalid("key", key, "give a text");
      const attributes = attributesOf(options.attributes, payload === null);
      if (signal?.aborted) throw cancelled(signal);
      if (this.#unsettled.size >= this.places.count + this.places.waiting) {
        const message = `${this.places.waiting} sends wait already: await them, or raise maxWaiting`;
        throw new DanubeError("OVERLOADED", message, { retryable: true });
      }
      const done = (error: DanubeError | undefined, sending: Sending): void => {
        if (error === undefined) {
          this.#acknowledged++;
          resolve(sending.requestId);
        } else {
          this.#failed++;
          reject(error);
        }
        if (sending.admitted) this.places.leave();
      };
      const now = Date.now();
      const deadline = now + this.timeoutMs;
      const count = this.lanes.length;
      const lane = this.lanes[key === undefined ? this.#keyless++ % count : partitionOf(key, count)] as Lane;
      lane.send(new Sending(++this.#requests, body, key, attributes, BigInt(now), deadline, signal, done));
    });
    this.#unsettled.add(promise);
    const settled = (): void => void this.#unsettled.delete(promise);
    promise.then(settled, settled);
    return promise;
  }

  /** Wait until every send so far is settled, whichever way. */
  async flush(): Promise<void> { await Promise.allSettled(this.#unsettled); }

  /** Take no more, wait for what is under way, and end. What is left then is rejected with `CLOSED`. */
  close(options: CloseOptions = {}): Promise<void> {
    return this.#closing ?? closing(options, (timeoutMs) => (this.#closing = this.#close(timeoutMs)));
  }

  async [Symbol.asyncDispose](): Promise<void> { await this.close(); }

  statistics(): ProducerStatistics {
    return {
      pending: Math.min(this.#unsettled.size, this.places.count),
      inFlight: this.lanes.reduce((sum, lane) => sum + lane.inFlight, 0),
      waiting: Math.max(0, this.#unsettled.size - this.places.count),
      acknowledged: this.#acknowledged,
      failed: this.#failed,
    };
  }

  async #close(timeoutMs: number): Promise<void> {
    await settledWithin(this.flush(), timeoutMs);
    const error = closed("the producer");
    for (const lane of this.lanes) lane.ended.abort(error); // first all: the place of a rejected send is no other's any more
    for (const lane of this.lanes) lane.close(error);
    this.forget(this);
  }
}

/** @internal A name for who has none. */
export function randomName(): string { return crypto.randomUUID().slice(0, 13); }

/** The count of a topic's partitions; undefined of one without, or that is not there yet. */
async function partitionsOf(
  connections: Connections, topic: string, deadline: number, signal: AbortSignal | undefined,
): Promise<number | undefined> {
  try {
    return partitionCount(topic, await concreteTopics(connections, topic, deadline, signal));
  } catch (error) {
    // Who may produce may lack the permission to look up; the topic is then taken for one without partitions.
    if (error instanceof DanubeError && error.code === "PERMISSION_DENIED") return undefined;
    throw error;
  }
}

/** @internal The concrete topics behind a name, by any broker that answers. */
export async function concreteTopics(
  connections: Connections, topic: string, deadline: number, signal: AbortSignal | undefined,
): Promise<string[]> {
  const request = { requestId: 0n, topic };
  const { partitions } = await connections.anywhere(DiscoveryDefinition, DiscoveryDefinition.methods.topicPartitions, request, deadline, signal);
  const wrong = partitions.find((each) => each !== topic && !each.startsWith(`${topic}-part-`));
  if (wrong !== undefined) throw protocolError(`asked for the partitions of ${topic}, the broker names ${wrong}`);
  if (partitions.length > MAX_PARTITIONS) throw protocolError(`${topic} cannot have ${partitions.length} partitions`);
  return [...new Set(partitions)];
}

function bytes(payload: unknown): Buffer {
  if (payload === null) return Buffer.alloc(0);
  if (typeof payload !== "string" && !(payload instanceof Uint8Array)) {
    throw invalid("payload", typeof payload, "give a Uint8Array, a string or null; JSON.stringify makes text of objects");
  }
  const size = Buffer.byteLength(payload);
  if (size > MAX_PAYLOAD_BYTES) {
    throw new DanubeError("MESSAGE_TOO_LARGE", `the payload has ${size} bytes; no broker takes more than ${MAX_PAYLOAD_BYTES}`);
  }
  // a copy: the caller may use its buffer again as soon as `send` returns
  return Buffer.from(payload as Uint8Array);
}

function attributesOf(given: unknown, isNull: boolean): Map<string, string> {
  if (given === undefined && !isNull) return NONE as Map<string, string>;
  if (given !== undefined && (typeof given !== "object" || given === null || Symbol.iterator in given)) {
    throw invalid("attributes", given, "give an object of texts");
  }
  const made = new Map<string, string>();
  for (const [name, value] of Object.entries(given ?? {})) {
    if (typeof value !== "string" || !`${name}${value}`.isWellFormed()) throw invalid(`attributes.${name}`, value, "give a text");
    made.set(name, value);
  }
  if (isNull) made.set(NULL_ATTRIBUTE, "");
  return made;
}

function reference(schema: SchemaChoice | undefined): SchemaReference | undefined {
  if (schema === undefined) return undefined;
  if (typeof schema === "string") return { subject: text("schema", schema), versionRef: { $case: "useLatest", value: true } };
  object("schema", schema, "subject version minVersion");
  const subject = text("schema.subject", schema.subject);
  const { version, minVersion } = schema;
  const least = whole("schema.minVersion", minVersion, 1, 0xffff_ffff, 0);
  const exact = whole("schema.version", version, 1, 0xffff_ffff, 0);
  if (exact > 0) return { subject, versionRef: { $case: "pinnedVersion", value: exact } };
  return { subject, versionRef: least > 0 ? { $case: "minVersion", value: least } : { $case: "useLatest", value: true } };
}

/** The ids that messages carry; the version as the reference wants it. */
async function schemaIds(schemas: Schemas, wanted: SchemaReference, signal: AbortSignal | undefined): Promise<SchemaIds> {
  const version = wanted.versionRef?.$case === "pinnedVersion" ? wanted.versionRef.value : undefined;
  const found = await schemas.get(wanted.subject, { version, signal });
  if (wanted.versionRef?.$case === "minVersion" && found.version < wanted.versionRef.value) {
    throw invalid("schema.minVersion", wanted.versionRef.value, `the newest version of ${wanted.subject} is ${found.version}`);
  }
  return { schemaId: found.schemaId, schemaVersion: found.version };
}
