/** Errors: one class, with what a program needs to decide what to do next. */

import { inspect } from "node:util";

/**
 * Whether a failed call may have had an effect. `refused`: it had none, a message was not stored. `unknown`: the answer was
 * lost, the message may be stored.
 */
export type Outcome = "refused" | "unknown";

/** What a `DanubeError` is made of. */
export type DanubeErrorOptions = Partial<Pick<DanubeError, "retryable" | "outcome" | "retryAfterMs" | "details" | "cause">>;

/**
 * The one error of this client.
 *
 * `code` is the broker's (`TOPIC_NOT_FOUND`, `PAYLOAD_INVALID`, …), the name of the gRPC status where a broker or proxy gives
 * no code of its own (`UNAVAILABLE`), or one of this client: `INVALID_ARGUMENT`, `CANCELLED` (an `AbortSignal`), `CLOSED`,
 * `OVERLOADED` (too many sends wait), `DEADLINE_EXCEEDED`, `PROTOCOL_ERROR` (an answer that no broker gives), `MISUSE`.
 */
export class DanubeError extends Error {
  readonly code: string;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  readonly outcome: Outcome;
  /** The broker's wish: not before so many milliseconds. */
  readonly retryAfterMs: number | undefined;
  /** Facts, as the broker gave them: `field`, `value`, `topic`, … */
  readonly details: Readonly<Record<string, unknown>>;

  constructor(code: string, message: string, options: DanubeErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    // Node's own APIs call it so, and programs look for the name.
    this.name = code === "CANCELLED" ? "AbortError" : "DanubeError";
    this.code = code;
    this.retryable = options.retryable ?? false;
    this.outcome = options.outcome ?? "refused";
    this.retryAfterMs = options.retryAfterMs;
    this.details = options.details ?? {};
  }
}

/** @internal An argument that is wrong: which, its value, and what would be right. */
export function invalid(field: string, value: unknown, remedy: string): DanubeError {
  const shown = typeof value === "string" ? JSON.stringify(value) : textOf(value);
  const cut = shown.length > 200 ? `${shown.slice(0, 200)}…` : shown;
  return new DanubeError("INVALID_ARGUMENT", `${field} ${cut}: ${remedy}`, { details: { field, value: cut } });
}

/** @internal */
export function closed(what: string): DanubeError { return new DanubeError("CLOSED", `${what} is closed`); }

/** @internal The text of an error, whatever was thrown. */
export function textOf(error: unknown): string {
  const text: unknown = error instanceof Error ? error.message : error;
  return typeof text === "string" ? text : inspect(text, { depth: 0, customInspect: false });
}

/** @internal */
export function cancelled(signal: AbortSignal, outcome: Outcome = "refused"): DanubeError {
  if (signal.reason instanceof DanubeError) return signal.reason;
  return new DanubeError("CANCELLED", "the caller's signal ended the call", { outcome, cause: signal.reason });
}

/** @internal An answer that no broker gives; asking again may meet a better one. */
export function protocolError(message: string): DanubeError {
  return new DanubeError("PROTOCOL_ERROR", message, { retryable: true, outcome: "unknown" });
}

/** @internal */
export function asDanubeError(error: unknown): DanubeError {
  if (error instanceof DanubeError) return error;
  return new DanubeError("INTERNAL", textOf(error), { outcome: "unknown", cause: error });
}

// By number, as gRPC has them. A broker that cancels a call is about to end. What is not exactly 0 is not OK.
const STATUS = [
  "UNKNOWN", "UNAVAILABLE", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
  "UNAUTHENTICATED",
];
const RETRYABLE = new Set(["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"]);
// A status that comes also where the called side may have done something.
const MAYBE_DONE = new Set(["UNAVAILABLE", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "DATA_LOSS"]);
const CODED = /^([A-Z][A-Z0-9_]{2,63}): (.*)$/s;

/**
 * @internal What a status of a broker or proxy means. The broker's own error is in `danube-error-bin`, or at least in
 * `CODE: message`.
 */
export function fromStatus(status: number, encoded: string, binary: string): DanubeError {
  const name = STATUS[status] ?? "UNKNOWN";
  const text = decoded(encoded);
  const whole = binary === "" ? undefined : parseObject(Buffer.from(binary, "base64"));
  const coded = CODED.exec(text);
  const code = typeof whole?.["code"] === "string" ? whole["code"] : (coded?.[1] ?? name);
  const details = isObject(whole?.["details"]) ? whole["details"] : {};
  const answered = whole !== undefined || coded !== null;
  const unknown = answered ? name === "INTERNAL" || name === "DATA_LOSS" : MAYBE_DONE.has(name);
  const retryAfterMs = details["retry_after_ms"] ?? whole?.["retry_after_ms"];
  return new DanubeError(code, coded?.[2] ?? (text || `the call ended with ${name}`), {
    retryable: typeof whole?.["retryable"] === "boolean" ? whole["retryable"] : RETRYABLE.has(name),
    outcome: unknown || details["outcome"] === "unknown" ? "unknown" : "refused",
    retryAfterMs: typeof retryAfterMs === "number" && Number.isFinite(retryAfterMs) ? retryAfterMs : undefined,
    details,
  });
}

/** The text of `grpc-message`, which is percent-encoded. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function parseObject(bytes: Buffer): Record<string, unknown> | undefined {
  try {
    const found: unknown = JSON.parse(bytes.toString("utf8"));
    return isObject(found) ? found : undefined;
  } catch {
    return undefined;
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
