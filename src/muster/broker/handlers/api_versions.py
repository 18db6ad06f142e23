"""ApiVersions (18): the APIs and versions of this broker.

v3: the client sends its name and version. v4: as v3. The answer always has header version 0; if the requested version
is unknown, the answer itself is v0 (KIP-511).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from struct import Struct

from muster.broker.features import SUPPORTED, Features
from muster.broker.net.calls import SMALL, Call, Fast
from muster.errors import ErrorCode
from muster.protocol import codec
from muster.protocol.api import ADVERTISED, ApiKey
from muster.protocol.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from muster.protocol.primitives import TooManyElementsError

_HEADER = Struct(">ii")
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


_REFUSED = ApiVersionsResponse(ErrorCode.INVALID_REQUEST)


def spoken(keys: Iterable[int] = ADVERTISED, features: Features | None = None) -> ApiVersionsResponse:
    """The answer of a listener that serves these requests. It changes with the features."""
    served = ApiVersionsResponse(api_keys=[ApiVersion(int(key), *ADVERTISED[ApiKey(key)]) for key in sorted(keys)])
    if features is not None:
        served.supported_features = [SupportedFeatureKey(name, *levels) for name, levels in SUPPORTED.items()]
        _finalize(served, features)
        features.on_change.append(partial(_finalize, served, features))
    return served


def _finalize(served: ApiVersionsResponse, features: Features) -> None:
    """Clients take a finalized feature only with an epoch; a feature of level 0 is not finalized."""
    served.finalized_features_epoch = features.epoch
    served.finalized_features = [
        FinalizedFeatureKey(name, level, level) for name, level in features.levels.items() if level
    ]


def api_versions(served: ApiVersionsResponse, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    """Names and version ranges of all requests that are `served`."""
    return _answer(served, request, call.version)


def _answer(served: ApiVersionsResponse, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
    if version >= 3 and not (
        _NAME.match(request.client_software_name) and _NAME.match(request.client_software_version)
    ):
        return _REFUSED
    return served


def fast_api_versions(served: ApiVersionsResponse) -> Fast:
    """The fast path: each answer is encoded once. Every connection begins with this request."""
    encoded: dict[tuple[int, int, int], bytes] = {}

    def answer(frame: bytes, position: int, version: int, correlation_id: int) -> bytes | None:
        try:
            request = codec.decode(ApiVersionsRequest, version, frame, position, SMALL)
        except TooManyElementsError:
            return None
        response = _answer(served, request, version)
        kind = (version, response.error_code, served.finalized_features_epoch)
        body = encoded.get(kind)
        if body is None:
            body = encoded[kind] = codec.encode(response, version)
        return _HEADER.pack(len(body) + 4, correlation_id) + body

    return answer


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in v0, to an ApiVersions of an unknown version: the supported versions."""
    first, last = ADVERTISED[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        ErrorCode.UNSUPPORTED_VERSION, api_keys=[ApiVersion(int(ApiKey.API_VERSIONS), first, last)]
    )
