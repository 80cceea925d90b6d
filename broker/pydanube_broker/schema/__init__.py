"""The schema registry: formats, compatibility and payloads (pure), subjects and versions (in the metadata store).

Pure: `vocabulary`, `differences`, `formats` and the packages `avro`, `json_schema`, `protobuf` except its
`compile`. `registry` stores subjects and versions, `guard` checks publishes against a topic's schema.
"""
