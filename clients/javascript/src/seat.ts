/**
 * The seat of a producer or consumer at the broker that serves its concrete topic: where that is, and the calls to it.
 *
 * A look-up goes to any broker that answers: first to those that the program named. The official clients go on with the
 * address of the last look-up only, and find no other when that broker is gone for good.
 */

import type { CallOptions, Connections, Method, Service, Target } from "./connection";
import { DanubeError, protocolError } from "./errors";
import type { Events, Subject } from "./events";
import { DiscoveryDefinition, TopicLookupResponse_LookupType as LookupType } from "./generated/danube";
import { backoff, retrying, sleep } from "./waiting";

const LOOKUP_TIMEOUT_MS = 5_000;
// Answers that another broker would give as well; the call that follows meets the same, and says it better.
const ASK_NOBODY_ELSE = new Set(["UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "INVALID_NAME"]);

export abstract class Seat {
  readonly ended = new AbortController();
  /** The owner as the last look-up named it, for `msg_id.broker_addr`. */
  protected brokerUrl = "";
  protected target: Target;

  constructor(
    protected readonly connections: Connections,
    protected readonly events: Events,
    protected readonly subject: Subject,
  ) {
    this.target = { address: connections.services[0] as string, brokerUrl: undefined };
  }

  /** Take the place at the topic's owner, for the first time. */
  async open(deadline: number, signal: AbortSignal | undefined): Promise<void> {
    const signals = [signal, this.ended.signal, this.connections.ended.signal];
    await retrying(() => this.enter(signal), deadline, signals, (error, attempt, delayMs) =>
      this.events.emit("reconnecting", { ...this.subject, attempt, delayMs, error }));
  }

  /** Look the owner up, and take the place there. */
  protected abstract enter(signal: AbortSignal | undefined): Promise<void>;

  protected call<Q, A>(service: Service, method: Method<Q, A>, request: Q, options: CallOptions): Promise<A> {
    return this.connections.call(service, method, request, this.target, options);
  }

  protected connected(): void { this.events.emit("connected", { ...this.subject, address: this.target.address }); }

  /** Wait before the next attempt. Rejects when this has ended. */
  protected async delay(attempt: number, error: DanubeError): Promise<void> {
    const delayMs = backoff(attempt, error);
    this.events.emit("reconnecting", { ...this.subject, attempt, delayMs, error });
    await sleep(delayMs, this.ended.signal);
  }

  /** Look the owner up. A topic that no broker has is made, or missed, where the look-up was answered. Rejects if no broker answers. */
  protected async locate(signal: AbortSignal | undefined): Promise<void> {
    let failure: DanubeError | undefined;
    for (const address of new Set([...this.connections.services, this.target.address])) {
      const here: Target = { address, brokerUrl: undefined };
      try {
        this.target = await this.#ask(here, signal);
        return;
      } catch (error) {
        if (!(error instanceof DanubeError) || error.code === "CANCELLED" || error.code === "CLOSED") throw error;
        if (ASK_NOBODY_ELSE.has(error.code) || error.code.endsWith("NOT_FOUND")) {
          this.target = here;
          return;
        }
        failure = error;
      }
    }
    throw failure as DanubeError;
  }

  async #ask(here: Target, signal: AbortSignal | undefined): Promise<Target> {
    const request = { requestId: 0n, topic: this.subject.topic };
    const options = { timeoutMs: LOOKUP_TIMEOUT_MS, signal };
    const answer = await this.connections.call(DiscoveryDefinition, DiscoveryDefinition.methods.topicLookup, request, here, options);
    const address = this.connections.addressOf(answer.connectUrl);
    const known = answer.responseType === LookupType.Connect || answer.responseType === LookupType.Redirect;
    if (!known || address === undefined) {
      throw protocolError(`the look-up of ${request.topic} at ${here.address} named no broker: ${answer.connectUrl}`);
    }
    // gRPC metadata is printable ASCII; anything else is no URL
    this.brokerUrl = answer.brokerUrl;
    const proxied = answer.proxy && /^[\x21-\x7e]{1,2000}$/.test(answer.brokerUrl);
    return { address, brokerUrl: proxied ? answer.brokerUrl : undefined };
  }
}
