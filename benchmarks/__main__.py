"""The benchmarks: `make bench`, or `python -m benchmarks [NAME] [ARGUMENTS]`.

load       muster and Apache Kafka under the same load, in turn (the default)
assignors  the assignors compared with Kafka's own
spark      the Spark source compared with Spark's own Kafka connector
sink       the Spark sink compared with the connector's
pipeline   the demo's pipeline compared with the same pipeline on the connector
columns    what the Spark source's option `columns` saves
clients    the consumer and the producer compared with other Python clients
transactions  transactions on muster and on Apache Kafka, in turn
concurrent concurrent consumers compared with one record at a time and with Confluent's parallel consumer
hostile    well-behaved clients while hostile ones attack
history    the history of a large topic of groups, in Spark
folding    the cost of a history on one core, by phase, including particularly costly ones
decoding   records of __consumer_offsets decoded to entries of the history
testing    how long tests wait for brokers: the testing kit compared with others
curves     how cost and memory grow with members, groups, partitions, connections, offsets and bytes
"""

from __future__ import annotations

import importlib.util
import runpy
import sys

from benchmarks import load

OTHERS = {
    "assignors": "benchmarks.assignors",
    "spark": "benchmarks.spark_source",
    "sink": "benchmarks.spark_sink",
    "pipeline": "benchmarks.spark_pipeline",
    "columns": "benchmarks.spark_columns",
    "clients": "benchmarks.clients",
    "concurrent": "benchmarks.concurrent",
    "transactions": "benchmarks.transactions",
    "hostile": "benchmarks.hostile",
    "decoding": "benchmarks.decoding",
    "folding": "benchmarks.folding",
    "curves": "benchmarks.curves",
    "testing": "benchmarks.testing",
    "history": "benchmarks.history",
}


def main() -> int:
    """Run the benchmark that the first word names."""
    words = sys.argv[1:]
    name = words[0] if words and not words[0].startswith("-") else ""
    if name in OTHERS:
        module = OTHERS[name]
        if importlib.util.find_spec(module) is None:
            print(f"benchmarks: there is no {module}", file=sys.stderr)
            return 2
        sys.argv = [f"python -m benchmarks {name}", *words[1:]]
        runpy.run_module(module, run_name="__main__")
        return 0
    if name not in ("", "load"):
        print(__doc__, file=sys.stderr)
        return 2
    return load.main(words[1:] if name else words)


if __name__ == "__main__":
    sys.exit(main())
