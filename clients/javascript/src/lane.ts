/**
 * A producer on one concrete topic: its session with the broker, and the messages under way there.
 *
 * Messages leave in the order of their sends, up to `maxInFlight` at a time. When one fails in a way that may pass, no more
 * leave; once the others under way are settled, the failed ones leave again, in their order and before newer ones, over a new
 * session if need be. Each message is settled once, by whichever comes first: an answer, its deadline, its signal, `close`.
 */

import type { Connections } from "./connection";
import { asDanubeError, cancelled, DanubeError, protocolError, type Outcome } from "./errors";
import type { Events, Subject } from "./events";
import {
  DispatchStrategy, ProducerAccessMode, ProducerServiceDefinition, type SchemaReference, type StreamMessage,
} from "./generated/danube";
import { Route } from "./route";
import { backoff, check, retrying, sleep, watch, withOutcome } from "./waiting";

/** One message between `send` and its settlement. */
export class Sending {
  /** Where it stands among the sends of its lane. */
  sequence = 0;
  settled = false;
  /** A try ended without an answer: the message may be stored. */
  maybeStored = false;
  /** It has one of its producer's `maxPending` places. */
  admitted = false;
  /** Tries that ended because the broker did not know the session. */
  strangers = 0;
  readonly unwatch: () => void;

  constructor(
    readonly requestId: bigint,
    readonly payload: Buffer,
    readonly key: string | undefined,
    readonly attributes: Map<string, string>,
    readonly publishTime: bigint,
    readonly deadline: number,
    readonly signal: AbortSignal | undefined,
    private readonly done: (error: DanubeError | undefined, sending: Sending) => void,
  ) {
    this.unwatch = watch(signal, () => this.reject(cancelled(signal as AbortSignal), this.flying));
  }

  /** Whether a try is under way. */
  flying = false;

  resolve(): void {
    this.#settle(undefined);
  }

  /** @param unknown whether the try under way may still have an effect. */
  reject(error: DanubeError, unknown = false): void {
    const outcome: Outcome = unknown || this.maybeStored ? "unknown" : error.outcome;
    this.#settle(outcome === error.outcome ? error : withOutcome(error, outcome));
  }

  #settle(error: DanubeError | undefined): void {
    if (this.settled) return;
    this.settled = true;
    this.unwatch();
    this.done(error, this);
  }
}

export interface LaneOptions {
  readonly topic: string;
  readonly name: string;
  readonly reliable: boolean;
  readonly schemaRef: SchemaReference | undefined;
  readonly maxInFlight: number;
  readonly resend: boolean;
}

/** What messages carry of their schema. */
export interface SchemaIds {
  readonly schemaId: bigint;
  readonly schemaVersion: number;
}

const THROTTLED = new Set(["OVERLOADED", "RATE_LIMITED", "QUOTA_EXCEEDED", "LIMIT_REACHED", "RESOURCE_EXHAUSTED"]);
const MAX_STRANGERS = 3;

export class Lane {
  readonly #route: Route;
  readonly #subject: Subject;
  readonly #ended = new AbortController();
  #queue: Sending[] = [];
  #failed: Sending[] = [];
  readonly #flying = new Set<Sending>();
  #sequence = 0;
  #producerId: bigint | undefined;
  #recovering = false;
  // After a failure the first message goes alone: were it refused again, those behind it would be stored before it.
  #probing = false;
  #failure: DanubeError | undefined;
  #attempts = 0;
  #timer: NodeJS.Timeout | undefined;
  #timerAt = 0;
  schema: SchemaIds | undefined;

  constructor(
    private readonly connections: Connections,
    private readonly events: Events,
    private readonly options: LaneOptions,
    private readonly admit: (lane: Lane) => boolean,
  ) {
    this.#route = new Route(connections, options.topic);
    this.#subject = { role: "producer", name: options.name, topic: options.topic };
  }

  get inFlight(): number {
    return this.#flying.size;
  }

