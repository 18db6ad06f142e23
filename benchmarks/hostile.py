"""One client cannot stop the others: each attack runs on its own broker, together with well-behaved clients.

Each row starts `muster serve`, runs a member, a producer and consumers during the attack (bystanders.py), and reports
their latencies and the broker's memory: resident before, at the peak, and after the attack; and the peak without the
pages of mapped logs, which the system reclaims when it needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.attacks import ATTACKS, PAUSE, Attack, Field
from benchmarks.report import machine
from benchmarks.servers import Muster
from benchmarks.wire import BenchmarkError

TARGET_MS = 50.0
SAMPLE_S = 0.02
AFTER_S = 1.5
QUICK = 0.4
"""Share of each attack's time with --quick."""


class HostileServer(Muster):
    """`muster serve` with the attack's settings and descriptors."""

    def __init__(self, folder: Path, attack: Attack) -> None:
        super().__init__(folder)
        self._attack = attack

    def command(self) -> list[str]:
        options = [word for setting in self._attack.settings for word in ("-o", setting)]
        command = [word if word != "WARNING" else "INFO" for word in super().command()] + options
        if self._attack.descriptors is None:
            return command
        return ["sh", "-c", f'ulimit -n {self._attack.descriptors}; exec "$@"', "sh", *command]

    def memory(self) -> tuple[float, float]:
        """Resident MB, and how much of that is not mapped files."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return tuple(int(status[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


class Memory(threading.Thread):
    """Samples the server's memory at short intervals."""

    def __init__(self, server: HostileServer) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._over = threading.Event()
        self.peak = self.own_peak = 0.0

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            try:
                resident, own = self._server.memory()
            except (OSError, KeyError):
                return
            self.peak, self.own_peak = max(self.peak, resident), max(self.own_peak, own)

    def stop(self) -> None:
        """End."""
        self._over.set()
        self.join()


class Outcome(NamedTuple):
    """The results of a row."""

    p99_ms: dict[str, float]
    max_ms: dict[str, float]
    expelled: int
    failures: list[str]
    before_mb: float
    peak_mb: float
    after_mb: float
    own_before_mb: float
    own_peak_mb: float
    log_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows; the exit code is 1 if a client was kept waiting, was expelled or failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hostile", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-k", metavar="WORD", help="only the rows whose name contains it")
    parser.add_argument("--quick", action="store_true", help="watch each attack for a shorter time")
    options = parser.parse_args(arguments)
    rows = [attack for attack in (*ATTACKS, PAUSE) if not options.k or options.k.lower() in attack.name.lower()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(f"{'':34} {'p99 ms':>8} {'max ms':>8} {'worst':>10} {'resident MB':>20} {'own MB':>12}  log", flush=True)
    missed = []
    with tempfile.TemporaryDirectory(prefix="muster-hostile-") as folder:
        for number, attack in enumerate(rows):
            share = QUICK if options.quick and attack is not PAUSE else 1.0
            try:
                outcome = measure(attack, Path(folder) / str(number), attack.seconds * share)
            except BenchmarkError as error:
                print(f"{attack.name:34} {error}", flush=True)
                missed.append(attack.name)
                continue
            show(attack.name, outcome)
            patient = attack is PAUSE or max(outcome.p99_ms.values(), default=0) <= TARGET_MS
            if not patient or outcome.failures or outcome.expelled:
                missed.append(attack.name)
    print(
        f"\np99 above {TARGET_MS:.0f} ms, members expelled or failures in {len(missed)} of {len(rows)} rows: {missed}"
    )
    print(machine())
    return 1 if missed else 0


def measure(attack: Attack, folder: Path, seconds: float) -> Outcome:
    """One row."""
    server = HostileServer(folder, attack)
    server.prepare()
    server.start()
    try:
        attack.prepare(server.address)
        beside = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bystanders", f"{server.address[0]}:{server.address[1]}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            return _watch(attack, server, beside, seconds)
        finally:
            beside.kill()
            beside.wait()
    finally:
        server.stop()


def _watch(attack: Attack, server: HostileServer, beside: subprocess.Popen[str], seconds: float) -> Outcome:
    assert beside.stdout is not None
    if beside.stdout.readline() != "running\n":
        raise BenchmarkError("the bystanders did not start")
    time.sleep(0.5)
    (before, own_before), memory = server.memory(), Memory(server)
    memory.start()
    until = time.monotonic() + seconds
    attack.run(Field(server.address, server.pid, until))
    time.sleep(max(until - time.monotonic(), 0) + AFTER_S)
    memory.stop()
    after, _ = server.memory()
    try:
        told, _ = beside.communicate(timeout=80)
        seen = json.loads(told)
    except (subprocess.TimeoutExpired, ValueError):
        raise BenchmarkError("the bystanders were not answered within 80 s") from None
    late = {name: sorted(found) for name, found in seen["latencies"].items() if found}
    return Outcome(
        {name: found[int(len(found) * 0.99)] for name, found in late.items()},
        {name: found[-1] for name, found in late.items()},
        seen["expelled"],
        seen["failures"],
        before,
        memory.peak,
        after,
        own_before,
        memory.own_peak,
        os.path.getsize(server.folder / "log"),
    )


def show(name: str, outcome: Outcome) -> None:
    """Print a row."""
    worst = max(outcome.p99_ms, key=lambda one: outcome.p99_ms[one], default="none")
    p99, longest = outcome.p99_ms.get(worst, float("nan")), max(outcome.max_ms.values(), default=float("nan"))
    resident = f"{outcome.before_mb:.0f} > {outcome.peak_mb:.0f} > {outcome.after_mb:.0f}"
    own = f"{outcome.own_before_mb:.0f} > {outcome.own_peak_mb:.0f}"
    trouble = [f"expelled {outcome.expelled}"] * bool(outcome.expelled) + sorted(set(outcome.failures))[:2]
    print(
        f"{name:34} {p99:8.1f} {longest:8.0f} {worst:>10} {resident:>20} {own:>12}  {outcome.log_bytes:,} B "
        + "; ".join(trouble),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
