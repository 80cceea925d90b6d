// What the compiler has to accept, and what it has to refuse. Nothing of it runs.

import {
  DanubeClient, DanubeError, Message, type Consumer, type ConnectOptions, type Outcome, type Producer, type Schema,
} from "danube-client";

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(_: Same<A, B>): void {}

export async function usage(signal: AbortSignal): Promise<void> {
  await using client = await DanubeClient.connect(["https://a:6650"], {
    token: async () => "t", tls: { ca: Buffer.from("x"), cert: "y", key: "z" }, signal,
  });
  await using producer: Producer = await client.createProducer({
    topic: "t", partitions: 3, reliable: false, schema: { subject: "s", minVersion: 2 }, signal,
  });
  const id = await producer.send(new Uint8Array(1), { key: "k", attributes: { a: "b" }, signal });
  same<typeof id, bigint>(true);
  await using consumer: Consumer = await client.subscribe({ topic: "t", subscription: "s", type: "key_shared", keyFilters: ["*"] });
  for await (const message of consumer) {
    same<typeof message, Message>(true);
    same<typeof message.offset, bigint>(true);
    same<typeof message.key, string | undefined>(true);
    same<typeof message.partition, number | undefined>(true);
    same<typeof message.payload, Uint8Array>(true);
    same<typeof message.publishTime, Date>(true);
    same<typeof message.schemaId, bigint | undefined>(true);
    await message.nack({ delayMs: 5, reason: "busy" });
  }
  const next = await consumer.next({ signal });
  same<typeof next, Message | undefined>(true);
  await consumer.run(async (message) => void message.text(), { concurrency: 2, signal });
  const schema = await client.schemas.get("s", { version: 1 });
  same<typeof schema, Schema>(true);
  same<typeof schema.version, number>(true);
  client.on("reconnecting", (event) => same<typeof event.error, DanubeError>(true));
  client.on("closed", (event) => same<typeof event, undefined>(true));

  // @ts-expect-error payloads are bytes, text or null
  await producer.send({ a: 1 });
  // @ts-expect-error attributes are text by text
  await producer.send("x", { attributes: { a: 1 } });
  // @ts-expect-error no such type
  await client.subscribe({ topic: "t", subscription: "s", type: "key-shared" });
  // @ts-expect-error a subscription needs its name
  await client.subscribe({ topic: "t" });
  // @ts-expect-error no such event
  client.on("error", () => undefined);
  // @ts-expect-error clients come from connect
  new DanubeClient();
  // @ts-expect-error messages come from consumers
  new Message();
  // @ts-expect-error read-only
  producer.name = "x";
  // @ts-expect-error a number is no id
  await client.schemas.get(7);
}

export function failures(error: unknown): Outcome | undefined {
  if (!(error instanceof DanubeError)) return undefined;
  same<typeof error.code, string>(true);
  same<typeof error.retryable, boolean>(true);
  return error.outcome;
}

export const options: ConnectOptions = { apiKey: "k", connectTimeoutMs: 1 };
