"""ApiVersions (18): what this broker speaks.

v3: the client says its name and version. v4: as v3. The answer always has header version 0; if the version asked for is
not known, the answer itself is v0 (KIP-511).
"""

from __future__ import annotations

import re

from muster.broker.calls import Call
from muster.errors import ErrorCode
from muster.protocol.api import ADVERTISED, ApiKey
from muster.protocol.messages import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def api_versions(request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    """Names and version ranges of all requests."""
    if call.version >= 3 and not (
        _NAME.match(request.client_software_name) and _NAME.match(request.client_software_version)
    ):
        return ApiVersionsResponse(ErrorCode.INVALID_REQUEST)
    keys = [ApiVersion(int(key), first, last) for key, (first, last) in sorted(ADVERTISED.items())]
    return ApiVersionsResponse(api_keys=keys)


def unsupported_version() -> ApiVersionsResponse:
    """The answer in v0 to an ApiVersions of an unknown version: it tells the versions that are known."""
    first, last = ADVERTISED[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        ErrorCode.UNSUPPORTED_VERSION, api_keys=[ApiVersion(int(ApiKey.API_VERSIONS), first, last)]
    )
