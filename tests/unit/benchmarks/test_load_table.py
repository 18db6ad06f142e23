"""The table of the load benchmark: a column for each measured server, and ratios of muster's numbers to Kafka's."""

from __future__ import annotations

from benchmarks import report

KAFKA = {"requests_per_s": 50_000.0, "server_us": 30.0}


def table(medians):
    return [report.head(medians), *report.cells(medians)]


def test_muster_next_to_kafka():
    medians = {"heartbeats": {"muster": {"requests_per_s": 100_000.0, "server_us": 3.0}, "kafka": KAFKA}}
    assert table(medians) == [
        ("", "muster", "Kafka 4.2", "muster is better by", "to reach"),
        ("heartbeats, 4 connections × 64 deep", "100,000/s", "50,000/s", "2×", "≥ 200,000/s"),
        ("server's CPU for each of them", "3 µs", "30 µs", "10×", "≤ 4 µs"),
    ]


def test_with_compiled_modules_there_are_two_of_ours():
    medians = {"heartbeats": {"muster": {"server_us": 3.0}, "compiled": {"server_us": 2.0}, "kafka": KAFKA}}
    heading, rate, cpu = table(medians)
    assert heading[:4] == ("", "muster", "compiled", "Kafka 4.2")
    assert heading[4:] == ("muster is better by", "compiled is better by", "to reach")
    assert rate[1:] == ("-", "-", "50,000/s", "-", "-", "≥ 200,000/s")
    assert cpu[1:] == ("3 µs", "2 µs", "30 µs", "10×", "15×", "≤ 4 µs")
