"""The schema registry: formats, compatibility and payloads (pure), and what is registered (in the metadata store).

Pure: `vocabulary`, `differences`, `formats` and the packages `avro`, `json_schema`, `protobuf` but for its
`compile`. `registry` keeps subjects and versions, `gate` holds publishes against a topic's schema.
"""
