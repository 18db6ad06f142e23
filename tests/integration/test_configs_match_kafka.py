"""DescribeConfigs of muster and of Apache Kafka 4.2: the same settings are described in the same way."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol import messages as m
from muster.protocol.api import ApiKey
from muster.protocol.primitives import Request
from tests.support.same_answers import Step, World, compare, plain, versions

pytestmark = pytest.mark.slow


def describe(
    kind: int, name: str, keys: list[str] | None = None, synonyms: bool = True, documentation: bool = False
) -> Request[Any]:
    return m.DescribeConfigsRequest([m.DescribeConfigsResource(kind, name, keys)], synonyms, documentation)


def without_controllers_settings(found: Any) -> None:
    """Kafka's controller sets min.insync.replicas for all brokers; muster has no settings for all brokers."""
    for result in found["results"]:
        result["configs"] = [setting for setting in result["configs"] if setting["name"] != "min.insync.replicas"]


def test_describe_configs(worlds: tuple[World, World]) -> None:
    some = ["num.partitions", "log.retention.hours", "log.retention.ms", "group.max.size", "message.max.bytes"]
    steps: list[Step] = [
        ("a topic", lambda w: describe(2, w.topic)),
        ("a topic without synonyms", lambda w: describe(2, w.topic, synonyms=False)),
        ("a topic with documentation", lambda w: describe(2, w.topic, documentation=True)),
        ("one setting", lambda w: describe(2, w.topic, ["retention.ms", "no.such"])),
        ("an unknown topic", lambda w: describe(2, f"{w.prefix}-none")),
        ("an invalid topic", lambda w: describe(2, "a b")),
        ("all brokers", lambda w: describe(4, "")),
        ("another broker", lambda w: describe(4, "17")),
        ("no broker", lambda w: describe(4, "abc")),
        ("an unknown kind", lambda w: describe(77, "x")),
        ("a group without a name", lambda w: describe(32, "")),
        ("metrics without a name", lambda w: describe(16, "")),
    ]
    compare(steps, worlds, versions(ApiKey.DESCRIBE_CONFIGS), without_controllers_settings)
    for version in range(1, 5):
        ours, theirs = (plain(world.client.ask(describe(4, "1", some), version), world) for world in worlds)
        assert ours == theirs, f"DescribeConfigs v{version} of the broker: ours, then Kafka's"


HERE_AND_THERE = {
    *("advertised.listeners", "listeners", "log.dirs", "node.id"),  # each broker has its own
    *("max.connections", "min.insync.replicas", "queued.max.request.bytes", "socket.listen.backlog.size"),
}
"""Settings of a broker in which the two differ, as docs/reference/compatibility.md says in its second line."""


@pytest.mark.parametrize("synonyms", [True, False])
@pytest.mark.parametrize("documentation", [True, False])
def test_describe_configs_of_a_broker(worlds: tuple[World, World], synonyms: bool, documentation: bool) -> None:
    """Settings that both have are described alike, except for values and sources that were given to one of them."""
    for version in versions(ApiKey.DESCRIBE_CONFIGS):
        if documentation and version < 3:
            continue
        request = describe(4, "1", None, synonyms, documentation)
        ours, theirs = (
            {each["name"]: each for each in plain(world.client.ask(request, version), world)["results"][0]["configs"]}
            for world in worlds
        )
        for name in (ours.keys() & theirs.keys()) - HERE_AND_THERE:
            one, other = ours[name], theirs[name]
            if one["config_source"] != other["config_source"]:
                for each in (one, other):
                    given = [synonym for synonym in each.pop("synonyms") if synonym["source"] != 5]
                    assert bool(given) == (synonyms and each["config_source"] != 5), f"v{version}: {name}"
                    each["value"] = each["config_source"] = "given to one of them"
            assert one == other, f"v{version}: {name}"


def test_what_one_has_no_settings_of_is_no_error(worlds: tuple[World, World]) -> None:
    """Kafka reports the defaults for KIP-848 groups and client metrics; muster has none to report."""
    for kind in (32, 16):
        ours, theirs = (world.client.ask(describe(kind, world.prefix), 4).results[0] for world in worlds)
        assert (ours.error_code, ours.configs) == (theirs.error_code, [])
