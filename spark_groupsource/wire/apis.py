"""The table of APIs: key, message classes and supported versions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Iterator, Mapping, NamedTuple

from spark_groupsource.wire import messages
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import ApiMessage, Request


class Api(NamedTuple):
    """One API with its message classes and the versions that this package can encode and decode."""

    key: ApiKey
    name: str
    request: type[Request[Any]]
    response: type[ApiMessage]
    min_version: int
    max_version: int

    def is_flexible(self, version: int) -> bool:
        """Returns True if the version has compact types and tagged fields (KIP-482)."""
        return version in self.request.SCHEMA.flexible


@lru_cache(maxsize=None)
def api_of_key(key: int) -> Api:
    """Returns an API; its message classes are built from their schemas at the first use. Raises: KeyError."""
    api_key = _KEYS[key]
    name = api_key.api_name
    request: type[Request[Any]] = getattr(messages, f"{name}Request")
    versions = request.SCHEMA.versions
    response: type[ApiMessage] = getattr(messages, f"{name}Response")
    return Api(api_key, name, request, response, versions.start, versions.stop - 1)


def api_of(message: ApiMessage | type[ApiMessage]) -> Api:
    """Returns the API of a request or response."""
    return api_of_key(message.API_KEY)


class _Apis(Mapping[int, Api]):
    def __getitem__(self, key: int) -> Api:
        return api_of_key(key)

    def __iter__(self) -> Iterator[int]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)


_KEYS = {int(key): key for key in ApiKey}

APIS: Mapping[int, Api] = _Apis()
"""API key -> API, for every API that this package sends or serves."""
