"""Pairs and page of `make test-matrix`."""

import xml.etree.ElementTree as ElementTree

from support.run_matrix import HEADER, KAFKA, Pair, lowest_versions, merged, row, select

REPORT = """<testsuites><testsuite>
<testcase name="test_a[embedded]"/><testcase name="test_b[kafka]"/>
<testcase name="test_stream_logs_in[SSL]"/><testcase name="test_stream_logs_in[SASL_SSL]"><failure/></testcase>
<testcase name="test_c[2.1.1]"/><testcase name="test_c[3.9.1-gzip]"><skipped/></testcase>
<testcase name="test_d"><error/></testcase>
</testsuite></testsuites>"""


def test_each_spark_and_each_python_is_in_a_pair():
    pairs = select(["4.0", "4.3"], ["3.10", "3.11", "3.12"], all_pairs=False)
    assert pairs == [("4.0", "3.11"), ("4.3", "3.10"), ("4.3", "3.11"), ("4.3", "3.12")]
    assert len(select(["4.0", "4.3"], ["3.10", "3.11", "3.12"], all_pairs=True)) == 6


def test_row_has_the_clusters_and_logins_that_passed(monkeypatch):
    monkeypatch.setattr("support.run_matrix.java", lambda: "17")
    found = row(Pair("4.0", "3.11"), [ElementTree.ElementTree(ElementTree.fromstring(REPORT))])
    assert found == f"| 4.0 | 3.11 | 17 | 2.1.1, {KAFKA}, embedded | SSL | 4 | 1 | 2 |"


def test_rows_of_other_pairs_are_kept():
    old = HEADER + "| 4.0 | 3.9 | 17 | 4.3 | SSL | 1 | 0 | 0 |\n| 4.0 | 3.10 | 17 | 4.3 | SSL | 1 | 0 | 0 |\n"
    new = "| 4.0 | 3.10 | 17 | 4.3 | SSL | 2 | 0 | 0 |"
    assert merged(old, {Pair("4.0", "3.10"): new}) == old.rsplit("\n", 2)[0] + f"\n{new}\n"


def test_the_lowest_version_of_each_dependency_is_a_constraint():
    config = """
[options]
install_requires =
    pyarrow>=18
    kafka-python>=3.0.12,<4
[options.extras_require]
cli =
    # a comment>=1
    rich>=13
test =
    spark-groupsource[cli]
    confluent-kafka[avro,json]>=2.11
"""
    assert lowest_versions(config) == ["confluent-kafka==2.11", "kafka-python==3.0.12", "pyarrow==18", "rich==13"]
