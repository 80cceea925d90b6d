/** Events: what a client says about its connections. */

import { EventEmitter } from "node:events";

import { invalid, type DanubeError } from "./errors";

/** Whose state changed: a producer or consumer of a client, on one concrete topic. */
export interface Subject {
  readonly role: "producer" | "consumer";
  /** The name of the producer or consumer. */
  readonly name: string;
  /** The topic, or the partition, as the broker names it. */
  readonly topic: string;
}

/** The events of a client, each with its argument. */
export interface ClientEvents {
  /** A producer or consumer has its place at a broker, for the first time or again. */
  connected: Subject & { readonly address: string };
  /** It lost its place, and tries again after `delayMs`. */
  reconnecting: Subject & { readonly attempt: number; readonly delayMs: number; readonly error: DanubeError };
  /** It has given up: a consumer's loop ends with this error, a producer's waiting sends have been rejected with it. */
  failed: Subject & { readonly error: DanubeError };
  /** An acknowledgement could not be delivered; the message comes again. */
  ackFailed: Subject & { readonly offset: bigint; readonly error: DanubeError };
  /** The client is closed; nothing follows. */
  closed: undefined;
}

const NAMES = ["connected", "reconnecting", "failed", "ackFailed", "closed"];
type Listener<K extends keyof ClientEvents> = (event: ClientEvents[K]) => void;

/** Listeners by event. No event needs a listener. */
export class Events {
  readonly #emitter = new EventEmitter().setMaxListeners(0);

  on<K extends keyof ClientEvents>(event: K, listener: Listener<K>): () => void {
    if (!NAMES.includes(event)) throw invalid("event", event, `give one of ${NAMES.join(", ")}`);
    if (typeof listener !== "function") throw invalid("listener", listener, "give a function");
    this.#emitter.on(event, listener);
    return () => this.off(event, listener);
  }

  off<K extends keyof ClientEvents>(event: K, listener: Listener<K>): void {
    if (typeof listener === "function") this.#emitter.off(event, listener);
  }

  /** @internal Each in a microtask: what a listener throws is its program's uncaught exception, and the others are called. */
  emit<K extends keyof ClientEvents>(event: K, argument: ClientEvents[K]): void {
    queueMicrotask(() => {
      for (const each of this.#emitter.listeners(event)) queueMicrotask(() => each(argument));
    });
  }
}
