"""The in-memory cluster's side of a producer's stream."""

from __future__ import annotations

from pydanube_core.batch import read_producer_part
from pydanube_core.errors import ClusterError, InvalidArgument, ProducerFenced
from pydanube_core.frames import PUBLISH_BATCH_FIELD, read_bytes_field
from pydanube_core.generated import danube_stream_pb2 as pb

from pydanube.testing.log import MemoryTopic
from pydanube.testing.memory import MemoryState
from pydanube.testing.pipe import Pipe


class PublishServer:
    """A producer's stream."""

    def __init__(self, memory: MemoryState, pipe: Pipe) -> None:
        self._memory = memory
        self._pipe = pipe
        self.topic: MemoryTopic | None = None

    def on_message(self, message: bytes) -> None:
        batch = read_bytes_field(PUBLISH_BATCH_FIELD, message)
        if batch is None:
            self._open(pb.PublishRequest.FromString(message).open)
        else:
            self._publish(batch)

    def _open(self, request: pb.OpenProducer) -> None:
        memory = self._memory
        self.topic = topic = memory.topic(request.topic)
        schema = (0, 0)
        if request.schema_subject:
            schema = memory.registry.find(request.schema_subject, request.schema_version)
            topic.bind_schema(request.schema_subject)
        exclusive = request.access_mode == "exclusive"
        named = exclusive or request.access_mode == "named"
        topic.check_access(request.producer_name, exclusive=exclusive)
        state = topic.open_producer(
            request.producer_name,
            (request.topic_id, request.producer_id, request.producer_epoch, request.producer_token),
            new_id=memory.new_id(),
            exclusive=named,
        )
        for former in topic.attach(self, state.name, exclusive=exclusive, named=named):
            former.fence(state.name)
        opened = pb.ProducerOpened(
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            producer_token=state.token,
            next_sequence=state.next_sequence,
            producer_name=state.name,
            topic_id=topic.topic_id,
            durability="memory",
            max_message_bytes=topic.max_message_bytes,
            schema_id=schema[0],
            schema_version=schema[1],
        )
        self._pipe.send(pb.PublishResponse(opened=opened).SerializeToString())

    def _publish(self, batch: memoryview) -> None:
        if self.topic is None:
            raise InvalidArgument("a batch came before the producer was opened", field="open", value=None)
        part = read_producer_part(batch)
        try:
            self._memory.check_publish()
            stored, duplicate = self.topic.append(batch)
        except ClusterError as error:
            failure = pb.Failure(
                error=error.to_json().encode(), first_sequence=part.first_sequence, count=part.count
            )
            self._pipe.send(pb.PublishResponse(failure=failure).SerializeToString())
            return
        receipt = pb.Receipt(
            first_sequence=part.first_sequence,
            count=part.count,
            base_offset=stored.base,
            append_time_ms=stored.append_time_ms,
            duplicate=duplicate,
        )
        self._memory.answer(self._pipe, pb.PublishResponse(receipt=receipt).SerializeToString())

    def fence(self, name: str) -> None:
        """Another connection opened the exclusive producer."""
        self._pipe.send_failure(ProducerFenced(f"producer {name} was opened again", outcome="unknown"))

    def encode_failure(self, failure: pb.Failure) -> bytes:
        return pb.PublishResponse(failure=failure).SerializeToString()

    def on_close(self) -> None:
        if self.topic is not None:
            self.topic.detach(self)
        self.topic = None
