/**
 * A consumer on one concrete topic: it looks the owner up, subscribes, reads the stream, and begins again when that ends.
 *
 * It always subscribes anew, which takes its former place and id, whatever ended the stream: a broker that was restarted, a
 * topic that has moved, a connection that broke. The official clients go on with the old id in some of these cases, and are
 * then served nothing.
 */

import type { Connections } from "./connection";
import { asDanubeError, closed, DanubeError, invalid, protocolError } from "./errors";
import type { Events } from "./events";
import {
  ConsumerRequest_SubscriptionType as WireType, ConsumerServiceDefinition, HealthCheckRequest_ClientType as ClientType,
  HealthCheckResponse_ClientStatus as ClientStatus, HealthCheckDefinition, type StreamMessage,
} from "./generated/danube";
import { object, whole, type NackOptions } from "./options";
import { Seat } from "./seat";
import { unavailable, type Call } from "./transport";
import { retrying } from "./waiting";

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

export class TopicStream extends Seat {
  readonly topic: string;
  #consumerId = 0n;
  #call: Call | undefined;
  #missingSince: number | undefined;

  constructor(
    connections: Connections,
    events: Events,
    private readonly options: StreamOptions,
    private readonly sink: Sink,
  ) {
    super(connections, events, { role: "consumer", name: options.name, topic: options.topic });
    this.topic = options.topic;
  }

  /** Receive until `close`, or until there is no way on. Never rejects. */
  async run(): Promise<void> {
    const signal = this.ended.signal;
    let subscribed = true;
    for (let attempt = 0; !signal.aborted; ) {
      const begun = Date.now();
      let error: DanubeError;
      try {
        if (!subscribed) await this.enter(signal);
        subscribed = false;
        error = await this.#receive();
      } catch (failure) {
        error = asDanubeError(failure);
      }
      if (signal.aborted) return;
      this.sink.lost(this);
      if (Date.now() - begun >= STEADY_MS) attempt = 0;
      if (!this.#mayPass(error)) {
        this.events.emit("failed", { ...this.subject, error });
        return this.sink.failed(error);
      }
      await this.delay(++attempt, error).catch(() => undefined);
    }
  }

  pause(): void { this.#call?.pause(); }
  resume(): void { this.#call?.resume(); }

  close(): void {
    this.ended.abort(closed("the consumer"));
    this.#call?.cancel(closed("the consumer"));
  }

  /** Ask whether the broker still serves this consumer; where not, end the stream and begin again. */
  async checkHealth(): Promise<void> {
    const call = this.#call;
    if (call === undefined) return;
    const request = { requestId: 0n, client: ClientType.Consumer, id: this.#consumerId };
    const options = { timeoutMs: HEALTH_TIMEOUT_MS, signal: this.ended.signal };
    try {
      const answer = await this.call(HealthCheckDefinition, HealthCheckDefinition.methods.healthCheck, request, options);
      if (answer.status === ClientStatus.CLOSE) call.cancel(unavailable("the broker serves this consumer no more", "refused"));
    } catch {
      // No answer is no reason: where the connection is gone the stream ends by itself.
    }
  }

  /** Send the answer to a message, again for a while if the connection is lost. */
  async answer(kind: "ack" | "nack", message: StreamMessage, options: NackOptions): Promise<void> {
    if (this.ended.signal.aborted) throw closed("the consumer");
    const { requestId, msgId } = message;
    const ack = { requestId, msgId, subscriptionName: this.options.subscription };
    const methods = ConsumerServiceDefinition.methods;
    try {
      object("options", options, kind === "ack" ? "signal" : "delayMs reason signal");
      const { reason, signal } = options;
      const delayMs = whole("delayMs", options.delayMs, 0, Number.MAX_SAFE_INTEGER, undefined);
      if (reason !== undefined && typeof reason !== "string") throw invalid("reason", reason, "give a text");
      const nack = { ...ack, delayMs: delayMs === undefined ? undefined : BigInt(delayMs), reason };
      const send = (): Promise<unknown> => kind === "ack"
        ? this.call(ConsumerServiceDefinition, methods.ack, ack, { signal })
        : this.call(ConsumerServiceDefinition, methods.nack, nack, { signal });
      await retrying(send, Date.now() + ACK_TIMEOUT_MS, [signal, this.ended.signal]);
    } catch (failure) {
      const error = asDanubeError(failure);
      this.events.emit("ackFailed", { ...this.subject, offset: msgId?.topicOffset ?? 0n, error });
      throw error;
    }
  }

  protected override async enter(signal: AbortSignal | undefined): Promise<void> {
    await this.locate(signal);
    const answer = await this.call(
      ConsumerServiceDefinition, ConsumerServiceDefinition.methods.subscribe,
      {
        requestId: 0n,
        topicName: this.topic,
        consumerName: this.options.name,
        subscription: this.options.subscription,
        subscriptionType: this.options.type,
        keyFilters: this.options.keyFilters,
      },
      { signal },
    );
    this.#consumerId = answer.consumerId;
  }

  /** Read one stream to its end; resolves with its reason. */
  async #receive(): Promise<DanubeError> {
    const request = { requestId: 0n, consumerId: this.#consumerId };
    const { receiveMessages } = ConsumerServiceDefinition.methods;
    return await new Promise<DanubeError>((resolve, reject) => {
      const begun = this.connections.stream(ConsumerServiceDefinition, receiveMessages, request, this.target, this.ended.signal, {
        decode: (bytes) => receiveMessages.responseType.decode(bytes),
        begun: () => {
          this.#missingSince = undefined;
          this.connected();
        },
        message: (message, from) => {
          if (message.msgId === undefined) from.cancel(protocolError(`a message of ${this.topic} came without its id`));
          else this.sink.take(message, this);
        },
        ended: (error) => resolve(error ?? unavailable("the broker ended the stream", "refused")),
      });
      begun.then((call) => {
        if (this.ended.signal.aborted) call.cancel(closed("the consumer"));
        else this.#call = call;
      }, reject);
    }).finally(() => (this.#call = undefined));
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
