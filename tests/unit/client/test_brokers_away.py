"""Requests to all brokers, coordinators or leaders, one of which is frozen or down: the other answers are kept, and the
error names the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.core.admin.admin import GroupDescription, GroupListing
from muster.client.core.admin.transactions import TransactionListing
from muster.errors import AdminError, ErrorCode, KafkaError, KafkaTimeoutError
from muster.model import OffsetAndTimestamp
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from tests.support.broker_away import LIMIT_MS, PLACES, World, running
from tests.support.skipped_time import skip_waits


@pytest.fixture(params=["frozen", "down"])
async def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    skip_waits(monkeypatch)
    async with running(request.param) as found:
        yield found


@contextlib.asynccontextmanager
async def admin_of(world: World) -> AsyncIterator[AsyncAdmin]:
    async with (
        asyncio.timeout(1_000),
        AsyncAdmin(bootstrap_servers=world.first.bootstrap, default_api_timeout_ms=LIMIT_MS) as admin,
    ):
        await admin.list_offsets({PLACES[0]: -1})  # now broker 1 has a connection, and answers what any broker could
        yield admin


def names_the_broker(world: World, error: object) -> bool:
    said = f"broker 2 (127.0.0.1:{world.other_port}) did not answer within {LIMIT_MS} ms"
    return isinstance(error, KafkaTimeoutError) and str(error).startswith(said)


async def test_what_the_others_list_is_kept(world: World) -> None:
    async with admin_of(world) as admin:
        ids = await admin.list_transactions_by_broker()
        groups = await admin.list_consumer_groups_by_broker()
    assert (ids[1], groups[1]) == (
        [TransactionListing("here", 1, 7, "Ongoing")],
        [GroupListing("here", "consumer", "Stable", "classic")],
    )
    assert names_the_broker(world, ids[2])
    assert names_the_broker(world, groups[2])
    assert len(ids) == len(groups) == 2
    assert world.asked.count(t.ListTransactionsRequest) == 1, "what has answered is not asked again"


async def test_a_list_of_all_fails_if_one_is_away(world: World) -> None:
    async with admin_of(world) as admin:
        with pytest.raises(KafkaTimeoutError, match=r"^broker 2 \(127"):
            await admin.list_transactions()
        with pytest.raises(KafkaTimeoutError, match=r"^broker 2 \(127"):
            await admin.list_consumer_groups()


async def test_a_refusal_is_the_outcome_of_its_broker(world: World) -> None:
    world.refuse = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    async with admin_of(world) as admin:
        found = await admin.list_transactions_by_broker()
    assert isinstance(found[1], KafkaError)
    assert found[1].code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert names_the_broker(world, found[2])


async def test_groups_of_the_other_coordinators_are_described(world: World) -> None:
    async with admin_of(world) as admin:
        found = await admin.describe_consumer_groups(["away-1", "here", "away-2"], raise_errors=False)
        with pytest.raises(AdminError, match=r"^REQUEST_TIMED_OUT: away-1: broker 2 \(127"):
            await admin.describe_consumer_groups(["away-1", "here"])
    assert list(found) == ["away-1", "here", "away-2"]
    assert isinstance(found["here"], GroupDescription)
    assert names_the_broker(world, found["away-1"])
    assert names_the_broker(world, found["away-2"])


async def test_if_only_the_one_that_is_away_was_asked_the_call_fails_with_its_name(world: World) -> None:
    async with admin_of(world) as admin:
        with pytest.raises(KafkaTimeoutError) as caught:
            await admin.describe_consumer_groups(["away-1"], raise_errors=False)
    assert names_the_broker(world, caught.value)


async def test_offsets_of_the_other_leaders_are_listed(world: World) -> None:
    async with admin_of(world) as admin:
        found = await admin.list_offsets(dict.fromkeys(PLACES, -1), raise_errors=False)
    assert isinstance(found[PLACES[0]], OffsetAndTimestamp)
    assert names_the_broker(world, found[PLACES[1]])


@pytest.mark.parametrize("world", ["down"], indirect=True)
async def test_once_it_has_left_the_cluster_all_are_asked_again(world: World) -> None:
    """Its coordinators may have moved to brokers that were asked before."""
    async with admin_of(world) as admin:
        world.leaves_at = world.asked.count(m.MetadataRequest) + 4
        found = await admin.list_transactions_by_broker()
    assert list(found) == [1]
    assert world.asked.count(t.ListTransactionsRequest) == 2
