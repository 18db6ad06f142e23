"""Values with a schema from a registry: a serializer and a deserializer that are passed the topic.

A value has the format of Confluent's registry: a zero byte, the schema's id in four bytes, the value. The id comes from
the registry's REST interface, once for each subject and each id. The values are JSON, so that this example needs no
other library; for Avro, replace `json` with `fastavro`'s schemaless_writer and schemaless_reader and the schema.

Run it with `muster serve`, the topic `flights` and a registry on port 8081. A record in another format is skipped, and
written to a separate topic.

pip install muster-kafka
"""

from __future__ import annotations

import json
import struct
from functools import cache
from typing import Any
from urllib.request import Request, urlopen

from muster import Consumer, Headers, Producer, RecordDeserializationError

BROKER, REGISTRY = "localhost:9092", "http://localhost:8081"
FLIGHT = json.dumps({"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}]})
HEAD = struct.Struct(">bI")


def ask(path: str, body: object = None) -> Any:
    """One request to the registry; errors are urllib's."""
    content = None if body is None else json.dumps(body).encode()
    request = Request(REGISTRY + path, content, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
    with urlopen(request, timeout=10) as answer:
        return json.load(answer)


class Registered:
    """Writes values of one schema, which is registered for each topic when its first value is sent."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.id_for = cache(self.register)

    def register(self, topic: str) -> int:
        return int(ask(f"/subjects/{topic}-value/versions", {"schema": self.schema})["id"])

    def serialize(self, topic: str, data: dict[str, Any] | None, headers: Headers) -> bytes | None:
        if data is None:
            return None  # a tombstone has no schema
        names = {field["name"] for field in json.loads(self.schema)["fields"]}
        if set(data) != names:
            raise ValueError(f"{sorted(data)} are not the fields of the schema, {sorted(names)}")
        return HEAD.pack(0, self.id_for(topic)) + json.dumps(data).encode()


class ByTheirSchema:
    """Reads values by the schema with which they were written."""

    def __init__(self) -> None:
        self.schema_of = cache(lambda number: json.loads(ask(f"/schemas/ids/{number}")["schema"]))

    def deserialize(self, topic: str, data: bytes, headers: Headers) -> tuple[str, Any]:
        magic, number = HEAD.unpack_from(data)
        if magic != 0:
            raise ValueError("the value does not begin with a schema id")
        return self.schema_of(number)["name"], json.loads(data[HEAD.size :])


def main() -> None:
    with Producer(bootstrap_servers=BROKER, value_serializer=Registered(FLIGHT)) as producer:
        producer.send("flights", {"carrier": "UA"})
        producer.send("flights", {"carrier": "B6"})
    with Producer(bootstrap_servers=BROKER) as producer:
        producer.send("flights", b"written by hand")
    with (
        Producer(bootstrap_servers=BROKER) as unreadable,
        Consumer(
            bootstrap_servers=BROKER,
            group_id="delays",
            auto_offset_reset="earliest",
            value_deserializer=ByTheirSchema(),
        ) as consumer,
    ):
        consumer.subscribe(["flights"])
        count = 0
        while count < 3:
            try:
                record = next(consumer)
                print(record.offset, *record.value)
            except RecordDeserializationError as error:
                raw = error.record
                unreadable.send_and_wait("flights-unreadable", raw.value, raw.key, headers=raw.headers)
                consumer.seek(error.partition, error.offset + 1)
                print("set aside:", error)
            count += 1


if __name__ == "__main__":
    main()
