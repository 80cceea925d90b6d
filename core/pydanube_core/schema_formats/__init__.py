"""The formats of schemas, for the broker, the SDK and readers: Avro trees and readers of Avro data, Protobuf descriptors and
messages, references within JSON Schemas. Compatibility is the broker's, columns are the storage's."""
