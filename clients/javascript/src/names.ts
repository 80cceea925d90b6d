/** Names of topics and partitions, and the choice of a partition by key. */

import { invalid } from "./errors";

const PART = /^(.*)-part-(\d{1,9})$/s;
const NAME = /^\/[\p{L}\p{N}_-]+\/[\p{L}\p{N}_-]+$/u;

/** @internal `orders`, `default/orders` and `/default/orders` are one topic; the last is how it is written. */
export function topicName(topic: unknown): string {
  if (typeof topic !== "string") throw invalid("topic", topic, "give a name such as /default/orders");
  const parts = topic.replace(/^\//, "").split("/");
  const name = parts.length === 1 ? `/default/${parts[0]}` : `/${parts.join("/")}`;
  if (name.length > 1_000 || !NAME.test(name)) {
    throw invalid("topic", topic, "write /namespace/topic, of letters, digits, _ and - only");
  }
  return name;
}

/** @internal The index of a partition's topic; undefined of a topic without partitions. */
export function partitionIndex(topic: string): number | undefined {
  const found = PART.exec(topic);
  return found ? Number(found[2]) : undefined;
}

/** @internal The partitions among a topic's concrete topics, by index; undefined where they are not 0, 1, 2, … */
export function partitionCount(topic: string, concrete: readonly string[]): number | undefined {
  const wanted = new Set(concrete);
  for (let index = 0; index < concrete.length; index++) {
    if (!wanted.has(`${topic}-part-${index}`)) return undefined;
  }
  return concrete.length || undefined;
}

/** @internal The partition of a key: FNV-1a, 64 bits, of its UTF-8, modulo the count, as in the other Danube clients. */
export function partitionOf(key: string, count: number): number {
  let hash = 0xcbf29ce484222325n;
  for (const byte of Buffer.from(key)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return Number(hash % BigInt(count));
}
