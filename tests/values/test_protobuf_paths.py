"""Every way to decode Protobuf values, also damaged, beside google.protobuf."""

from __future__ import annotations

import pytest
from support.examples import scaled
from support.protobuf_paths import check, check_schema


@pytest.mark.parametrize("seed", range(scaled(200, 8)))
def test_every_path_equals_google_protobuf(seed: int) -> None:
    assert check(seed, 8) > 0


@pytest.mark.parametrize("seed", range(scaled(200, 8)))
def test_no_schema_raises_another_error(seed: int) -> None:
    for each in range(10):
        check_schema(10 * seed + each)
