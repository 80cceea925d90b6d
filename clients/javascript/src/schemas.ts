/** The schema registry. */

import type { Connections, Method } from "./connection";
import { DanubeError, invalid, textOf } from "./errors";
import { SchemaRegistryDefinition, type GetSchemaResponse } from "./generated/danube_schema";
import { flag, object, text, texts, whole, type Cancellable } from "./options";

export type SchemaType = "bytes" | "string" | "number" | "avro" | "json_schema" | "protobuf";
export type Compatibility = "none" | "backward" | "forward" | "full";
export type ValidationPolicy = "none" | "warn" | "enforce";

/** A schema's text. An object is written as JSON. */
export type Definition = string | Uint8Array | object;

export interface RegisterOptions extends Cancellable {
  readonly type: SchemaType;
  readonly definition: Definition;
  readonly description?: string | undefined;
  readonly tags?: readonly string[] | undefined;
}

export interface RegisteredSchema {
  readonly schemaId: bigint;
  readonly version: number;
  /** False where this text was registered before. */
  readonly isNewVersion: boolean;
  readonly fingerprint: string;
}

/** One version of a subject. `schemaId` is the subject's, the same for all its versions. */
export interface Schema {
  readonly subject: string;
  readonly schemaId: bigint;
  readonly version: number;
  readonly type: string;
  readonly definition: Uint8Array;
  readonly description: string;
  readonly createdAt: Date;
  readonly createdBy: string;
  readonly tags: readonly string[];
  readonly fingerprint: string;
  readonly compatibility: string;
}

export interface CompatibilityVerdict {
  readonly compatible: boolean;
  /** The reasons, where it is not. */
  readonly errors: readonly string[];
}

/** What a topic does about schemas. */
export interface TopicSchema {
  readonly subject: string;
  readonly policy: string;
  readonly validatePayloads: boolean;
  readonly schemaId: bigint;
}

const CREATED_BY = "danube-client (JavaScript)";
const TIMEOUT_MS = 30_000;
const MAX_VERSION = 0xffff_ffff;
const registry = SchemaRegistryDefinition.methods;

/** Calls of the registry: `client.schemas`. */
export class Schemas {
  /** @internal */
  constructor(private readonly connections: Connections) {}

  /** Register a schema, a new version of its subject unless the text is there already. */
  async register(subject: string, options: RegisterOptions): Promise<RegisteredSchema> {
    object("options", options, "type definition description tags signal");
    const request = {
      subject: text("subject", subject),
      schemaType: text("type", options.type),
      schemaDefinition: definition(options.definition),
      description: options.description === undefined ? "" : text("description", options.description),
      createdBy: CREATED_BY,
      tags: texts("tags", options.tags),
    };
    const { schemaId, version, isNewVersion, fingerprint } = await this.#call(registry.registerSchema, request, options);
    return { schemaId, version, isNewVersion, fingerprint };
  }

