"""A ZooKeeperSession that is not closed, and one that is copied by a fork: in separate processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from tests.support.zookeepers import ZooKeeperServer

PATIENCE_S = 120

UNCLOSED = """
    import asyncio, threading
    from muster.zookeeper.base.operations import Create, Exists
    from muster.zookeeper.session.session import ZooKeeperSession

    async def leave():
        session = ZooKeeperSession({address!r}, timeout_ms=100_000)
        await session.start(100_000)
        await session.ask(Create("/unclosed", ephemeral=True))
        return session

    {how}
    for thread in threading.enumerate():
        if thread.name.startswith("muster-zookeeper"):
            thread.join(100)
            assert not thread.is_alive()

    async def gone():
        async with ZooKeeperSession({address!r}) as session:
            assert await session.ask(Exists("/unclosed")) is None
        await left.close()

    asyncio.run(gone())
    print("ended")
"""


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_an_event_loop_that_ends_without_closing_ends_the_session(own_zookeeper: ZooKeeperServer) -> None:
    done = run_script(UNCLOSED.format(address=own_zookeeper.address, how="left = asyncio.run(leave())"))
    assert (done.returncode, done.stdout.strip()) == (0, "ended"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_event_loop_is_noticed(own_zookeeper: ZooKeeperServer) -> None:
    how = "loop = asyncio.new_event_loop(); left = loop.run_until_complete(leave()); loop.close()"
    script = UNCLOSED.format(address=own_zookeeper.address, how=how).replace("timeout_ms=100_000", "timeout_ms=6_000")
    done = run_script(script)
    assert (done.returncode, done.stdout.strip()) == (0, "ended"), done.stderr


def test_an_interpreter_ends_whatever_is_left_open(own_zookeeper: ZooKeeperServer) -> None:
    done = run_script(
        f"""
        import asyncio, sys
        from muster.zookeeper.session.session import ZooKeeperSession
        loop = asyncio.new_event_loop()
        session = ZooKeeperSession({own_zookeeper.address!r}, timeout_ms=100_000)
        loop.run_until_complete(session.start(100_000))
        print("ended")
        sys.exit(3)
        """
    )
    assert (done.returncode, done.stdout.strip()) == (3, "ended"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_child_gets_an_error_that_the_session_is_its_parents(zookeeper: ZooKeeperServer) -> None:
    script = f"""
        import asyncio, os
        from muster.errors import IllegalStateError
        from muster.zookeeper.base.operations import Exists
        from muster.zookeeper.session.session import ZooKeeperSession

        async def main():
            async with ZooKeeperSession({zookeeper.address!r}) as session:
                child = os.fork()
                if not child:
                    try:
                        await session.ask(Exists("/"))
                    except IllegalStateError as error:
                        os._exit(7 if "ZooKeeperSession belongs to the parent process" in str(error) else 8)
                    os._exit(9)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), await session.ask(Exists("/")) is not None)

        asyncio.run(main())
        """
    done = await asyncio.to_thread(run_script, script)
    assert done.stdout.split() == ["7", "True"], done.stderr
