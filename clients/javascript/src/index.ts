/// <reference lib="esnext.disposable" preserve="true" />
/** `danube-client`: a client of the Danube messaging cluster. */

export { DanubeClient } from "./client";
export { Consumer, type ConsumerStatistics } from "./consumer";
export { DanubeError, type DanubeErrorOptions, type Outcome } from "./errors";
export { type ClientEvents, type Subject } from "./events";
export { Message } from "./message";
export {
  type Cancellable, type CloseOptions, type ConnectOptions, type NackOptions, type ProducerOptions, type RunOptions,
  type SchemaChoice, type SendOptions, type SubscribeOptions, type SubscriptionType, type TlsOptions, type Token,
} from "./options";
export { Producer, type ProducerStatistics } from "./producer";
export {
  Schemas, type Compatibility, type CompatibilityVerdict, type Definition, type RegisteredSchema, type RegisterOptions,
  type Schema, type SchemaType, type TopicSchema, type ValidationPolicy,
} from "./schemas";
