"""UpdateFeatures (57, KIP-584): the levels of finalized features, changed while the broker runs. Checks, their order
and their messages are those of Kafka's controller.

v1: kinds of downgrades, and requests that only validate. v2: no results for individual features.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Protocol

from muster.broker.features import SUPPORTED, Features, Levels
from muster.broker.net.calls import Call
from muster.errors import NONE, ErrorCode, KafkaError
from muster.protocol.admin_messages import UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse

log = logging.getLogger("muster.broker")


Change = Callable[[Levels], Levels]
"""The levels to be written, from the current ones. Raises KafkaError."""


class UpgradeType(IntEnum):
    """Which changes of a level a request allows. No downgrade of these features loses anything."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureAdmin(Protocol):
    """Changes features for all brokers (zookeeper_cluster.py)."""

    def update_features(self, change: Change, timeout_ms: int, done: Callable[[KafkaError | None], None]) -> None:
        """Change levels; `done` gets the error, if there is one."""


def update_features(
    features: Features, node_id: int, cluster_admin: FeatureAdmin | None, request: UpdateFeaturesRequest, call: Call
) -> UpdateFeaturesResponse | None:
    """Change all of the levels in the request, or none."""
    change = partial(_changed, request, node_id)
    if cluster_admin is not None:
        cluster_admin.update_features(
            change, request.timeout_ms, lambda error: call.reply(_answer(request, call, error))
        )
        return None
    try:
        if levels := change(features.levels):
            features.put(levels)
    except KafkaError as error:
        return _answer(request, call, error)
    except OSError as error:
        log.error("could not store the levels of features: %s", error)
        text = f"The levels could not be stored: {error.strerror}"
        return _answer(request, call, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text))
    return _answer(request, call, None)


def _answer(request: UpdateFeaturesRequest, call: Call, error: KafkaError | None) -> UpdateFeaturesResponse:
    if error is not None:
        return UpdateFeaturesResponse(0, error.code, error.message)
    if call.version > 1:
        return UpdateFeaturesResponse()
    results = [UpdatableFeatureResult(each.feature, NONE, "NONE") for each in request.feature_updates]
    return UpdateFeaturesResponse(results=results)


def _changed(request: UpdateFeaturesRequest, node_id: int, levels: Levels) -> Levels:
    """The levels to be written, none with `validate_only`. Raises KafkaError."""
    # As in Kafka's controller, the last update of a feature counts, in the position of its first.
    wanted = {each.feature: (each.max_version_level, each.upgrade_type) for each in request.feature_updates}
    for name, (level, kind) in wanted.items():
        why = _refusal(levels, node_id, name, level, kind)
        if why is not None:
            text = f"Invalid update version {level} for feature {name}. {why}"
            whole = f"The update failed for all features since the following feature had an error: {text}"
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, whole)
    return {} if request.validate_only else {name: level for name, (level, _) in wanted.items()}


def _refusal(levels: Levels, node_id: int, name: str, level: int, kind: int) -> str | None:
    if kind not in list(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if name not in SUPPORTED:
        return f"Local controller {node_id} does not support this feature." if level else f"Feature {name} not found."
    oldest, newest = SUPPORTED[name]
    if not oldest <= level <= newest:
        return f"Local controller {node_id} only supports versions {oldest}-{newest}"
    if level < levels[name] and kind == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > levels[name] and kind != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None
