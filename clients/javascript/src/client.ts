/** The client: one object for all connections to a cluster. */

import { Connections } from "./connection";
import { Consumer } from "./consumer";
import { closed, DanubeError } from "./errors";
import { Events, type ClientEvents } from "./events";
import { HealthCheckRequest_ClientType as ClientType, HealthCheckDefinition } from "./generated/danube";
import { closing, object, whole, type CloseOptions, type ConnectOptions, type ProducerOptions, type SubscribeOptions } from "./options";
import { Producer } from "./producer";
import { Schemas } from "./schemas";

const MAX_MS = 86_400_000;
const FIRST_TRY_MS = 5_000; // another address may answer

/** A client of a Danube cluster. */
export class DanubeClient {
  /** The schema registry. */
  readonly schemas: Schemas;
  readonly #connections: Connections;
  readonly #events = new Events();
  readonly #opened = new Set<Producer | Consumer>();
  readonly #opening = new Set<Promise<unknown>>();
  #closing: Promise<void> | undefined;

  private constructor(connections: Connections) {
    this.#connections = connections;
    this.schemas = new Schemas(connections);
  }

  /**
   * Connect. One address of a cluster is enough, several serve while some are down.
   *
   * @param url `http://host:port`, or `https://` for TLS; also `danube://a:6650,b:6650`.
   */
  static async connect(url: string | readonly string[], options: ConnectOptions = {}): Promise<DanubeClient> {
    object("options", options, "token apiKey tls connectTimeoutMs requestTimeoutMs signal");
    const timeoutMs = whole("connectTimeoutMs", options.connectTimeoutMs, 1, MAX_MS, 10_000);
    const requestTimeoutMs = whole("requestTimeoutMs", options.requestTimeoutMs, 1, MAX_MS, 30_000);
    const connections = new Connections(url, options, requestTimeoutMs);
    try {
      await firstAnswer(connections, timeoutMs, options.signal);
    } catch (error) {
      connections.close();
      throw error;
    }
    return new DanubeClient(connections);
  }

  /** Enter a producer. A topic that does not exist is made, where the broker allows it. */
  createProducer(options: ProducerOptions): Promise<Producer> {
    return this.#open((forget) => Producer.open(this.#connections, this.#events, this.schemas, options, forget));
  }

  /** Enter a consumer. A new subscription begins at the end of the topic, which has to exist. */
  subscribe(options: SubscribeOptions): Promise<Consumer> {
    return this.#open((forget) => Consumer.open(this.#connections, this.#events, options, forget));
  }

  /** Call `listener` at each such event. Returns a function that ends that. */
  on<K extends keyof ClientEvents>(event: K, listener: (event: ClientEvents[K]) => void): () => void {
    return this.#events.on(event, listener);
  }

  /** Do not call `listener` any more. */
  off<K extends keyof ClientEvents>(event: K, listener: (event: ClientEvents[K]) => void): void {
    this.#events.off(event, listener);
  }

  /** Close producers and consumers, each waiting for what is under way, then the connections. */
  close(options: CloseOptions = {}): Promise<void> {
    return this.#closing ?? closing(options, (timeoutMs) => (this.#closing = this.#close(timeoutMs)));
  }

  async [Symbol.asyncDispose](): Promise<void> { await this.close(); }

  async #close(timeoutMs: number): Promise<void> {
    await Promise.all([...this.#opened].map((each) => each.close({ timeoutMs })));
    this.#connections.close();
    await Promise.allSettled(this.#opening);
    this.#events.emit("closed", undefined);
  }

  async #open<T extends Producer | Consumer>(make: (forget: (made: Producer | Consumer) => void) => Promise<T>): Promise<T> {
    if (this.#closing !== undefined) throw closed("the client");
    const opening = make((made) => this.#opened.delete(made));
    this.#opening.add(opening);
    try {
      const made = await opening;
      if (this.#closing !== undefined) {
        await made.close({ timeoutMs: 0 });
        throw closed("the client");
      }
      this.#opened.add(made);
      return made;
    } finally {
      this.#opening.delete(opening);
    }
  }
}

/** Wait for any broker to answer: that it is there, and that it takes the credential. */
async function firstAnswer(connections: Connections, timeoutMs: number, signal: AbortSignal | undefined): Promise<void> {
  const request = { requestId: 0n, client: ClientType.Producer, id: 0n };
  const { healthCheck } = HealthCheckDefinition.methods;
  try {
    await connections.anywhere(HealthCheckDefinition, healthCheck, request, Date.now() + timeoutMs, signal, Math.min(FIRST_TRY_MS, timeoutMs));
  } catch (error) {
    // a broker that has no health check is there nevertheless
    if (!(error instanceof DanubeError) || error.code !== "UNIMPLEMENTED") throw error;
  }
}
