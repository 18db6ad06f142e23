"""Families in the formats that Prometheus reads. The library prometheus_client encodes them and negotiates the
format."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import NamedTuple

from muster.errors import ConfigError, MusterError
from muster.metrics.families import Distribution, Family, MetricType

EXTRA = "pip install 'muster-kafka[metrics]'"


class Page(NamedTuple):
    """The response to a request for a page."""

    status: int
    content_type: str
    body: bytes


def text_page(status: int, text: str) -> Page:
    """A page of one line."""
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def check_installed() -> None:
    """Check, before a port is opened, that the library is installed.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("prometheus_client") is None:
        raise ConfigError(f"--metrics-port needs prometheus-client, which is not installed: {EXTRA}")


def check_port(port: int, name: str = "--metrics-port") -> None:
    """Reject an invalid port before anything is started. Raises MusterError."""
    if not 0 <= port <= 65_535:
        raise MusterError(f"{name} must be 0 to 65535, not {port}")


def page(families: Iterable[Family], accept: str = "") -> Page:
    """The families in the format of a request's Accept header, with the library's own metrics of the process: memory,
    CPU time, open files."""
    from prometheus_client.exposition import choose_encoder

    try:
        encoder, content_type = choose_encoder(accept)
    except Exception:  # for example an invalid version
        encoder, content_type = choose_encoder("")
    return Page(200, content_type, encoder(_Registry(families)))  # type: ignore[arg-type]


class _Registry:
    """The part of a registry that the library's encoders use."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[object]:
        from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR

        for family in self._families:
            yield _metric(family)
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            yield from collector.collect()


def _metric(family: Family) -> object:
    from prometheus_client.core import Metric

    # The library appends `_total` to the name of a counter.
    name = family.name.removesuffix("_total") if family.kind is MetricType.COUNTER else family.name
    metric = Metric(name, family.text, family.kind.value)
    suffix = "_total" if family.kind is MetricType.COUNTER else ""
    for labels, value in family.samples:
        tags = dict(labels)
        if isinstance(value, Distribution):
            for bound, count in zip(value.bounds, value.counts, strict=True):
                metric.add_sample(f"{name}_bucket", tags | {"le": _bound(bound)}, count)
            metric.add_sample(f"{name}_count", tags, value.counts[-1])
            metric.add_sample(f"{name}_sum", tags, value.total)
        else:
            metric.add_sample(name + suffix, tags, value)
    return metric


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))
