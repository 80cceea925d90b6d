/** Consumers: what a program receives with. */

import type { Connections } from "./connection";
import { DanubeError, invalid, textOf } from "./errors";
import type { Events } from "./events";
import { ConsumerRequest_SubscriptionType as WireType, type StreamMessage } from "./generated/danube";
import { Message } from "./message";
import { topicName } from "./names";
import {
  closing, object, text, texts, whole, type Cancellable, type CloseOptions, type RunOptions, type SubscribeOptions,
} from "./options";
import { concreteTopics, randomName } from "./producer";
import { TopicStream, type Sink, type StreamOptions } from "./stream";
import { check, settledWithin, watch } from "./waiting";

const OPEN_TIMEOUT_MS = 30_000;
const HEALTH_MS = 5_000; // as the official clients ask
const NEW_PARTITIONS_TURNS = 12; // of health checks: once a minute
const TYPES = {
  exclusive: WireType.Exclusive, shared: WireType.Shared, failover: WireType.Failover, key_shared: WireType.KeyShared,
} as const;

/** Numbers about a consumer, for tests and screens. */
export interface ConsumerStatistics {
  /** Received and not taken by the program. */
  readonly buffered: number;
  readonly bufferedBytes: number;
  /** Answers (ack, nack) under way. */
  readonly answering: number;
  readonly received: number;
}