  /** The newest version of a subject, or the one that is asked for. By its id: the schema that a message names. */
  async get(subject: string | bigint, options: Cancellable & { readonly version?: number | undefined } = {}): Promise<Schema> {
    object("options", options, "version signal");
    const version = whole("version", options.version, 1, MAX_VERSION, undefined);
    if (typeof subject === "bigint") {
      if (BigInt.asUintN(64, subject) !== subject) throw invalid("subject", subject, "an id has 64 bits and no sign");
      return shown(await this.#call(registry.getSchema, { schemaId: subject, version }, options));
    }
    const latest = await this.#call(registry.getLatestSchema, { subject: text("subject", subject) }, options);
    if (version === undefined || version === latest.version) return shown(latest);
    return shown(await this.#call(registry.getSchema, { schemaId: latest.schemaId, version }, options));
  }

  /** The versions of a subject, ascending. */
  async versions(subject: string, options: Cancellable = {}): Promise<number[]> {
    const answer = await this.#call(registry.listVersions, { subject: text("subject", subject) }, options, "signal");
    return answer.versions.map((each) => each.version);
  }

  /** The subjects, by name. */
  async subjects(options: Cancellable = {}): Promise<string[]> {
    return (await this.#call(registry.listSubjects, {}, options, "signal")).subjects.map((each) => each.subject);
  }

  /** Whether a text could be registered as the next version. Registers nothing. */
  async checkCompatibility(
    subject: string,
    options: Omit<RegisterOptions, "description" | "tags"> & { readonly compatibility?: Compatibility | undefined },
  ): Promise<CompatibilityVerdict> {
    object("options", options, "type definition compatibility signal");
    const request = {
      subject: text("subject", subject),
      schemaType: text("type", options.type),
      newSchemaDefinition: definition(options.definition),
      compatibilityMode: options.compatibility === undefined ? undefined : text("compatibility", options.compatibility),
    };
    const answer = await this.#call(registry.checkCompatibility, request, options);
    return { compatible: answer.isCompatible, errors: answer.errors };
  }

  /** Set what new versions of a subject have to be compatible with. */
  async setCompatibility(subject: string, compatibility: Compatibility, options: Cancellable = {}): Promise<void> {
    const request = { subject: text("subject", subject), compatibilityMode: text("compatibility", compatibility) };
    done(await this.#call(registry.setCompatibilityMode, request, options, "signal"));
  }

  /** Delete a version of a subject. */
  async delete(subject: string, version: number, options: Cancellable = {}): Promise<void> {
    const request = { subject: text("subject", subject), version: whole("version", version ?? 0, 1, MAX_VERSION, 0) };
    done(await this.#call(registry.deleteSchemaVersion, request, options, "signal"));
  }

  /** Tie a topic to a subject. `enforce` refuses messages without its schema; `validatePayloads` looks inside, too. */
  async configureTopic(
    topic: string,
    options: Cancellable & {
      readonly subject: string; readonly policy: ValidationPolicy; readonly validatePayloads?: boolean | undefined;
    },
  ): Promise<void> {
    object("options", options, "subject policy validatePayloads signal");
    const request = {
      topicName: text("topic", topic),
      schemaSubject: text("subject", options.subject),
      validationPolicy: text("policy", options.policy),
      enablePayloadValidation: flag("validatePayloads", options.validatePayloads, false),
    };
    done(await this.#call(registry.configureTopicSchema, request, options));
  }

  /** What a topic does about schemas. */
  async ofTopic(topic: string, options: Cancellable = {}): Promise<TopicSchema> {
    const found = await this.#call(registry.getTopicSchemaConfig, { topicName: text("topic", topic) }, options, "signal");
    const { schemaSubject: subject, validationPolicy: policy, enablePayloadValidation: validatePayloads, schemaId } = found;
    return { subject, policy, validatePayloads, schemaId };
  }

  /** @param names of the options, where they are not checked yet. */
  async #call<Q, A>(method: Method<Q, A>, request: Q, options: Cancellable, names?: string): Promise<A> {
    if (names !== undefined) object("options", options, names);
    return this.connections.anywhere(SchemaRegistryDefinition, method, request, Date.now() + TIMEOUT_MS, options.signal);
  }
}

function definition(given: Definition): Buffer {
  if (typeof given === "string") return Buffer.from(given);
  if (given instanceof Uint8Array) return Buffer.from(given);
  try {
    if (typeof given === "object" && given !== null) return Buffer.from(JSON.stringify(given));
  } catch (error) {
    throw invalid("definition", "…", `it cannot be written as JSON: ${textOf(error)}`);
  }
  throw invalid("definition", given, "give the schema as text, bytes or an object");
}

function done(answer: { success: boolean; message: string }): void {
  if (!answer.success) throw new DanubeError("FAILED_PRECONDITION", answer.message || "the registry did not do it");
}

function shown(found: GetSchemaResponse): Schema {
  const { schemaType: type, schemaDefinition, compatibilityMode: compatibility, createdAt, ...same } = found;
  return { ...same, type, definition: schemaDefinition, createdAt: new Date(Number(createdAt) * 1000), compatibility };
}
