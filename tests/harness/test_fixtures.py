"""The fixtures of `conftest.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from support.clusters import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_cluster_has_one_broker(cluster: Cluster) -> None:
    brokers = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=20).brokers
    assert [f"{b.host}:{b.port}" for b in brokers.values()] == [cluster.bootstrap_servers]


@pytest.mark.spark
def test_spark_runs_python_workers(spark: SparkSession) -> None:
    assert spark.range(10).rdd.map(lambda row: row.id).sum() == 45
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
