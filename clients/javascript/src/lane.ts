/**
 * A producer on one concrete topic: its session with the broker, and the messages under way there.
 *
 * Messages leave in the order of their sends, up to `maxInFlight` at a time. When one fails in a way that may pass, no more
 * leave; once the others under way are settled, the failed ones leave again, in their order and before newer ones, over a new
 * session if need be. Each message is settled once, by whichever comes first: an answer, its deadline, its signal, `close`.
 */

import type { Connections } from "./connection";
import { asDanubeError, cancelled, DanubeError, protocolError, type Outcome } from "./errors";
import type { Events } from "./events";
import {
  DispatchStrategy, ProducerAccessMode, ProducerServiceDefinition, type SchemaReference, type StreamMessage,
} from "./generated/danube";
import { Seat } from "./seat";
import { check, watch, withOutcome } from "./waiting";

/** One message between `send` and its settlement. */
export class Sending {
  settled = false;
  /** A try ended without an answer: the message may be stored. */
  maybeStored = false;
  /** It has one of its producer's `maxPending` places. */
  admitted = false;
  /** Tries that ended because the broker did not know the session. */
  strangers = 0;
  /** Whether a try is under way. */
  flying = false;
  timer: NodeJS.Timeout | undefined;
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

  /** @param unknown whether the try under way may still have an effect. */
  reject(error: DanubeError, unknown = false): void {
    const outcome: Outcome = unknown || this.maybeStored ? "unknown" : error.outcome;
    this.settle(outcome === error.outcome ? error : withOutcome(error, outcome));
  }

  /** Without an error it is acknowledged. */
  settle(error?: DanubeError): void {
    if (this.settled) return;
    this.settled = true;
    this.unwatch();
    clearTimeout(this.timer);
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
export type SchemaIds = Pick<StreamMessage, "schemaId" | "schemaVersion">;

const THROTTLED = new Set(["OVERLOADED", "RATE_LIMITED", "QUOTA_EXCEEDED", "LIMIT_REACHED", "RESOURCE_EXHAUSTED"]);
const MAX_STRANGERS = 3;

export class Lane extends Seat {
  schema: SchemaIds | undefined;
  #queue: Sending[] = [];
  readonly #flying = new Set<Sending>();
  #producerId: bigint | undefined;
  #recovering = false;
  // After a failure the first message goes alone: were it refused again, those behind it would be stored before it.
  #probing = false;
  #failure: DanubeError | undefined;
  #attempts = 0;

  constructor(
    connections: Connections,
    events: Events,
    private readonly options: LaneOptions,
    private readonly admit: (lane: Lane) => boolean,
  ) {
    super(connections, events, { role: "producer", name: options.name, topic: options.topic });
  }

  get inFlight(): number { return this.#flying.size; }

  send(sending: Sending): void {
    this.#queue.push(sending);
    this.pump();
    if (!sending.flying) this.#watchDeadline(sending);
  }

  /** Reject what is not settled, and end. */
  close(error: DanubeError): void {
    this.ended.abort(error);
    for (const sending of [...this.#queue, ...this.#flying]) sending.reject(error, sending.flying);
    this.#queue = [];
  }

  /** Enter the producer; the topic is made if need be. */
  protected override async enter(signal: AbortSignal | undefined): Promise<void> {
    await this.locate(signal);
    const answer = await this.call(
      ProducerServiceDefinition, ProducerServiceDefinition.methods.createProducer,
      {
        requestId: 0n,
        producerName: this.options.name,
        topicName: this.options.topic,
        schemaRef: this.options.schemaRef,
        producerAccessMode: ProducerAccessMode.Shared,
        dispatchStrategy: this.options.reliable ? DispatchStrategy.Reliable : DispatchStrategy.NonReliable,
      },
      { signal },
    );
    check(signal);
    this.#producerId = answer.producerId;
    this.connected();
  }

  /** Let messages leave, as far as there is room. */
  pump(): void {
    if (this.#recovering || this.#failure !== undefined || this.ended.signal.aborted) return;
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
      msgId: { producerId, topicName: this.options.topic, brokerAddr: this.brokerUrl, topicOffset: 0n },
      payload: sending.payload,
      publishTime: sending.publishTime,
      producerName: this.options.name,
      subscriptionName: "",
      attributes: sending.attributes,
      schemaId: this.schema?.schemaId,
      schemaVersion: this.schema?.schemaVersion,
      routingKey: sending.key,
    };
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
    const options = { timeoutMs: sending.deadline - Date.now(), signal: sending.signal };
    this.call(ProducerServiceDefinition, ProducerServiceDefinition.methods.sendMessage, message, options).then(
      (answer) => {
        this.#probing = false;
        if (answer.requestId === sending.requestId) sending.settle();
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
    if (sending.settled || this.ended.signal.aborted) {
      if (passes && !THROTTLED.has(error.code)) this.#failure ??= error;
      return;
    }
    if (!passes || (sending.maybeStored && !this.options.resend)) {
      sending.reject(error);
      if (!passes) return;
    } else {
      this.#queue.push(sending);
      this.#watchDeadline(sending);
    }
    if (this.#failure === undefined || THROTTLED.has(this.#failure.code)) this.#failure = error;
  }

  /** Send again what failed, over a new session unless the broker is only busy. */
  #recover(): void {
    if (this.#recovering || this.ended.signal.aborted) return;
    this.#recovering = this.#probing = true;
    this.#queue.sort((one, other) => Number(one.requestId - other.requestId));
    void this.#again().then(() => {
      this.#recovering = false;
      this.#failure = undefined;
      if (this.#queue.length > 0) this.pump();
    });
  }

  async #again(): Promise<void> {
    const signal = this.ended.signal;
    try {
      for (let error = this.#failure; ; ) {
        if (error !== undefined) {
          await this.delay(++this.#attempts, error);
          if (THROTTLED.has(error.code) && this.#producerId !== undefined) return;
        }
        this.#producerId = undefined;
        this.#queue = this.#queue.filter((each) => !each.settled);
        if (this.#queue.length === 0) return; // the next send tries again
        try {
          return await this.enter(signal);
        } catch (failure) {
          error = asDanubeError(failure);
          if (!error.retryable) throw error;
        }
      }
    } catch (failure) {
      const error = asDanubeError(failure);
      if (signal.aborted) return;
      this.events.emit("failed", { ...this.subject, error });
      for (const sending of this.#queue) sending.reject(withOutcome(error, "refused"));
      this.#queue = [];
    }
  }

  /** Reject what waits longer than its time. A try has the deadline of its call. */
  #watchDeadline(sending: Sending): void {
    sending.timer ??= setTimeout(() => {
      const why = this.#failure === undefined ? "" : `; last: ${this.#failure.code}: ${this.#failure.message}`;
      const message = `no broker took the message in time${why}`;
      sending.reject(new DanubeError("DEADLINE_EXCEEDED", message, { retryable: true, cause: this.#failure }), sending.flying);
    }, sending.deadline - Date.now());
  }
}
