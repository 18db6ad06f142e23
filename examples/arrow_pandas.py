"""The delays of each carrier, with pandas: one data frame per poll; offsets are committed after it is processed.

pip install 'muster-kafka[arrow]' pandas
"""

import json

import pandas as pd

from muster import Consumer

delays = pd.Series(dtype="int64")

with Consumer(
    bootstrap_servers="localhost:9092",
    group_id="by-pandas",
    auto_offset_reset="earliest",
    enable_auto_commit=False,
) as consumer:
    consumer.subscribe(["flights"])
    while True:  # until Ctrl-C
        for table in consumer.poll_arrow(columns=["value", "offset"]).values():
            flights = pd.DataFrame.from_records(table.to_pandas()["value"].map(json.loads))
            delays = delays.add(flights.groupby("carrier")["delay"].sum(), fill_value=0).astype("int64")
            print(sorted(delays.to_dict().items()), flush=True)
        consumer.commit()