  /** Enter the producer at the topic's owner; the topic is made if need be. */
  async open(deadline: number, signal: AbortSignal | undefined): Promise<void> {
    await retrying(() => this.#create(signal), deadline, signal, (error, attempt, delayMs) =>
      this.events.emit("reconnecting", { ...this.#subject, attempt, delayMs, error }));
  }

  send(sending: Sending): void {
    sending.sequence = this.#sequence++;
    this.#queue.push(sending);
    this.pump();
    this.#watchDeadlines();
  }

  /** Reject what is not settled, and end. */
  close(error: DanubeError): void {
    this.#ended.abort();
    clearTimeout(this.#timer);
    for (const sending of [...this.#queue, ...this.#failed, ...this.#flying]) sending.reject(error, sending.flying);
    this.#queue = [];
    this.#failed = [];
  }

  async #create(signal: AbortSignal | undefined): Promise<void> {
    await this.#route.locate(signal);
    const answer = await this.connections.call(
      ProducerServiceDefinition, ProducerServiceDefinition.methods.createProducer,
      {
        requestId: 0n,
        producerName: this.options.name,
        topicName: this.options.topic,
        schemaRef: this.options.schemaRef,
        producerAccessMode: ProducerAccessMode.Shared,
        dispatchStrategy: this.options.reliable ? DispatchStrategy.Reliable : DispatchStrategy.NonReliable,
      },
      this.#route.target,
      { signal },
    );
    check(signal);
    this.#producerId = answer.producerId;
    this.events.emit("connected", { ...this.#subject, address: this.#route.target.address });
  }

  /** Let messages leave, as far as there is room. */
  pump(): void {
    if (this.#recovering || this.#failure !== undefined || this.#ended.signal.aborted) return;
    if (this.#producerId === undefined) return this.#recover();
    let next = 0;
    const most = this.#probing ? 1 : this.options.maxInFlight;
    while (this.#flying.size < most && next < this.#queue.length) {
      const sending = this.#queue[next++] as Sending;
      if (sending.settled) continue;
      if (!sending.admitted && !this.admit(this)) {
        next--;
        break;
      }
      sending.admitted = true;
      this.#try(sending, this.#producerId);
    }
    if (next > 0) this.#queue.splice(0, next);
  }

  #try(sending: Sending, producerId: bigint): void {
    const message: StreamMessage = {
      requestId: sending.requestId,
      msgId: { producerId, topicName: this.options.topic, brokerAddr: this.#route.brokerUrl, topicOffset: 0n },
      payload: sending.payload,
      publishTime: sending.publishTime,
      producerName: this.options.name,
      subscriptionName: "",
      attributes: sending.attributes,
      schemaId: this.schema?.schemaId,
      schemaVersion: this.schema?.schemaVersion,
      routingKey: sending.key,
    };
    const timeoutMs = Math.min(30_000, sending.deadline - Date.now());
    this.#flying.add(sending);
    sending.flying = true;
    const landed = (): void => {
      this.#flying.delete(sending);
      sending.flying = false;
      if (this.#failure === undefined) {
        this.#attempts = 0;
        this.pump();
      } else if (this.#flying.size === 0) {
        this.#recover();
      }
    };
    const options = { timeoutMs, signal: sending.signal };
    this.connections.call(ProducerServiceDefinition, ProducerServiceDefinition.methods.sendMessage, message, this.#route.target, options).then(
      (answer) => {
        this.#probing = false;
        if (answer.requestId === sending.requestId) sending.resolve();
        else sending.reject(protocolError(`the answer is that of message ${answer.requestId}, not ${sending.requestId}`));
        landed();
      },
      (error: unknown) => {
        this.#missed(sending, asDanubeError(error));
        landed();
      },
    );
  }

  /** A try that failed: the message waits for the next one, or that was the last. */
  #missed(sending: Sending, error: DanubeError): void {
    if (error.outcome === "unknown") sending.maybeStored = true;
    // The original's answer to a producer that it knew before it started again
    const stranger = error.code === "PRODUCER_UNKNOWN" || error.code === "NOT_FOUND";
    if (stranger) sending.strangers++;
    const passes = stranger ? sending.strangers < MAX_STRANGERS : error.retryable && error.code !== "PROTOCOL_ERROR";
    if (sending.settled || this.#ended.signal.aborted) {
      if (passes && !THROTTLED.has(error.code)) this.#failure ??= error;
      return;
    }
    if (!passes || (sending.maybeStored && !this.options.resend)) {
      sending.reject(error);
      if (!passes) return;
    } else {
      this.#failed.push(sending);
      this.#watchDeadlines();
    }
    if (this.#failure === undefined || THROTTLED.has(this.#failure.code)) this.#failure = error;
  }

  /** Send again what failed, over a new session unless the broker is only busy. */
  #recover(): void {
    if (this.#recovering || this.#ended.signal.aborted) return;
    this.#recovering = this.#probing = true;
    this.#queue = [...this.#failed, ...this.#queue]
      .filter((each) => !each.settled)
      .sort((one, other) => one.sequence - other.sequence);
    this.#failed = [];
    this.#watchDeadlines();
    void this.#again().then(() => {
      this.#recovering = false;
      this.#failure = undefined;
      if (this.#queue.length > 0) this.pump();
    });
  }

  async #again(): Promise<void> {
    const signal = this.#ended.signal;
    try {
      for (let error = this.#failure; ; ) {
        if (error !== undefined) {
          const delayMs = backoff(++this.#attempts, error);
          this.events.emit("reconnecting", { ...this.#subject, attempt: this.#attempts, delayMs, error });
          await sleep(delayMs, signal);
          if (THROTTLED.has(error.code) && this.#producerId !== undefined) return;
        }
        this.#producerId = undefined;
        if (!this.#queue.some((each) => !each.settled)) return; // the next send tries again
        try {
          return await this.#create(signal);
        } catch (failure) {
          error = asDanubeError(failure);
          if (!error.retryable) throw error;
        }
      }
    } catch (failure) {
      const error = asDanubeError(failure);
      if (signal.aborted) return;
      this.events.emit("failed", { ...this.#subject, error });
      for (const sending of this.#queue) sending.reject(error);
      this.#queue = [];
    }
  }

  /** Reject what waits longer than its time. What is under way has the deadline of its call. */
  #watchDeadlines(): void {
    const first = this.#failed[0] ?? this.#queue[0];
    if (first === undefined || this.#ended.signal.aborted) return;
    if (this.#timer !== undefined) {
      if (first.deadline >= this.#timerAt) return;
      clearTimeout(this.#timer);
    }
    this.#timerAt = first.deadline;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      const now = Date.now();
      for (const sending of [...this.#queue, ...this.#failed]) {
        if (sending.deadline > now) continue;
        const why = this.#failure === undefined ? "" : `; last: ${this.#failure.code}: ${this.#failure.message}`;
        sending.reject(new DanubeError("DEADLINE_EXCEEDED", `no broker took the message in time${why}`, {
          retryable: true, cause: this.#failure,
        }));
      }
      this.#queue = this.#queue.filter((each) => !each.settled);
      this.#failed = this.#failed.filter((each) => !each.settled);
      this.#watchDeadlines();
    }, Math.max(1, first.deadline - Date.now() + 1));
  }
}
