/** Waiting: delays with jitter, deadlines, and what an `AbortSignal` does to them. */

import { cancelled, DanubeError } from "./errors";

// One listener for each signal, however many calls it is given to: Node warns of more than ten.
const watched = new WeakMap<AbortSignal, Set<() => void>>();

/** @internal Call `onAbort` when the signal is aborted. Returns a function that ends that. */
export function watch(signal: AbortSignal | undefined, onAbort: () => void): () => void {
  if (signal === undefined) return () => undefined;
  const waiting = watched.get(signal) ?? new Set();
  if (!watched.has(signal)) {
    watched.set(signal, waiting);
    signal.addEventListener("abort", () => [...waiting].forEach((each) => each()), { once: true });
  }
  waiting.add(onAbort);
  return () => void waiting.delete(onAbort);
}

/** @internal Throw if the signal is aborted already. */
export function check(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw cancelled(signal);
}

/** @internal Wait. Rejects with `CANCELLED` when the signal is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(cancelled(signal));
    const timer = setTimeout(() => {
      unwatch();
      resolve();
    }, ms);
    const unwatch = watch(signal, () => {
      clearTimeout(timer);
      reject(cancelled(signal as AbortSignal));
    });
  });
}

/** @internal Whether the promise settled within the time, whichever way. */
export async function settledWithin(promise: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(resolve, ms, false);
  });
  const done = promise.then(() => true, () => true);
  try {
    return await Promise.race([done, late]);
  } finally {
    clearTimeout(timer);
  }
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

/** @internal A promise and the functions that settle it. */
export interface Deferred<T> {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
  readonly reject: (error: unknown) => void;
}

/** @internal */
export function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}

/**
 * @internal Repeat `attempt` while it fails in a way that may pass, until `deadline` (ms since 1970).
 *
 * @param failed is called before each delay.
 */
export async function retrying<T>(
  attempt: () => Promise<T>, deadline: number, signal: AbortSignal | undefined,
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
      if (!error.retryable || signal?.aborted || Date.now() + delayMs > deadline) {
        throw unknown && error.outcome === "refused" ? withOutcome(error, "unknown") : error;
      }
      failed(error, attempts, delayMs);
      await sleep(delayMs, signal);
    }
  }
}

/** @internal The same error, of a call that was tried several times: one of the tries may have had an effect. */
export function withOutcome(error: DanubeError, outcome: "unknown" | "refused"): DanubeError {
  const { code, message, retryable, retryAfterMs, details, cause } = error;
  return new DanubeError(code, message, {
    retryable, outcome, details, cause: cause ?? error, ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  });
}
