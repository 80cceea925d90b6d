from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResolveRequest(_message.Message):
    __slots__ = ("topic", "create", "partitions", "dispatch_strategy", "schema_subject", "schema_version", "unused_ttl_s", "away", "wait_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNUSED_TTL_S_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    create: bool
    partitions: int
    dispatch_strategy: str
    schema_subject: str
    schema_version: int
    unused_ttl_s: int
    away: str
    wait_ms: int
    def __init__(self, topic: _Optional[str] = ..., create: bool = ..., partitions: _Optional[int] = ..., dispatch_strategy: _Optional[str] = ..., schema_subject: _Optional[str] = ..., schema_version: _Optional[int] = ..., unused_ttl_s: _Optional[int] = ..., away: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ResolveResponse(_message.Message):
    __slots__ = ("topic", "dispatch_strategy", "partitions", "partitioned", "max_message_bytes", "mirror_of", "failed_over_to", "fail_overs")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONED_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIRROR_OF_FIELD_NUMBER: _ClassVar[int]
    FAILED_OVER_TO_FIELD_NUMBER: _ClassVar[int]
    FAIL_OVERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    dispatch_strategy: str
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    partitioned: bool
    max_message_bytes: int
    mirror_of: str
    failed_over_to: str
    fail_overs: int
    def __init__(self, topic: _Optional[str] = ..., dispatch_strategy: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., partitioned: bool = ..., max_message_bytes: _Optional[int] = ..., mirror_of: _Optional[str] = ..., failed_over_to: _Optional[str] = ..., fail_overs: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("topic", "topic_id", "broker_url", "epoch", "waits_for")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_URL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    broker_url: str
    epoch: int
    waits_for: str
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., broker_url: _Optional[str] = ..., epoch: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class MatchRequest(_message.Message):
    __slots__ = ("patterns", "limit")
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    def __init__(self, patterns: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("topics", "more", "partitions")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., more: bool = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("open", "batch")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    open: OpenProducer
    batch: bytes
    def __init__(self, open: _Optional[_Union[OpenProducer, _Mapping]] = ..., batch: _Optional[bytes] = ...) -> None: ...

class OpenProducer(_message.Message):
    __slots__ = ("topic", "producer_name", "producer_id", "producer_epoch", "dispatch_strategy", "access_mode", "schema_subject", "create", "schema_version", "producer_token", "topic_id", "receipts_may_wait")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ACCESS_MODE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_MAY_WAIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_name: str
    producer_id: int
    producer_epoch: int
    dispatch_strategy: str
    access_mode: str
    schema_subject: str
    create: bool
    schema_version: int
    producer_token: int
    topic_id: int
    receipts_may_wait: bool
    def __init__(self, topic: _Optional[str] = ..., producer_name: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., dispatch_strategy: _Optional[str] = ..., access_mode: _Optional[str] = ..., schema_subject: _Optional[str] = ..., create: bool = ..., schema_version: _Optional[int] = ..., producer_token: _Optional[int] = ..., topic_id: _Optional[int] = ..., receipts_may_wait: bool = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("opened", "receipt", "failure")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    opened: ProducerOpened
    receipt: Receipt
    failure: Failure
    def __init__(self, opened: _Optional[_Union[ProducerOpened, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class ProducerOpened(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "next_sequence", "producer_name", "topic_id", "durability", "max_message_bytes", "schema_id", "schema_version", "max_batch_messages", "producer_token")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    next_sequence: int
    producer_name: str
    topic_id: int
    durability: str
    max_message_bytes: int
    schema_id: int
    schema_version: int
    max_batch_messages: int
    producer_token: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., next_sequence: _Optional[int] = ..., producer_name: _Optional[str] = ..., topic_id: _Optional[int] = ..., durability: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., schema_id: _Optional[int] = ..., schema_version: _Optional[int] = ..., max_batch_messages: _Optional[int] = ..., producer_token: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("first_sequence", "count", "base_offset", "append_time_ms", "duplicate", "throttled_ms", "throttled_by")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_BY_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    count: int
    base_offset: int
    append_time_ms: int
    duplicate: bool
    throttled_ms: int
    throttled_by: str
    def __init__(self, first_sequence: _Optional[int] = ..., count: _Optional[int] = ..., base_offset: _Optional[int] = ..., append_time_ms: _Optional[int] = ..., duplicate: bool = ..., throttled_ms: _Optional[int] = ..., throttled_by: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error", "first_sequence", "count", "carried_out")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CARRIED_OUT_FIELD_NUMBER: _ClassVar[int]
    error: bytes
    first_sequence: int
    count: int
    carried_out: int
    def __init__(self, error: _Optional[bytes] = ..., first_sequence: _Optional[int] = ..., count: _Optional[int] = ..., carried_out: _Optional[int] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("open", "credit", "ack", "nack", "extend", "terminate", "seek", "taken", "given_back")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    TERMINATE_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    GIVEN_BACK_FIELD_NUMBER: _ClassVar[int]
    open: OpenConsumer
    credit: Credit
    ack: Ack
    nack: Nack
    extend: Extend
    terminate: Terminate
    seek: Seek
    taken: Taken
    given_back: GivenBack
    def __init__(self, open: _Optional[_Union[OpenConsumer, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ..., terminate: _Optional[_Union[Terminate, _Mapping]] = ..., seek: _Optional[_Union[Seek, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., given_back: _Optional[_Union[GivenBack, _Mapping]] = ...) -> None: ...

class OpenConsumer(_message.Message):
    __slots__ = ("topic", "subscription", "type", "consumer_name", "start", "stop", "key_filters", "ack_timeout_ms", "start_given", "credit_messages", "credit_bytes", "reports_taken", "max_extend_ms", "resume_session")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    KEY_FILTERS_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_GIVEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPORTS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_EXTEND_MS_FIELD_NUMBER: _ClassVar[int]
    RESUME_SESSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    type: str
    consumer_name: str
    start: str
    stop: str
    key_filters: _containers.RepeatedScalarFieldContainer[str]
    ack_timeout_ms: int
    start_given: bool
    credit_messages: int
    credit_bytes: int
    reports_taken: bool
    max_extend_ms: int
    resume_session: int
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., type: _Optional[str] = ..., consumer_name: _Optional[str] = ..., start: _Optional[str] = ..., stop: _Optional[str] = ..., key_filters: _Optional[_Iterable[str]] = ..., ack_timeout_ms: _Optional[int] = ..., start_given: bool = ..., credit_messages: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., reports_taken: bool = ..., max_extend_ms: _Optional[int] = ..., resume_session: _Optional[int] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("session", "messages", "busy")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    session: int
    messages: int
    busy: bool
    def __init__(self, session: _Optional[int] = ..., messages: _Optional[int] = ..., busy: bool = ...) -> None: ...

class GivenBack(_message.Message):
    __slots__ = ("session", "ranges")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    session: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("messages", "bytes")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    bytes: int
    def __init__(self, messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("session", "ranges", "confirm", "masks")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    session: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    confirm: int
    masks: _containers.RepeatedCompositeFieldContainer[OffsetMask]
    def __init__(self, session: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., confirm: _Optional[int] = ..., masks: _Optional[_Iterable[_Union[OffsetMask, _Mapping]]] = ...) -> None: ...

class OffsetMask(_message.Message):
    __slots__ = ("first", "bits")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    first: int
    bits: bytes
    def __init__(self, first: _Optional[int] = ..., bits: _Optional[bytes] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("session", "ranges", "delay_ms", "reason", "returned")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    session: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    delay_ms: int
    reason: str
    returned: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., returned: _Optional[_Iterable[int]] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("session", "ranges", "ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    ms: int
    def __init__(self, session: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., ms: _Optional[int] = ...) -> None: ...

class Terminate(_message.Message):
    __slots__ = ("session", "ranges", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, session: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class Seek(_message.Message):
    __slots__ = ("position", "request", "check")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    position: str
    request: int
    check: bool
    def __init__(self, position: _Optional[str] = ..., request: _Optional[int] = ..., check: bool = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("opened", "delivery", "confirmed", "failure", "end", "session", "recall")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    opened: ConsumerOpened
    delivery: bytes
    confirmed: Confirmed
    failure: Failure
    end: End
    session: SessionChanged
    recall: Recall
    def __init__(self, opened: _Optional[_Union[ConsumerOpened, _Mapping]] = ..., delivery: _Optional[bytes] = ..., confirmed: _Optional[_Union[Confirmed, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., session: _Optional[_Union[SessionChanged, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("session", "ranges")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    session: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ...) -> None: ...

class ConsumerOpened(_message.Message):
    __slots__ = ("consumer_id", "session", "consumer_name", "start_offset", "head_offset", "active", "topic_id", "type", "stop_offset", "ack_timeout_ms", "takes_masks", "takes_returned", "resumed")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_NAME_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HEAD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STOP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TAKES_MASKS_FIELD_NUMBER: _ClassVar[int]
    TAKES_RETURNED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    session: int
    consumer_name: str
    start_offset: int
    head_offset: int
    active: bool
    topic_id: int
    type: str
    stop_offset: int
    ack_timeout_ms: int
    takes_masks: bool
    takes_returned: bool
    resumed: bool
    def __init__(self, consumer_id: _Optional[int] = ..., session: _Optional[int] = ..., consumer_name: _Optional[str] = ..., start_offset: _Optional[int] = ..., head_offset: _Optional[int] = ..., active: bool = ..., topic_id: _Optional[int] = ..., type: _Optional[str] = ..., stop_offset: _Optional[int] = ..., ack_timeout_ms: _Optional[int] = ..., takes_masks: bool = ..., takes_returned: bool = ..., resumed: bool = ...) -> None: ...

class Confirmed(_message.Message):
    __slots__ = ("confirm", "error")
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    confirm: int
    error: bytes
    def __init__(self, confirm: _Optional[int] = ..., error: _Optional[bytes] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("next_offset",)
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    def __init__(self, next_offset: _Optional[int] = ...) -> None: ...

class SessionChanged(_message.Message):
    __slots__ = ("session", "offset", "request", "reason", "active")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    session: int
    offset: int
    request: int
    reason: str
    active: bool
    def __init__(self, session: _Optional[int] = ..., offset: _Optional[int] = ..., request: _Optional[int] = ..., reason: _Optional[str] = ..., active: bool = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("topic", "credit", "leave")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    topic: CopyTopic
    credit: CopyCredit
    leave: CopyLeave
    def __init__(self, topic: _Optional[_Union[CopyTopic, _Mapping]] = ..., credit: _Optional[_Union[CopyCredit, _Mapping]] = ..., leave: _Optional[_Union[CopyLeave, _Mapping]] = ...) -> None: ...

class CopyTopic(_message.Message):
    __slots__ = ("topic_id", "round", "revision", "first", "last", "credit", "follow", "previous_time_ms", "topic")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    round: int
    revision: int
    first: int
    last: bool
    credit: int
    follow: bool
    previous_time_ms: int
    topic: str
    def __init__(self, topic_id: _Optional[int] = ..., round: _Optional[int] = ..., revision: _Optional[int] = ..., first: _Optional[int] = ..., last: bool = ..., credit: _Optional[int] = ..., follow: bool = ..., previous_time_ms: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class CopyCredit(_message.Message):
    __slots__ = ("topic_id", "bytes")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    bytes: int
    def __init__(self, topic_id: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CopyLeave(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    def __init__(self, topic_id: _Optional[int] = ...) -> None: ...

class CopyResponse(_message.Message):
    __slots__ = ("chunk", "end", "failure", "start", "marks")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    chunk: CopyChunk
    end: CopyEnd
    failure: CopyFailure
    start: CopyStart
    marks: CopyMarks
    def __init__(self, chunk: _Optional[_Union[CopyChunk, _Mapping]] = ..., end: _Optional[_Union[CopyEnd, _Mapping]] = ..., failure: _Optional[_Union[CopyFailure, _Mapping]] = ..., start: _Optional[_Union[CopyStart, _Mapping]] = ..., marks: _Optional[_Union[CopyMarks, _Mapping]] = ...) -> None: ...

class CopyStart(_message.Message):
    __slots__ = ("topic_id", "round", "bytes")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    round: int
    bytes: int
    def __init__(self, topic_id: _Optional[int] = ..., round: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CopyMarks(_message.Message):
    __slots__ = ("topic_id", "round", "start", "end", "time_ms", "cursors", "sessions", "fenced")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    round: int
    start: int
    end: int
    time_ms: int
    cursors: _containers.RepeatedCompositeFieldContainer[CopyCursor]
    sessions: _containers.RepeatedCompositeFieldContainer[CopySession]
    fenced: bool
    def __init__(self, topic_id: _Optional[int] = ..., round: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., time_ms: _Optional[int] = ..., cursors: _Optional[_Iterable[_Union[CopyCursor, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[CopySession, _Mapping]]] = ..., fenced: bool = ...) -> None: ...

class CopyCursor(_message.Message):
    __slots__ = ("subscription", "snapshot")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    snapshot: bytes
    def __init__(self, subscription: _Optional[str] = ..., snapshot: _Optional[bytes] = ...) -> None: ...

class CopySession(_message.Message):
    __slots__ = ("producer_id", "epoch", "token", "name")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    token: int
    name: str
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., token: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class CopyChunk(_message.Message):
    __slots__ = ("topic_id", "round", "data", "ends_piece")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ENDS_PIECE_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    round: int
    data: bytes
    ends_piece: bool
    def __init__(self, topic_id: _Optional[int] = ..., round: _Optional[int] = ..., data: _Optional[bytes] = ..., ends_piece: bool = ...) -> None: ...

class CopyEnd(_message.Message):
    __slots__ = ("topic_id", "round", "end")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    round: int
    end: int
    def __init__(self, topic_id: _Optional[int] = ..., round: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class CopyFailure(_message.Message):
    __slots__ = ("topic_id", "round", "error")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    round: int
    error: bytes
    def __init__(self, topic_id: _Optional[int] = ..., round: _Optional[int] = ..., error: _Optional[bytes] = ...) -> None: ...

class MirroredRequest(_message.Message):
    __slots__ = ("patterns", "known", "fence", "roles")
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    known: str
    fence: Fence
    roles: bool
    def __init__(self, patterns: _Optional[_Iterable[str]] = ..., known: _Optional[str] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., roles: bool = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("cluster", "logs")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    logs: _containers.RepeatedCompositeFieldContainer[LogToFence]
    def __init__(self, cluster: _Optional[str] = ..., logs: _Optional[_Iterable[_Union[LogToFence, _Mapping]]] = ...) -> None: ...

class LogToFence(_message.Message):
    __slots__ = ("topic", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ...) -> None: ...

class MirroredResponse(_message.Message):
    __slots__ = ("state", "cluster", "topics", "subjects", "fenced", "roles")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    state: str
    cluster: str
    topics: _containers.RepeatedCompositeFieldContainer[MirroredTopic]
    subjects: _containers.RepeatedCompositeFieldContainer[MirroredSubject]
    fenced: _containers.RepeatedCompositeFieldContainer[FencedLog]
    roles: MirroredRoles
    def __init__(self, state: _Optional[str] = ..., cluster: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[MirroredTopic, _Mapping]]] = ..., subjects: _Optional[_Iterable[_Union[MirroredSubject, _Mapping]]] = ..., fenced: _Optional[_Iterable[_Union[FencedLog, _Mapping]]] = ..., roles: _Optional[_Union[MirroredRoles, _Mapping]] = ...) -> None: ...

class MirroredRoles(_message.Message):
    __slots__ = ("roles", "bindings", "refused")
    ROLES_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedScalarFieldContainer[bytes]
    bindings: _containers.RepeatedScalarFieldContainer[bytes]
    refused: str
    def __init__(self, roles: _Optional[_Iterable[bytes]] = ..., bindings: _Optional[_Iterable[bytes]] = ..., refused: _Optional[str] = ...) -> None: ...

class FencedLog(_message.Message):
    __slots__ = ("topic", "end", "why")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    end: int
    why: str
    def __init__(self, topic: _Optional[str] = ..., end: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class MirroredTopic(_message.Message):
    __slots__ = ("topic", "partitioned", "settings", "partitions", "subscriptions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitioned: bool
    settings: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    subscriptions: _containers.RepeatedCompositeFieldContainer[MirroredSubscription]
    def __init__(self, topic: _Optional[str] = ..., partitioned: bool = ..., settings: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[MirroredSubscription, _Mapping]]] = ...) -> None: ...

class MirroredSubscription(_message.Message):
    __slots__ = ("name", "type", "options")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    options: bytes
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., options: _Optional[bytes] = ...) -> None: ...

class MirroredSubject(_message.Message):
    __slots__ = ("schema_id", "spec", "versions")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    schema_id: int
    spec: bytes
    versions: _containers.RepeatedCompositeFieldContainer[MirroredVersion]
    def __init__(self, schema_id: _Optional[int] = ..., spec: _Optional[bytes] = ..., versions: _Optional[_Iterable[_Union[MirroredVersion, _Mapping]]] = ...) -> None: ...

class MirroredVersion(_message.Message):
    __slots__ = ("spec", "definition", "descriptors")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    spec: bytes
    definition: bytes
    descriptors: bytes
    def __init__(self, spec: _Optional[bytes] = ..., definition: _Optional[bytes] = ..., descriptors: _Optional[bytes] = ...) -> None: ...
