"""Client of a schema registry: writer's schemas by id.

Source: REST interface of Confluent Schema Registry, which Karapace and Apicurio serve, too.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from spark_groupsource.errors import AuthenticationError, NetworkError
from spark_groupsource.values.registry_address import RegistryAddress

_TIMEOUT_S = 10
_PAUSES_S = (0.1, 0.5, 1, 2, 4, 8, 15)
_MAX_BYTES = 16 * 1024 * 1024
_NOT_FOUND = 404
_UNAUTHORIZED = (401, 403)


class SchemaRegistry:
    """Schemas of a registry; each is requested once per process."""

    def __init__(self, address: RegistryAddress, option: str) -> None:
        self._address = address
        self._option = option
        self._schemas: dict[int, str | None] = {}

    def schema(self, schema_id: int) -> str | None:
        """Returns the text of an Avro schema; None if the registry has no Avro schema with this id.

        Raises: NetworkError if no address responds after several tries; AuthenticationError.
        """
        if schema_id not in self._schemas:
            found = self._get(f"/schemas/ids/{schema_id}")
            is_avro = found is not None and found.get("schemaType", "AVRO") == "AVRO" and not found.get("references")
            self._schemas[schema_id] = str(found["schema"]) if found is not None and is_avro else None
        return self._schemas[schema_id]

    def _get(self, path: str) -> dict[str, Any] | None:
        failure = ""
        for pause_s in (*_PAUSES_S, None):
            for url in self._address.urls:
                try:
                    return self._request(url + path)
                except HTTPError as error:
                    error.close()
                    if error.code == _NOT_FOUND:
                        return None
                    if error.code in _UNAUTHORIZED:
                        raise AuthenticationError(
                            f"Reading {url}{path} failed: the registry responded {error.code}. Correct option "
                            f"{self._option.replace('schema.registry.url', 'basic.auth.user.info')}."
                        ) from None
                    failure = f"{url} responded {error.code}"
                except (URLError, OSError, ValueError) as error:
                    failure = f"{url}: {str(error)[:200]}"
            if pause_s is not None:
                time.sleep(pause_s)
        raise NetworkError(
            f"Reading {path} of the schema registry failed: {failure}. Check option {self._option} and the registry."
        )

    def _request(self, url: str) -> dict[str, Any]:
        request = Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
        if self._address.user_info is not None:
            request.add_header("Authorization", "Basic " + b64encode(self._address.user_info.encode()).decode())
        with urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310, the scheme is checked
            found = json.loads(response.read(_MAX_BYTES))
        if not isinstance(found, dict):
            raise ValueError("the response is no object")
        return found
