/**
 * A consumer on one concrete topic: it looks the owner up, subscribes, reads the stream, and begins again when that ends.
 *
 * It always subscribes anew, which takes its former place and id, whatever ended the stream: a broker that was restarted, a
 * topic that has moved, a connection that broke. The official clients go on with the old id in some of these cases, and are
 * then served nothing.
 */

import type { Connections } from "./connection";
import { asDanubeError, closed, DanubeError, protocolError } from "./errors";
import type { Events, Subject } from "./events";
import {
  ConsumerRequest_SubscriptionType as WireType, ConsumerServiceDefinition, HealthCheckRequest_ClientType as ClientType,
  HealthCheckResponse_ClientStatus as ClientStatus, HealthCheckDefinition, type MsgID, type StreamMessage,
} from "./generated/danube";
import type { Cancellable, NackOptions } from "./options";
import { Route } from "./route";
import { unavailable, type Call } from "./transport";
import { backoff, deferred, retrying, sleep } from "./waiting";

const ACK_TIMEOUT_MS = 30_000; // the default after which a broker delivers again
const HEALTH_TIMEOUT_MS = 4_000;
// A stream that lived so long was no failure of its place: the next delay is the first one's again.
const STEADY_MS = 5_000;
// A topic that is not there may be between two brokers, or about to be made again.
const MISSING_MS = 60_000;

export interface StreamOptions {
  readonly topic: string;
  readonly subscription: string;
  readonly type: WireType;
  readonly name: string;
  readonly keyFilters: string[];
}

/** Whom a stream delivers to. */
export interface Sink {
  /** Take a message. Where there is no room for more, the sink has paused its streams. */
  take(message: StreamMessage, from: TopicStream): void;
  /** What is not taken by the program yet comes again. */
  lost(from: TopicStream): void;
  failed(error: DanubeError): void;
}

export class TopicStream {
  readonly topic: string;
  readonly #route: Route;
  readonly #subject: Subject;
  readonly #ended = new AbortController();
  #consumerId = 0n;
  #call: Call | undefined;
  #missingSince: number | undefined;

  constructor(
    private readonly connections: Connections,
    private readonly events: Events,
    private readonly options: StreamOptions,
    private readonly sink: Sink,
  ) {
    this.topic = options.topic;
    this.#route = new Route(connections, options.topic);
    this.#subject = { role: "consumer", name: options.name, topic: options.topic };
  }

