"""Secrets: references to environment and files; nothing that Spark shows contains them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import certificates, startup

from spark_groupsource.broker.config import broker_config
from spark_groupsource.common.config_providers import resolve
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.notebook.cluster import parse_settings
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.secret_options import shown_secrets
from spark_groupsource.source.options.value_options import registry_format

OPTIONS = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "kafka.group.id": "g"}
LOGIN = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "ann"}


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAFKA_PASSWORD", "hush-env")
    (tmp_path / "secrets.properties").write_text("# comment\npassword = hush=file\n")
    (tmp_path / "password").write_text("hush-directory")
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("${env:KAFKA_PASSWORD}", "hush-env"),
        ("${file:DIR/secrets.properties:password}", "hush=file"),
        ("${directory:DIR:password}", "hush-directory"),
        ("a${env:KAFKA_PASSWORD}b$", "ahush-envb$"),
        ("$ConnectionString", "$ConnectionString"),
        ("${}", "${}"),
    ],
)
def test_references(secrets: Path, reference: str, value: str) -> None:
    given = {**OPTIONS, **LOGIN, "kafka.sasl.password": reference.replace("DIR", str(secrets))}
    assert parse_options(given, "stream").client.security.password == value


def test_references_in_settings_of_a_registry(secrets: Path) -> None:
    registry = {
        "schema.registry.url": f"${{file:{secrets}/registry.properties:url}}",
        "basic.auth.user.info": "ann:${env:KAFKA_PASSWORD}",
        "schema.registry.ssl.truststore.location": f"${{file:{secrets}/registry.properties:ca}}",
    }
    (secrets / "registry.properties").write_text("url=https://registry:8081\nca=/ca.pem\n")
    given = {**OPTIONS, "value.format": "avro", **{f"value.{name}": text for name, text in registry.items()}}
    # of a query, of a notebook or a command
    for found in (parse_options(given, "batch").values.value, registry_format("value", "avro", registry)):
        assert found.registry is not None and found.registry.tls is not None
        assert (found.registry.urls, found.registry.user_info) == (("https://registry:8081",), "ann:hush-env")
        assert found.registry.tls.ca_file == "/ca.pem"


def test_references_in_settings_of_the_notebook(secrets: Path) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "ann"}
    assert parse_settings("a:1", {**login, "sasl_password": "${env:KAFKA_PASSWORD}"}).security.password == "hush-env"
    with pytest.raises(ConfigurationError, match="Option sasl.password refers to environment variable NO_SUCH"):
        parse_settings("a:1", {**login, "sasl_password": "${env:NO_SUCH}"})
    with pytest.raises(ConfigurationError, match="sasl_password must be a text, .*, got bytes.") as error:
        parse_settings("a:1", {**login, "sasl_password": b"hush"})
    assert "hush" not in str(error.value)
    with pytest.raises(ConfigurationError, match="Argument group_id must be a text, .*, got NoneType."):
        parse_settings("a:1", {"group_id": None})


@pytest.mark.parametrize("name", ["subscribePattern", "rebalanceLog"])
def test_other_options_have_no_references(name: str) -> None:
    given = {**OPTIONS, name: "a${env:HOME}"}
    given = {key: text for key, text in given.items() if key != "subscribe" or name != "subscribePattern"}
    options = parse_options(given, "stream")
    assert "a${env:HOME}" in (options.subscribe_pattern, options.rebalance_log)


def test_whitespace_around_a_secret_is_no_part_of_it(secrets: Path) -> None:
    (secrets / "mounted").write_text("hush\n")
    given = {**OPTIONS, **LOGIN, "kafka.sasl.password": f"${{directory:{secrets}:mounted}}"}
    assert parse_options(given, "stream").client.security.password == "hush"


def test_kafkas_declarations_of_providers() -> None:
    declared = {
        "config.providers": "e",
        "config.providers.e.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "config.providers.e.param.allowlist.pattern": ".*",
    }
    assert set(resolve({**declared, "a": "${e:PATH}"})) == {"a"}
    with pytest.raises(ConfigurationError, match="providers.v.class must be one of EnvVarConfigProvider, .*Vault"):
        resolve({"config.providers.v.class": "x.VaultConfigProvider"})


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${env:NO_SUCH_NAME}", "refers to environment variable NO_SUCH_NAME, which does not exist"),
        ("${file:DIR/secrets.properties:other}", "refers to key other of .*secrets.properties, which does not exist"),
        ("${file:DIR/none:other}", "refers to the file .*none, which cannot be read: No such file"),
        ("${directory:DIR:../x}", "has a directory"),
        ("${vault:a:b}", "reference to the provider 'vault'. Use one of env, file, directory"),
    ],
)
def test_references_that_cannot_be_resolved(secrets: Path, reference: str, message: str) -> None:
    given = {**OPTIONS, **LOGIN, "kafka.sasl.password": reference.replace("DIR", str(secrets))}
    with pytest.raises(ConfigurationError, match=f"Option kafka.sasl.password .*{message}") as raised:
        parse_options(given, "stream")
    assert "hush" not in str(raised.value)


def test_settings_of_the_broker(secrets: Path) -> None:
    assert broker_config({"ssl.key.password": "${env:KAFKA_PASSWORD}"}).security.ssl_key_password == "hush-env"


def test_text_of_a_login_module_is_not_repeated() -> None:
    given = {**OPTIONS, **LOGIN, "kafka.sasl.jaas.config": 'password="hush" username="ann";'}
    with pytest.raises(ConfigurationError, match="must name one of PlainLoginModule, .* got another text") as raised:
        parse_options(given, "stream")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"kafka.sasl.password": "x", "kafka.sasl.jaas.config": 'M required password="x";'}, []),
        ({"kafka.ssl.keystore.key": "x", "Kafka.ssl.key.pem": "x"}, ["Kafka.ssl.key.pem", "kafka.ssl.keystore.key"]),
        ({"kafka.ssl.keystore.key": "${directory:/secrets:key.pem}", "kafka.ssl.ca.pem": "x"}, []),
        ({"value.basic.auth.user.info": "ann:x"}, ["value.basic.auth.user.info"]),
        ({"value.basic.auth.user.info": "${env:A}:${env:B}"}, []),
    ],
)
def test_secrets_that_spark_shows_are_known(options: dict[str, str], names: list[str]) -> None:
    assert shown_secrets(options) == names


ROOT = Path(__file__).parents[2]
APPLICATION = '''
import json, sys, traceback
from urllib.request import urlopen
import spark_groupsource as gs
from pyspark.sql import SparkSession

directory, tls = sys.argv[1:]
login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="hush-password";'
config = {
    "listeners": "SASL_SSL://127.0.0.1:0",
    "ssl.keystore.location": tls,
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
}
broker = gs.EmbeddedBroker(config=config, topics={"t": [b"1", b"2"]}).start()
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "true").config("spark.ui.port", "0")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", directory)
    .config("spark.eventLog.compress", "false").config("spark.eventLog.logStageExecutorMetrics", "true").getOrCreate()
)
client = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="%s";'

def options(password):
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t", "kafka.group.id": "g",
        "startingOffsets": "earliest", "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": client % password, "kafka.ssl.ca.location": tls.replace("server", "ca"),
        "kafka.ssl.keystore.certificate.chain": open(tls.replace("server", "client")).read(),
        "kafka.ssl.keystore.key": "${directory:%s:key.pem}" % tls.rpartition("/")[0],
    }

def show_ui(path):
    with urlopen(spark.sparkContext.uiWebUrl + path) as page:
        print(f"page {path}", page.read().decode())

spark.sparkContext.setLogLevel("INFO")
for password in ("hush-password", "hush-wrong"):
    stream = spark.readStream.format("groupsource").options(**options(password)).load()
    stream.explain(True)
    print(repr(stream), stream._jdf.queryExecution().toString())
    checkpoint = f"{directory}/checkpoint-{len(password)}"
    writer = stream.writeStream.format("memory").queryName("q").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        print(query.lastProgress, query.status, query.recentProgress)
        print(spark.table("q").count(), "records")
        query.explain(True)
    except Exception:
        traceback.print_exc()
        print(query.exception())
    batch = spark.read.format("groupsource").options(**{**options(password), "endingOffsets": "latest"}).load()
    batch.explain("formatted")
    try:
        print(batch.count(), "rows")
    except Exception:
        traceback.print_exc()
    show_ui(f"/StreamingQuery/statistics/?id={query.runId}")
application = f"/api/v1/applications/{spark.sparkContext.applicationId}"
executions = json.loads(urlopen(spark.sparkContext.uiWebUrl + application + "/sql").read())
assert executions
for execution in executions:
    show_ui(f"/SQL/execution/?id={execution['id']}")
for page in ("jobs", "stages", "SQL", "StreamingQuery", "environment", "executors"):
    show_ui(f"/{page}/")
for resource in ("sql?details=true&planDescription=true", "environment", "jobs", "stages"):
    show_ui(f"{application}/{resource}")
spark.stop()
broker.stop()
'''


@pytest.mark.slow
@pytest.mark.spark
def test_spark_shows_no_secrets(tmp_path: Path) -> None:
    """Plans, progress, event log, UI, logs, checkpoint and exceptions, with a right and a wrong password."""
    directory = tmp_path / "events"
    directory.mkdir()
    for name, text in (
        ("server", certificates.KEY + certificates.SERVER),
        ("ca", certificates.CA),
        ("client", certificates.CLIENT),
        ("key", certificates.KEY),
    ):
        (tmp_path / f"{name}.pem").write_text(text)
    # Spark finds modules named pyspark_* on the path, which an editable installation is not part of
    run = subprocess.run(
        [sys.executable, "-c", APPLICATION, str(directory), str(tmp_path / "server.pem")],
        env={**os.environ, "PYTHONPATH": startup.python_path(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert "2 records" in run.stdout and "2 rows" in run.stdout
    assert run.stderr.count("Authentication of user 'ann'") >= 2
    # the pages show plans of the source
    assert run.stdout.count("page /SQL/execution/") >= 2 and run.stdout.count("groupsource") >= 10
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert any(path.parent.name == "offsets" for path in files)
    written = {str(path): path.read_bytes().decode("latin-1") for path in files}
    shown = {"output": run.stdout, "errors": run.stderr, **written}
    key_line = certificates.KEY.splitlines()[1]
    leaks = [(name, secret) for name, text in shown.items() for secret in ("hush-", key_line) if secret in text]
    assert leaks == []
