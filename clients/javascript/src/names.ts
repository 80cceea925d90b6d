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

const encoder = new TextEncoder();

/**
 * @internal The partition of a key: FNV-1a, 64 bits, of its UTF-8, modulo the count, as in the other Danube clients.
 *
 * The 64 bits are two halves, since BigInt costs some 100 ns a byte. The prime is 2⁴⁰ + 0x1b3: the product is the low bits of
 * `h · 0x1b3`, plus `h` shifted by 40, of which the high half sees the low half's bits shifted by 8.
 */
export function partitionOf(key: string, count: number): number {
  let high = 0xcbf29ce4;
  let low = 0x84222325;
  for (const byte of encoder.encode(key)) {
    low = (low ^ byte) >>> 0;
    const product = low * 0x1b3; // below 2^41: exact
    high = (Math.imul(high, 0x1b3) + Math.floor(product / 0x1_0000_0000) + (low << 8)) >>> 0;
    low = product >>> 0;
  }
  // count is at most 10 000: every product is below 2^53
  return ((high % count) * (0x1_0000_0000 % count) + (low % count)) % count;
}