/** Receives the messages of one subscription. Made by `client.subscribe`. */
export class Consumer implements AsyncIterable<Message> {
  /** The topic, as the broker names it. */
  readonly topic: string;
  readonly subscription: string;
  readonly name: string;
  readonly #streams: TopicStream[] = [];
  readonly #running: Promise<void>[] = [];
  readonly #waiters = new Set<() => void>(); // of `next`: they look again
  readonly #answers = new Set<Promise<void>>();
  readonly #sink: Sink = {
    take: (message, from) => this.#take(message, from),
    lost: (from) => this.#drop(from),
    failed: (error) => this.#fail(error),
  };
  #buffer: { readonly message: StreamMessage; readonly from: TopicStream; readonly bytes: number }[] = [];
  #returned: Message[] = []; // by a loop that has ended
  #bytes = 0;
  #received = 0;
  #paused = false;
  #timer: NodeJS.Timeout | undefined;
  #turns = 0;
  #failure: DanubeError | undefined;
  #ended = false;
  #closing: Promise<void> | undefined;

  private constructor(
    private readonly connections: Connections, private readonly events: Events, topic: string,
    private readonly options: Omit<StreamOptions, "topic">,
    private readonly limits: { readonly messages: number; readonly bytes: number },
    private readonly forget: (consumer: Consumer) => void,
  ) {
    this.topic = topic;
    this.subscription = options.subscription;
    this.name = options.name;
  }

  /** @internal */
  static async open(
    connections: Connections, events: Events, options: SubscribeOptions, forget: (consumer: Consumer) => void,
  ): Promise<Consumer> {
    object("options", options, "topic subscription type name keyFilters maxBuffered maxBufferedBytes signal");
    const topic = topicName(options.topic);
    const { type: typeName = "shared" } = options;
    if (!Object.hasOwn(TYPES, typeName)) throw invalid("type", typeName, `give one of ${Object.keys(TYPES).join(", ")}`);
    const type = TYPES[typeName];
    const keyFilters = texts("keyFilters", options.keyFilters);
    if (keyFilters.length > 0 && type !== TYPES.key_shared) throw invalid("keyFilters", keyFilters, "only with key_shared");
    const limits = {
      messages: whole("maxBuffered", options.maxBuffered, 1, 1_000_000, 100),
      bytes: whole("maxBufferedBytes", options.maxBufferedBytes, 1, 2 ** 40, 16 * 1024 * 1024),
    };
    const stream = {
      subscription: text("subscription", options.subscription),
      type,
      name: options.name === undefined ? `js-${randomName()}` : text("name", options.name),
      keyFilters,
    };
    const made = new Consumer(connections, events, topic, stream, limits, forget);
    const deadline = Date.now() + OPEN_TIMEOUT_MS;
    const { signal } = options;
    const topics = await concreteTopics(connections, topic, deadline, signal);
    if (topics.length === 0) throw new DanubeError("TOPIC_NOT_FOUND", `there is no topic ${topic}: make it first, with a producer`);
    try {
      await Promise.all(topics.map((each) => made.#add(each, deadline, signal)));
    } catch (error) {
      made.#end();
      throw error;
    }
    made.#timer = setInterval(() => made.#tick(), HEALTH_MS);
    return made;
  }

  /**
   * The next message. Undefined when the consumer is closed; rejects when it has failed, and for a signal with `CANCELLED`,
   * which takes no message.
   */
  async next(options: Cancellable = {}): Promise<Message | undefined> {
    object("options", options, "signal");
    const { signal } = options;
    for (;;) {
      check(signal);
      const found = this.#returned.shift() ?? this.#shift();
      if (found !== undefined) return found;
      if (this.#failure !== undefined) throw this.#failure;
      if (this.#over) return undefined;
      await new Promise<void>((resolve) => {
        const unwatch = watch(signal, () => wake());
        const wake = (): void => {
          unwatch();
          this.#waiters.delete(wake);
          resolve();
        };
        this.#waiters.add(wake);
      });
    }
  }

  /** Messages until the consumer is closed. Leaving the loop leaves the consumer open. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Message, undefined> {
    for (let message; (message = await this.next()) !== undefined; ) yield message;
    return undefined;
  }

  /**
   * Call a handler for each message: acknowledged when it returns, given back when it throws, unless it has answered itself.
   *
   * Messages of one key are handled one after another, others side by side up to `concurrency`. Resolves when the consumer is
   * closed, or the signal aborted, and the handlers under way have ended. Rejects when the consumer has failed.
   */
  async run(handler: (message: Message) => unknown, options: RunOptions = {}): Promise<void> {
    if (typeof handler !== "function") throw invalid("handler", handler, "give a function");
    object("options", options, "concurrency signal");
    const concurrency = whole("concurrency", options.concurrency, 1, 100_000, 8);
    const { signal } = options;
    const busy = new Map<string, Message[]>(); // key → its messages that wait, while one is handled
    const under = new Set<Promise<void>>();
    let held = 0; // handled or waiting for their key
    let wake = (): void => undefined;
    const room = Math.max(concurrency, this.limits.messages);

    const handle = async (first: Message): Promise<void> => {
      for (let message: Message | undefined = first; message !== undefined; ) {
        await answered(handler, message);
        held--;
        wake();
        const key: string | undefined = message.key;
        message = undefined;
        if (key !== undefined) {
          const waiting: Message[] = busy.get(key) ?? [];
          if (signal?.aborted || this.#over) this.#returned.push(...waiting.splice(0));
          message = waiting.shift();
          if (message === undefined) busy.delete(key);
        }
      }
    };
    try {
      for (;;) {
        // what waits for its key takes no handler's place, but room
        while (under.size >= concurrency || held >= room) await new Promise<void>((resolve) => (wake = resolve));
        if (signal?.aborted) break;
        const message = await this.next({ signal });
        if (message === undefined) break;
        held++;
        const waiting = message.key === undefined ? undefined : busy.get(message.key);
        if (waiting !== undefined) {
          waiting.push(message);
          continue;
        }
        if (message.key !== undefined) busy.set(message.key, []);
        const work: Promise<void> = handle(message).finally(() => (under.delete(work), wake()));
        under.add(work);
      }
    } catch (error) {
      if (!(error instanceof DanubeError) || error.code !== "CANCELLED" || !signal?.aborted) throw error;
    } finally {
      await Promise.all(under);
    }
  }

  /** Take no more, wait for answers under way, and leave the subscription's place to others. */
  close(options: CloseOptions = {}): Promise<void> {
    return this.#closing ?? closing(options, (timeoutMs) => (this.#closing = this.#close(timeoutMs)));
  }

  async [Symbol.asyncDispose](): Promise<void> { await this.close(); }

  statistics(): ConsumerStatistics {
    return {
      buffered: this.#buffer.length + this.#returned.length, bufferedBytes: this.#bytes,
      answering: this.#answers.size, received: this.#received,
    };
  }

  /** Nothing more is taken. */
  get #over(): boolean { return this.#ended || this.#closing !== undefined; }

  async #close(timeoutMs: number): Promise<void> {
    this.#wake();
    this.#buffer = [];
    this.#returned = [];
    this.#bytes = 0;
    await settledWithin(Promise.allSettled(this.#answers), timeoutMs);
    this.#end();
    await Promise.all(this.#running);
    this.forget(this);
  }

  #end(): void {
    this.#ended = true;
    clearInterval(this.#timer);
    for (const stream of this.#streams) stream.close();
  }

  async #add(topic: string, deadline: number, signal: AbortSignal | undefined): Promise<void> {
    const stream = new TopicStream(this.connections, this.events, { ...this.options, topic }, this.#sink);
    this.#streams.push(stream);
    await stream.open(deadline, signal).catch((error: unknown) => {
      this.#streams.splice(this.#streams.indexOf(stream), 1); // so that it is looked for again
      stream.close();
      throw error;
    });
    if (this.#ended) return;
    this.#running.push(stream.run());
    if (this.#paused) stream.pause();
  }

  #tick(): void {
    for (const stream of this.#streams) void stream.checkHealth();
    if (++this.#turns % NEW_PARTITIONS_TURNS === 0) void this.#lookForPartitions();
  }

  /** Receive from partitions that were added since. */
  async #lookForPartitions(): Promise<void> {
    try {
      const topics = await concreteTopics(this.connections, this.topic, Date.now() + OPEN_TIMEOUT_MS, undefined);
      const known = new Set(this.#streams.map((each) => each.topic));
      const added = topics.filter((each) => !known.has(each));
      await Promise.all(added.map((each) => this.#add(each, Date.now() + OPEN_TIMEOUT_MS, undefined)));
    } catch {
      // looked for again in a minute
    }
  }

  #take(message: StreamMessage, from: TopicStream): void {
    if (this.#closing !== undefined) return from.pause();
    this.#received++;
    const bytes = sizeOf(message);
    this.#buffer.push({ message, from, bytes });
    this.#bytes += bytes;
    this.#wake();
    if (this.#buffer.length >= this.limits.messages || this.#bytes >= this.limits.bytes) {
      this.#paused = true;
      for (const stream of this.#streams) stream.pause();
    }
  }

  #shift(): Message | undefined {
    const found = this.#buffer.shift();
    if (found === undefined) return undefined;
    this.#bytes -= found.bytes;
    this.#resume();
    return this.#message(found.message, found.from);
  }

  /** Read on once half of the buffer is free. */
  #resume(): void {
    if (!this.#paused || this.#buffer.length * 2 > this.limits.messages || this.#bytes * 2 > this.limits.bytes) return;
    this.#paused = false;
    for (const stream of this.#streams) stream.resume();
  }

  #drop(from: TopicStream): void {
    this.#buffer = this.#buffer.filter((each) => each.from !== from);
    this.#bytes = this.#buffer.reduce((sum, each) => sum + each.bytes, 0);
    this.#resume();
  }

  /** An answer is waited for at `close`, and its promise need not be awaited: the event `ackFailed` tells of a failure. */
  #message(message: StreamMessage, from: TopicStream): Message {
    return Message.of(message, (kind, wire, options) => {
      const promise = from.answer(kind, wire, options);
      this.#answers.add(promise);
      const done = (): void => void this.#answers.delete(promise);
      promise.then(done, done);
      return promise;
    });
  }

  #wake(): void {
    for (const wake of [...this.#waiters]) wake();
  }

  #fail(error: DanubeError): void {
    if (this.#failure !== undefined) return;
    this.#failure = error;
    this.#end();
    this.#wake();
  }
}

function sizeOf({ payload, routingKey = "", attributes }: StreamMessage): number {
  return payload.length + routingKey.length + [...attributes].flat().join("").length;
}

/** Handle a message, and answer it unless the handler did. Never rejects: an answer that fails is an event. */
async function answered(handler: (message: Message) => unknown, message: Message): Promise<void> {
  try {
    await handler(message);
    if (!message.tried) await message.ack(); // a nack that failed is not made an ack
  } catch (error) {
    const reason = textOf(error).slice(0, 500);
    if (!message.answered) await message.nack({ reason }).catch(() => undefined);
  }
}
