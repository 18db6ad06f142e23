"""The delays of each carrier, with Polars: a member of a consumer group, without a Python object per record.

pip install 'muster-kafka[arrow]' polars
"""

import polars as pl

from muster import Consumer

FLIGHT = pl.Struct({"carrier": pl.String, "delay": pl.Int64})

delays = pl.DataFrame(schema={"carrier": pl.String, "flights": pl.UInt32, "delay": pl.Int64})

with Consumer(bootstrap_servers="localhost:9092", group_id="by-polars", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["flights"])
    while True:  # until Ctrl-C
        for table in consumer.poll_arrow(columns=["value"]).values():
            values = pl.DataFrame(table).select(pl.col("value").cast(pl.String).str.json_decode(FLIGHT)).unnest("value")
            new = values.group_by("carrier").agg(flights=pl.len().cast(pl.UInt32), delay=pl.col("delay").sum())
            delays = pl.concat([delays, new]).group_by("carrier").sum().sort("carrier")
            print(delays.rows(), flush=True)
