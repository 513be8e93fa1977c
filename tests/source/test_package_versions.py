"""Two versions of the package on the driver and on an executor."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.spark import worker_connection
from spark_groupsource.source.spark.batch_reader import GroupBatchReader
from spark_groupsource.source.spark.sink_writers import SinkBatchWriter, SinkStreamWriter
from spark_groupsource.source.spark.stream_reader import GroupStreamReader, InferringStreamReader
from spark_groupsource.source.spark.table_reader import OffsetsLogStreamReader, TableReader
from spark_groupsource.version import __version__

CLASSES = [
    GroupBatchReader, GroupStreamReader, InferringStreamReader, TableReader, OffsetsLogStreamReader, SinkBatchWriter,
    SinkStreamWriter,
]  # fmt: skip


def not_found() -> None:
    raise AttributeError("Can't get attribute 'Missing'")


class Missing:
    """A value whose class the version of the executor lacks."""

    def __reduce__(self) -> Any:
        return not_found, ()


def created(kind: type[Any], **state: Any) -> Any:
    found = kind.__new__(kind)
    found.__dict__.update(_driver=7, **state)
    return found


@pytest.mark.parametrize("kind", CLASSES)
def test_a_copy_of_the_same_version_is_equal(kind: type[Any]) -> None:
    copy = pickle.loads(pickle.dumps(created(kind)))
    assert type(copy) is kind and copy._driver == 7  # private: part of the state


@pytest.mark.parametrize("kind", CLASSES)
def test_another_version_is_named_before_what_differs(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as driver:
        driver.setattr(worker_connection, "__version__", "9.8.7")
        data = pickle.dumps(created(kind, _options=Missing()))
    expected = f"the driver has spark-groupsource 9.8.7, the Python worker of this executor {__version__}. Install"
    with pytest.raises(ConfigurationError, match=expected):
        pickle.loads(data)
