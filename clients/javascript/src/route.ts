/**
 * Where a concrete topic is served.
 *
 * A look-up goes to any broker that answers: first to those that the program named. The official clients go on with the
 * address of the last look-up only, and find no other when that broker is gone for good.
 */

import type { Connections, Target } from "./connection";
import { DanubeError, protocolError } from "./errors";
import { DiscoveryDefinition, TopicLookupResponse_LookupType as LookupType } from "./generated/danube";

const LOOKUP_TIMEOUT_MS = 5_000;
// Answers that another broker would give as well; the call that follows meets the same, and says it better.
const ASK_NOBODY_ELSE = new Set(["UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "INVALID_NAME"]);

export class Route {
  #target: Target;
  #brokerUrl = "";

  constructor(
    private readonly connections: Connections,
    private readonly topic: string,
  ) {
    this.#target = { address: connections.services[0] as string, brokerUrl: undefined };
  }

  get target(): Target {
    return this.#target;
  }

  /** The owner as the last look-up named it, for `msg_id.broker_addr`. */
  get brokerUrl(): string {
    return this.#brokerUrl;
  }

  /** Look the owner up. A topic that no broker has is made, or missed, where the look-up was answered. Rejects if no broker answers. */
  async locate(signal: AbortSignal | undefined): Promise<void> {
    let failure: DanubeError | undefined;
    for (const address of new Set([...this.connections.services, this.#target.address])) {
      const here: Target = { address, brokerUrl: undefined };
      try {
        this.#target = await this.#ask(here, signal);
        return;
      } catch (error) {
        if (!(error instanceof DanubeError) || error.code === "CANCELLED" || error.code === "CLOSED") throw error;
        if (ASK_NOBODY_ELSE.has(error.code) || error.code.endsWith("NOT_FOUND")) {
          this.#target = here;
          return;
        }
        failure = error;
      }
    }
    throw failure as DanubeError;
  }

  async #ask(here: Target, signal: AbortSignal | undefined): Promise<Target> {
    const request = { requestId: 0n, topic: this.topic };
    const options = { timeoutMs: LOOKUP_TIMEOUT_MS, signal };
    const answer = await this.connections.call(DiscoveryDefinition, DiscoveryDefinition.methods.topicLookup, request, here, options);
    const address = this.connections.addressOf(answer.connectUrl);
    const known = answer.responseType === LookupType.Connect || answer.responseType === LookupType.Redirect;
    if (!known || address === undefined) {
      throw protocolError(`the look-up of ${this.topic} at ${here.address} named no broker: ${answer.connectUrl}`);
    }
    // gRPC metadata is printable ASCII; anything else is no URL
    this.#brokerUrl = answer.brokerUrl;
    const proxied = answer.proxy && /^[\x21-\x7e]{1,2000}$/.test(answer.brokerUrl);
    return { address, brokerUrl: proxied ? answer.brokerUrl : undefined };
  }
}