  /** Subscribe, for the first time. */
  async open(deadline: number, signal: AbortSignal | undefined): Promise<void> {
    await retrying(() => this.#subscribe(signal), deadline, signal, (error, attempt, delayMs) =>
      this.events.emit("reconnecting", { ...this.#subject, attempt, delayMs, error }));
  }

  /** Receive until `close`, or until there is no way on. Never rejects. */
  async run(): Promise<void> {
    const signal = this.#ended.signal;
    let subscribed = true;
    for (let attempt = 0; !signal.aborted; ) {
      const begun = Date.now();
      let error: DanubeError;
      try {
        if (!subscribed) await this.#subscribe(signal);
        subscribed = false;
        error = await this.#receive();
      } catch (failure) {
        error = asDanubeError(failure);
      }
      if (signal.aborted) return;
      this.sink.lost(this);
      if (Date.now() - begun >= STEADY_MS) attempt = 0;
      if (!this.#mayPass(error)) {
        this.events.emit("failed", { ...this.#subject, error });
        return this.sink.failed(error);
      }
      const delayMs = backoff(++attempt, error);
      this.events.emit("reconnecting", { ...this.#subject, attempt, delayMs, error });
      await sleep(delayMs, signal).catch(() => undefined);
    }
  }

  pause(): void {
    this.#call?.pause();
  }

  resume(): void {
    this.#call?.resume();
  }

  close(): void {
    this.#ended.abort();
    this.#call?.cancel(closed("the consumer"));
  }

  /** Ask whether the broker still serves this consumer; where not, end the stream and begin again. */
  async checkHealth(): Promise<void> {
    const call = this.#call;
    if (call === undefined) return;
    const request = { requestId: 0n, client: ClientType.Consumer, id: this.#consumerId };
    const options = { timeoutMs: HEALTH_TIMEOUT_MS, signal: this.#ended.signal };
    try {
      const answer = await this.connections.call(HealthCheckDefinition, HealthCheckDefinition.methods.healthCheck, request, this.#route.target, options);
      if (answer.status === ClientStatus.CLOSE) call.cancel(unavailable("the broker serves this consumer no more", "refused"));
    } catch {
      // No answer is no reason: where the connection is gone the stream ends by itself.
    }
  }

  async ack(message: StreamMessage, options: Cancellable): Promise<void> {
    const request = { requestId: message.requestId, msgId: message.msgId, subscriptionName: this.options.subscription };
    await this.#answer(message.msgId, options.signal, () =>
      this.connections.call(ConsumerServiceDefinition, ConsumerServiceDefinition.methods.ack, request, this.#route.target, options));
  }

  async nack(message: StreamMessage, options: NackOptions): Promise<void> {
    const request = {
      requestId: message.requestId,
      msgId: message.msgId,
      subscriptionName: this.options.subscription,
      delayMs: options.delayMs === undefined ? undefined : BigInt(options.delayMs),
      reason: options.reason,
    };
    await this.#answer(message.msgId, options.signal, () =>
      this.connections.call(ConsumerServiceDefinition, ConsumerServiceDefinition.methods.nack, request, this.#route.target, options));
  }

  async #answer(id: MsgID | undefined, signal: AbortSignal | undefined, send: () => Promise<unknown>): Promise<void> {
    try {
      await retrying(send, Date.now() + ACK_TIMEOUT_MS, signal);
    } catch (failure) {
      const error = asDanubeError(failure);
      this.events.emit("ackFailed", { ...this.#subject, offset: id?.topicOffset ?? 0n, error });
      throw error;
    }
  }

  async #subscribe(signal: AbortSignal | undefined): Promise<void> {
    await this.#route.locate(signal);
    const answer = await this.connections.call(
      ConsumerServiceDefinition, ConsumerServiceDefinition.methods.subscribe,
      {
        requestId: 0n,
        topicName: this.topic,
        consumerName: this.options.name,
        subscription: this.options.subscription,
        subscriptionType: this.options.type,
        keyFilters: this.options.keyFilters,
      },
      this.#route.target,
      { signal },
    );
    this.#consumerId = answer.consumerId;
  }

  /** Read one stream to its end; resolves with its reason. */
  async #receive(): Promise<DanubeError> {
    const request = { requestId: 0n, consumerId: this.#consumerId };
    const { promise, resolve } = deferred<DanubeError>();
    const call = await this.connections.stream(ConsumerServiceDefinition, ConsumerServiceDefinition.methods.receiveMessages, request, this.#route.target, {
      begun: () => {
        this.#missingSince = undefined;
        this.events.emit("connected", { ...this.#subject, address: this.#route.target.address });
      },
      message: (message, from) => {
        if (message.msgId === undefined) from.cancel(protocolError(`a message of ${this.topic} came without its id`));
        else this.sink.take(message, this);
      },
      ended: (error) => resolve(error ?? unavailable("the broker ended the stream", "refused")),
    });
    if (this.#ended.signal.aborted) call.cancel(closed("the consumer"));
    else this.#call = call;
    return await promise.finally(() => (this.#call = undefined));
  }

  #mayPass(error: DanubeError): boolean {
    if (!error.code.endsWith("NOT_FOUND")) {
      // A stream has no effect that a retry could double: what broke on the way may come whole the next time.
      return error.retryable || error.code === "INTERNAL" || error.code === "UNKNOWN";
    }
    this.#missingSince ??= Date.now();
    return Date.now() - this.#missingSince < MISSING_MS;
  }
}
