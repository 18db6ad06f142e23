"""How muster's cost grows: the same operation at increasing sizes, and how its CPU and memory grow.

Each size runs on its own server process. CPU is the server's, so the figures hold on a shared machine too. The cost
beyond that of the smallest size is compared with n log n (growth.py); operations that grow faster are reported, and set
the exit code.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks import curve_runs as runs
from benchmarks import report
from benchmarks.curve_runs import Cost, Costs, CurveServer
from benchmarks.growth import Growth, Point, growth
from benchmarks.wire import BenchmarkError

CPU_NOISE_S = 0.01
MEMORY_NOISE_MB = 2.0
SPARE_DESCRIPTORS = 200


class Curve(NamedTuple):
    """What grows, over which sizes, and what is done with each."""

    unit: str
    sizes: tuple[int, ...]
    run: Callable[[CurveServer, int], Costs]
    connections: bool = False
    """Whether each one needs a connection, and so a descriptor."""


CURVES = {
    "members": Curve("members of a group", (10, 100, 1_000, 5_000), runs.members, connections=True),
    "groups": Curve("groups of one member", (1, 10, 100, 1_000, 10_000), runs.groups),
    "partitions": Curve("partitions", (1, 100, 1_000, 10_000, 100_000), runs.partitions),
    "connections": Curve("connections", (1, 100, 1_000, 10_000), runs.connections, connections=True),
    "offsets": Curve("committed offsets", (1, 1_000, 10_000, 100_000, 1_000_000), runs.offsets),
    "log": Curve("GB of log", (1, 4, 16, 50), runs.log),
}

Measured = dict[int, Costs]
"""By size."""


class Line(NamedTuple):
    """One operation of a curve: its costs by size, and how they grow."""

    curve: str
    operation: str
    costs: Mapping[int, Cost]
    cpu: Growth
    memory: Growth

    @property
    def too_fast(self) -> bool:
        return self.cpu.too_fast or self.memory.too_fast


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table; the exit code is 1 if something grows worse than n log n."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks curves", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(CURVES), metavar="CURVE", help=f"some of {', '.join(CURVES)}")
    parser.add_argument("--quick", action="store_true", help="without the largest size of each curve")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    options = parser.parse_args(arguments)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="muster-curves-") as folder:
        try:
            for name in options.only or CURVES:
                lines += judged(name, measure(name, Path(folder), quick=options.quick))
        except BenchmarkError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
    print(f"\n{report.plain_table(HEAD, cells(lines), LEFT)}\n\n{report.machine()}; all figures: {save(lines)}")
    if options.write_docs:
        told = report.markdown_table(HEAD, cells(lines), LEFT)
        report.put_on_page("curves", f"One run on {report.machine()}.\n\n{told}")
    worse = [f"{line.curve}: {line.operation}" for line in lines if line.too_fast]
    print(f"worse than n log n: {'; '.join(worse) or 'nothing'}")
    return 1 if worse else 0


def measure(name: str, folder: Path, *, quick: bool) -> Measured:
    """All sizes of a curve, each on a server of its own."""
    curve = CURVES[name]
    found: Measured = {}
    for size in curve.sizes[:-1] if quick else curve.sizes:
        if curve.connections and not _allow_descriptors(size + SPARE_DESCRIPTORS):
            print(f"benchmarks: {size:,} {curve.unit} are left out: too few descriptors (ulimit -n)", file=sys.stderr)
            continue
        server = CurveServer(folder / f"{name}-{size}")
        server.prepare()
        try:
            found[size] = curve.run(server, size)
        finally:
            server.stop()
            shutil.rmtree(server.folder, ignore_errors=True)
        for operation, cost in found[size].items():
            print(
                f"{name:12} {size:10,}  {operation:28} {cost.cpu_s * 1e3:10,.1f} ms CPU {cost.wall_s * 1e3:10,.1f} ms "
                f"{cost.rss_mb:8,.1f} MB {cost.descriptors:6,} descriptors",
                flush=True,
            )
    return found


def _allow_descriptors(wanted: int) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


def judged(name: str, measured: Measured) -> list[Line]:
    """The operations of a curve, with how they grow."""
    if len(measured) < 2:
        raise BenchmarkError(f"{name}: one size does not make a curve")
    lines = []
    for operation in next(iter(measured.values())):
        costs = {size: found[operation] for size, found in measured.items()}
        cpu = growth([Point(size, cost.cpu_s) for size, cost in costs.items()], CPU_NOISE_S)
        memory = growth([Point(size, cost.rss_mb) for size, cost in costs.items()], MEMORY_NOISE_MB)
        lines.append(Line(name, operation, costs, cpu, memory))
    return lines


# ----------------------------------------------------------------------------------------------- the table

HEAD = (
    "things",
    "operation",
    "how many",
    "server's CPU ms",
    "MB",
    "CPU of one more",
    "grows as",
    "memory of one more",
    "as",
)
LEFT = (0, 1)


def cells(lines: Iterable[Line]) -> list[tuple[str, ...]]:
    """A row for each operation: figures for each size, from the smallest to the largest."""
    return [
        (
            CURVES[line.curve].unit,
            line.operation,
            _row(f"{size:,}" for size in line.costs),
            _row(_short(cost.cpu_s * 1e3) for cost in line.costs.values()),
            _row(_short(cost.rss_mb) for cost in line.costs.values()),
            f"{_short(line.cpu.each * 1e6)} µs",
            _grows(line.cpu),
            f"{_short(line.memory.each * 1e3)} KB",
            _grows(line.memory),
        )
        for line in lines
    ]


def _row(figures: Iterable[str]) -> str:
    return " · ".join(figures)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}"


def _grows(found: Growth) -> str:
    if not found.exponent:
        return "constant"
    return f"n^{found.exponent:.2f}{' > n log n' if found.too_fast else ''}"


def save(lines: Sequence[Line]) -> Path:
    """Write all figures; returns the file."""
    return report.save_as(
        "curves",
        {
            f"{line.curve}: {line.operation}": {
                "costs": {size: asdict(cost) for size, cost in line.costs.items()},
                "cpu": line.cpu._asdict(),
                "memory": line.memory._asdict(),
            }
            for line in lines
        },
    )


if __name__ == "__main__":
    sys.exit(main())
