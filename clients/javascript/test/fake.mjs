// A broker of this test's making: it answers as it is told, also in ways that no broker would.

import grpc from "@grpc/grpc-js";
import * as wire from "../dist/generated/danube.js";

import { DanubeClient } from "danube-client";

export { grpc, wire };

const OK = 0;
const SERVICES = [
  wire.ProducerServiceDefinition, wire.ConsumerServiceDefinition, wire.DiscoveryDefinition, wire.HealthCheckDefinition,
  wire.AuthServiceDefinition,
];

/** A method, as a server of grpc-js has it. Bytes go out as they are, whatever the method's type. */
const served = (service, { name, requestType, responseType, responseStream }) => ({
  path: `/${service.fullName}/${name}`,
  requestStream: false,
  responseStream,
  requestDeserialize: (bytes) => requestType.decode(bytes),
  responseSerialize: (answer) => (Buffer.isBuffer(answer) ? answer : Buffer.from(responseType.encode(answer).finish())),
});

export const failure = (code, details = "", metadata = new grpc.Metadata()) => Object.assign(new Error(details), { code, details, metadata });

/** As a broker of ours says it: with the whole error beside the text. */
export function refusal(code, error) {
  const metadata = new grpc.Metadata();
  metadata.set("danube-error-bin", Buffer.from(JSON.stringify(error)));
  return failure(code, `${error.code}: ${error.message ?? ""}`, metadata);
}

export class FakeBroker {
  /** What each method answers: `(request, call) => answer`, thrown errors are statuses. Replace at will. */
  answers = {
    createProducer: ({ requestId, producerName }) => ({ requestId, producerId: 7n, producerName }),
    sendMessage: ({ requestId }) => ({ requestId }),
    subscribe: ({ requestId, consumerName }) => ({ requestId, consumerId: 9n, consumerName }),
    ack: ({ requestId }) => ({ requestId }),
    nack: ({ requestId }) => ({ requestId }),
    topicLookup: () => ({ requestId: 0n, responseType: 1, connectUrl: this.url, brokerUrl: this.url, proxy: false }),
    topicPartitions: ({ requestId, topic }) => ({ requestId, partitions: [topic] }),
    healthCheck: () => ({ status: OK }),
    authenticate: ({ apiKey }) => ({ token: `token-of-${apiKey}` }),
  };
  /** What a stream does: `(call, request)`; it stays open unless that ends it. */
  streaming = () => undefined;
  /** Every call: `{ method, request, metadata }`. */
  calls = [];

  async start(credentials = grpc.ServerCredentials.createInsecure(), port = 0) {
    this.server = new grpc.Server({ "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 });
    for (const service of SERVICES) {
      const handlers = {};
      const definition = {};
      for (const [method, each] of Object.entries(service.methods)) {
        definition[method] = served(service, each);
        handlers[method] = each.responseStream
          ? (call) => {
              this.#note(method, call);
              call.on("error", () => undefined);
              call.sendMetadata(new grpc.Metadata());
              this.streaming(call, call.request);
            }
          : async (call, callback) => {
              this.#note(method, call);
              try {
                callback(null, await this.answers[method](call.request, call));
              } catch (error) {
                callback(error);
              }
            };
      }
      this.server.addService(definition, handlers);
    }
    this.port = await new Promise((resolve, reject) => {
      this.server.bindAsync(`127.0.0.1:${port}`, credentials, (error, bound) => (error ? reject(error) : resolve(bound)));
    });
    this.url = `http://127.0.0.1:${this.port}`;
    return this;
  }

  #note(method, call) {
    this.calls.push({ method, request: call.request, metadata: call.metadata });
  }

  count(method) {
    return this.calls.filter((each) => each.method === method).length;
  }

  stop() {
    this.server.forceShutdown();
  }
}

/** A message as it is delivered. */
export const delivered = (topic, offset, more = {}) => ({
  requestId: 1n,
  msgId: { producerId: 7n, topicName: topic, brokerAddr: "", topicOffset: BigInt(offset) },
  payload: Buffer.from(`m${offset}`),
  publishTime: 1_700_000_000_000n,
  producerName: "p",
  subscriptionName: "",
  attributes: new Map(),
  schemaId: undefined,
  schemaVersion: undefined,
  routingKey: undefined,
  ...more,
});

/** A broker and a client of it, both gone at the end of the test. */
export async function pair(t, options = {}) {
  const broker = await new FakeBroker().start();
  const client = await DanubeClient.connect(broker.url, options);
  t.after(async () => {
    await client.close({ timeoutMs: 0 });
    broker.stop();
  });
  return { broker, client };
}

/** Wait until it holds; nothing announces it. */
export async function until(holds, ms = 30_000) {
  const end = Date.now() + ms;
  while (!holds()) {
    if (Date.now() > end) throw new Error(`it did not happen within ${ms} ms: ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
