"""Commands about all brokers of a cluster in which one is frozen or down: they print the other brokers' answers, name
the broker, and exit with 1."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import AsyncIterator

import pytest

from muster.cli.main import main
from tests.support.broker_away import World, running
from tests.support.brokers import in_thread

pytestmark = pytest.mark.slow(25)

LIMITS_MS = (2_000, 10_000, 50_000)
"""The first is longer than the second after which a request that any broker may answer is sent to another broker. On a
busy machine the running broker may need longer."""


@pytest.fixture(params=["frozen", "down"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with running(request.param) as found:
        yield found


async def code_of(world: World, *words: str) -> int:
    """The exit code of a command that got the answers of broker 1."""
    for world.limit_ms in LIMITS_MS:
        limit = ["--timeout-ms", str(world.limit_ms), "--log-level", "ERROR"]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code: int = await in_thread(main, [*words, "--bootstrap", world.first.bootstrap, *limit])
        if "broker 2 (" in err.getvalue() and "broker 1" not in err.getvalue():
            break
    sys.stdout.write(out.getvalue())
    sys.stderr.write(err.getvalue())
    return code


def away(world: World) -> str:
    return f"broker 2 (127.0.0.1:{world.other_port}) did not answer within {world.limit_ms} ms"


async def test_the_ids_of_the_others_are_listed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert await code_of(world, "transactions", "list") == 1
    said = capsys.readouterr()
    assert [line.split() for line in said.out.splitlines()[1:]] == [["here", "1", "7", "Ongoing"]]
    assert said.err.startswith(f"muster: the ids that broker 2 coordinates are missing: {away(world)}")
    assert len(said.err.splitlines()) == 1


async def test_the_ids_of_the_others_are_described(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    ids = ["--transactional-id", "here", "--transactional-id", "away"]
    assert await code_of(world, "transactions", "describe", *ids) == 1
    said = capsys.readouterr()
    assert [line.split()[:3] for line in said.out.splitlines()[1:]] == [["1", "here", "7"]]
    assert said.err.startswith(f"muster: {away(world)}")


async def test_no_transaction_is_said_to_hang_while_a_coordinator_is_away(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await code_of(world, "transactions", "find-hanging", "--topic", "t") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"muster: {away(world)}")


async def test_partitions_of_the_others_are_searched(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.is_any_open = False
    assert await code_of(world, "transactions", "find-hanging", "--topic", "t") == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert said.err.startswith(f"muster: t-1 could not be searched: {away(world)}")


async def test_the_lag_of_the_others_groups_is_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert await code_of(world, "lag") == 1
    said = capsys.readouterr()
    rows = [line.split()[:7] for line in said.out.splitlines()[1:]]
    assert rows == [["here", "Empty", "t", "0", "2", "5", "3"], ["here", "Empty", "t", "1", "2", "-", "-"]]
    groups, place = said.err.splitlines()
    assert groups.startswith(f"muster: the groups that broker 2 coordinates are missing: {away(world)}")
    assert place.startswith(f"muster: the lag in t-1 is not known: {away(world)}")


async def test_of_named_groups_the_others_are_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert await code_of(world, "lag", "--group", "here", "--group", "away") == 1
    said = capsys.readouterr()
    assert {line.split()[0] for line in said.out.splitlines()[1:]} == {"here"}
    assert said.err.startswith(f"muster: group away cannot be described: {away(world)}")
