/** Waiting: delays with jitter, deadlines, and what an `AbortSignal` does to them. */

import { setMaxListeners } from "node:events";
import { setTimeout } from "node:timers/promises";

import { cancelled, DanubeError } from "./errors";

/** @internal Call `onAbort` when the signal is aborted. Returns a function that ends that. */
export function watch(signal: AbortSignal | undefined, onAbort: () => void): () => void {
  if (signal !== undefined) setMaxListeners(0, signal); // Node warns of more than ten, but one signal may end any number of calls
  signal?.addEventListener("abort", onAbort, { once: true });
  return () => signal?.removeEventListener("abort", onAbort);
}

/** @internal Throw if the signal is aborted already. */
export function check(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw cancelled(signal);
}

/** @internal Wait. Rejects with `CANCELLED`, or a signal's own `DanubeError`, when one of the signals is aborted. */
export async function sleep(ms: number, ...signals: (AbortSignal | undefined)[]): Promise<void> {
  signals.forEach(check);
  const over = new AbortController();
  const watched = signals.map((each) => watch(each, () => over.abort()));
  const waited = setTimeout(ms, undefined, { signal: over.signal }).catch(() => signals.forEach(check));
  await waited.finally(() => watched.forEach((unwatch) => unwatch()));
}

/** @internal Wait until the promise settles, whichever way, but no longer than that. */
export async function settledWithin(promise: Promise<unknown>, ms: number): Promise<void> {
  const settled = new AbortController();
  await Promise.race([promise.catch(() => undefined), sleep(ms, settled.signal).catch(() => undefined)]);
  settled.abort();
}

// Milliseconds: the first delay's bound, doubled each time, and the largest. A broker that starts again takes some seconds.
const FIRST_MS = 100;
const LARGEST_MS = 5_000;

/** @internal Delay before attempt number `attempt` (the first retry is 1): exponential, the upper half at random, never below the broker's wish. */
export function backoff(attempt: number, error?: DanubeError): number {
  const bound = Math.min(LARGEST_MS, FIRST_MS * 2 ** Math.min(attempt - 1, 16));
  const wish = Math.min(error?.retryAfterMs ?? 0, 60_000);
  return Math.max(bound / 2 + (Math.random() * bound) / 2, wish);
}

/**
 * @internal Repeat `attempt` while it fails in a way that may pass, until `deadline` (ms since 1970).
 *
 * @param signals end the delays; calls have their own.
 * @param failed is called before each delay.
 */
export async function retrying<T>(
  attempt: () => Promise<T>, deadline: number, signals: (AbortSignal | undefined)[],
  failed: (error: DanubeError, attempt: number, delayMs: number) => void = () => undefined,
): Promise<T> {
  let unknown = false;
  for (let attempts = 1; ; attempts++) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof DanubeError)) throw error;
      unknown ||= error.outcome === "unknown";
      const delayMs = backoff(attempts, error);
      if (!error.retryable || signals.some((each) => each?.aborted) || Date.now() + delayMs > deadline) {
        throw unknown && error.outcome === "refused" ? withOutcome(error, "unknown") : error;
      }
      failed(error, attempts, delayMs);
      await sleep(delayMs, ...signals);
    }
  }
}

/** @internal The same error, of a call that was tried several times: one of the tries may have had an effect. */
export function withOutcome(error: DanubeError, outcome: "unknown" | "refused"): DanubeError {
  const { code, message, retryable, retryAfterMs, details, cause } = error;
  return new DanubeError(code, message, { retryable, outcome, retryAfterMs, details, cause: cause ?? error });
}
