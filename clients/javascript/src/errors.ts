/** Errors: one class, with what a program needs to decide what to do next. */

import { status, type ServiceError } from "@grpc/grpc-js";

/**
 * Whether a failed call may have had an effect. `refused`: it had none, a message was not stored. `unknown`: the answer was
 * lost, the message may be stored.
 */
export type Outcome = "refused" | "unknown";

/** What a `DanubeError` is made of. */
export interface DanubeErrorOptions {
  readonly retryable?: boolean;
  readonly outcome?: Outcome;
  readonly retryAfterMs?: number;
  readonly details?: Readonly<Record<string, unknown>>;
  readonly cause?: unknown;
}

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
  const shown = typeof value === "string" ? JSON.stringify(value) : String(value);
  const cut = shown.length > 200 ? `${shown.slice(0, 200)}…` : shown;
  return new DanubeError("INVALID_ARGUMENT", `${field} ${cut}: ${remedy}`, { details: { field, value: cut } });
}

/** @internal */
export function closed(what: string): DanubeError {
  return new DanubeError("CLOSED", `${what} is closed`);
}

/** @internal */
export function cancelled(signal: AbortSignal, outcome: Outcome = "refused"): DanubeError {
  return new DanubeError("CANCELLED", "the caller's signal ended the call", { outcome, cause: signal.reason });
}

/** @internal An answer that no broker gives; asking again may meet a better one. */
export function protocolError(message: string): DanubeError {
  return new DanubeError("PROTOCOL_ERROR", message, { retryable: true, outcome: "unknown" });
}

/** @internal */
export function asDanubeError(error: unknown): DanubeError {
  if (error instanceof DanubeError) return error;
  const text = error instanceof Error ? error.message : String(error);
  return new DanubeError("INTERNAL", text, { outcome: "unknown", cause: error });
}

const RETRYABLE = new Set<number>([
  status.UNAVAILABLE, status.DEADLINE_EXCEEDED, status.RESOURCE_EXHAUSTED, status.ABORTED,
]);
// A status that only the called side gives, and only where it did nothing.
const WITHOUT_EFFECT = new Set<number>([
  status.INVALID_ARGUMENT, status.NOT_FOUND, status.ALREADY_EXISTS, status.PERMISSION_DENIED, status.FAILED_PRECONDITION,
  status.ABORTED, status.OUT_OF_RANGE, status.UNIMPLEMENTED, status.UNAUTHENTICATED, status.RESOURCE_EXHAUSTED,
]);
const CODED = /^([A-Z][A-Z0-9_]{2,63}): (.*)$/s;
// What grpc-js says of a connection that ended below a call.
const CONNECTION_LOST = /RST_STREAM|ECONN|EPIPE|ETIMEDOUT|socket|GOAWAY|[Cc]onnection (dropped|closed)/;

/** @internal What a failed gRPC call means. The broker's own error is in `danube-error-bin`, or at least in `CODE: message`. */
export function fromCall(error: ServiceError): DanubeError {
  const name = status[error.code] ?? "UNKNOWN";
  const sent = error.metadata?.get("danube-error-bin")[0];
  const whole = Buffer.isBuffer(sent) ? parseObject(sent) : undefined;
  const coded = CODED.exec(error.details ?? "");
  const code = typeof whole?.["code"] === "string" ? whole["code"] : (coded?.[1] ?? name);
  const message = coded?.[2] ?? (error.details || `the call ended with ${name}`);
  const details = isObject(whole?.["details"]) ? whole["details"] : {};
  const lost = whole === undefined && coded === null && isLost(error);
  const retryable = typeof whole?.["retryable"] === "boolean" ? whole["retryable"] : lost || RETRYABLE.has(error.code);
  const retryAfterMs = details["retry_after_ms"] ?? whole?.["retry_after_ms"];
  return new DanubeError(code, message, {
    retryable,
    outcome: outcomeOf(error, whole !== undefined || coded !== null, details),
    ...(typeof retryAfterMs === "number" && Number.isFinite(retryAfterMs) ? { retryAfterMs } : {}),
    details,
    cause: error,
  });
}

function isLost(error: ServiceError): boolean {
  const transport = [status.INTERNAL, status.UNKNOWN, status.CANCELLED].includes(error.code);
  return error.code === status.UNAVAILABLE || (transport && CONNECTION_LOST.test(error.details ?? ""));
}

function outcomeOf(error: ServiceError, answered: boolean, details: Readonly<Record<string, unknown>>): Outcome {
  if (details["outcome"] === "unknown") return "unknown";
  if (answered) return error.code === status.INTERNAL || error.code === status.DATA_LOSS ? "unknown" : "refused";
  const text = error.details ?? "";
  if (error.code === status.UNAVAILABLE) return text.startsWith("No connection established") ? "refused" : "unknown";
  if (text.startsWith("Received message larger than max")) return "unknown"; // grpc-js itself, about the answer
  return WITHOUT_EFFECT.has(error.code) ? "refused" : "unknown";
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
