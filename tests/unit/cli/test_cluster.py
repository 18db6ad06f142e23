"""How `muster cluster up` handles signals. tests/integration/local tests what it starts."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from muster.cli.servers.cluster import STOPPING, StopSignals


@pytest.mark.parametrize("number", STOPPING)
def test_the_first_signal_interrupts_and_the_next_shortens_the_end(number: signal.Signals):
    before = signal.getsignal(number)
    shortened: list[str] = []
    signals = StopSignals()
    signals.on_second = lambda: shortened.append("killed")
    with signals:
        with pytest.raises(KeyboardInterrupt) as reported:
            os.kill(os.getpid(), number)
        assert reported.value.args == (number,), "main makes the exit code of it"
        assert not shortened
        with contextlib.suppress(KeyboardInterrupt):  # it would end the tests
            os.kill(os.getpid(), number)
        assert shortened == ["killed"]
    assert signal.getsignal(number) is before


def test_behind_nohup_a_closed_terminal_ends_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals():
            try:
                os.kill(os.getpid(), signal.SIGHUP)
            except KeyboardInterrupt:  # it would end the tests
                pytest.fail("the cluster would be stopped")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
