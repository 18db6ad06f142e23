"""The delays of each carrier, with DuckDB and asyncio: SQL over the records of each poll, summed in a table.

pip install 'muster-kafka[arrow]' duckdb
"""

import asyncio

import duckdb

from muster import AsyncConsumer

database = duckdb.connect("flights.duckdb")
database.execute("create table if not exists delays (carrier text primary key, flights bigint, delay bigint)")

ADD = """
    insert into delays
    select decode(value) ->> 'carrier' as carrier, count(*), sum((decode(value) ->> 'delay')::bigint)
    from batch group by all
    on conflict do update set flights = flights + excluded.flights, delay = delay + excluded.delay
"""


async def main() -> None:
    consumer = AsyncConsumer(bootstrap_servers="localhost:9092", group_id="by-duckdb", auto_offset_reset="earliest")
    async with consumer:
        consumer.subscribe(["flights"])
        while True:  # until Ctrl-C
            for table in (await consumer.poll_arrow(columns=["value"])).values():
                database.register("batch", table)
                database.execute(ADD)
                print(database.execute("from delays order by carrier").fetchall(), flush=True)


asyncio.run(main())
