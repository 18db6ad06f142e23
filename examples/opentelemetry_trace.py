"""Traces through Kafka with OpenTelemetry: a record carries its sender's span id as W3C Trace Context.

pip install muster-kafka opentelemetry-sdk
"""

from collections.abc import Mapping, Sequence

from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode

from muster import (
    Consumer,
    ConsumerHooks,
    ConsumerRecord,
    Outbound,
    Producer,
    ProducerHooks,
    RecordMetadata,
    TopicPartition,
)

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))  # or an OTLPSpanExporter
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("muster")
carried = propagate.get_global_textmap().fields


class TraceSends(ProducerHooks):
    """A span for each record, from `send` to its acknowledgement."""

    def __init__(self) -> None:
        self.spans: dict[int, Span] = {}

    def on_send(self, record: Outbound) -> None:
        span = self.spans[id(record)] = tracer.start_span(f"send {record.topic}", kind=SpanKind.PRODUCER)
        headers: dict[str, str] = {}
        propagate.inject(headers, trace.set_span_in_context(span))
        record.headers += [(name, value.encode()) for name, value in headers.items()]

    def on_acknowledgement(
        self, record: Outbound, metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        span = self.spans.pop(id(record))
        if metadata is not None:
            span.set_attribute("messaging.kafka.offset", metadata.offset)
        if error is not None:
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, str(error))
        span.end()


class TraceReads(ConsumerHooks):
    """A span for each received record, in the trace of its sender."""

    def on_consume(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        for partition, some in records.items():
            for record in some:
                headers = {name: value.decode() for name, value in record.headers if name in carried and value}
                span = tracer.start_span(f"receive {partition.topic}", propagate.extract(headers), SpanKind.CONSUMER)
                span.set_attribute("messaging.kafka.offset", record.offset)
                span.end()


with Producer(bootstrap_servers="localhost:9092", hooks=[TraceSends()]) as producer:
    producer.send("traced", b"hello")

settings = {"bootstrap.servers": "localhost:9092", "group.id": "traced", "auto.offset.reset": "earliest"}
with Consumer(settings, hooks=[TraceReads()]) as consumer:
    consumer.subscribe(["traced"])
    print(next(consumer).value)
