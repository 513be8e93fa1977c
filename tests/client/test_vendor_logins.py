"""Configurations that vendors document: accepted, or rejected with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.provider_logins import ACCEPTED_LOGINS

from spark_groupsource.cli.common import client_properties
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.net import Address
from spark_groupsource.errors import ConfigurationError

# vendor -> properties, and a part of the message
REJECTED: dict[str, tuple[str, str]] = {
    "Azure Event Hubs, MirrorMaker sample with an own handler": (
        """
bootstrap.servers=mynamespace.servicebus.windows.net:9093
client.id=mirror_maker_producer
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
sasl.login.callback.handler.class=CustomAuthenticateCallbackHandler
connections.max.idle.ms=180000
metadata.max.age.ms=180000
""",
        "names CustomAuthenticateCallbackHandler, a class in Java.*Set kafka.sasl.oauthbearer.token.endpoint.url",
    ),
    "Confluent Platform, token of a user": (
        """
bootstrap.servers=kafka:9092
sasl.mechanism=OAUTHBEARER
security.protocol=SASL_PLAINTEXT
sasl.login.callback.handler.class=io.confluent.kafka.clients.plugins.auth.token.TokenUserLoginCallbackHandler
""",
        "names TokenUserLoginCallbackHandler, a class in Java.*Set kafka.sasl.oauthbearer.token.endpoint.url",
    ),
    "Strimzi, OAuth by environment variables": (
        """
bootstrap.servers=my-cluster-kafka-bootstrap:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
""",
        "is OAUTHBEARER without a token source. Set kafka.sasl.oauthbearer.token.endpoint.url",
    ),
    "Azure Event Hubs, sample with an own handler": (
        """
bootstrap.servers=mynamespace.servicebus.windows.net:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
sasl.login.callback.handler.class=CustomAuthenticateCallbackHandler
""",
        "names CustomAuthenticateCallbackHandler, a class in Java.*Set kafka.sasl.oauthbearer.token.endpoint.url",
    ),
    "Kerberos": (
        """
bootstrap.servers=kafka:9092
security.protocol=SASL_PLAINTEXT
sasl.mechanism=GSSAPI
sasl.kerberos.service.name=kafka
sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;
""",
        "Kerberos is not supported. Use a listener of the cluster with SCRAM or TLS",
    ),
    "OAuth with a signed assertion": (
        """
bootstrap.servers=kafka:9092
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.jwt.retriever.class=org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever
sasl.oauthbearer.token.endpoint.url=https://idp/token
""",
        "jwt.retriever.class names JwtBearerJwtRetriever, which is not supported. Set ",
    ),
    "librdkafka without verification": (
        """
bootstrap.servers=kafka:9092
security.protocol=SSL
enable.ssl.certificate.verification=false
""",
        "enable.ssl.certificate.verification must be true.* Set kafka.ssl.ca.location",
    ),
    "MSK without a region": (
        """
bootstrap.servers=10.0.0.1:9098
security.protocol=SASL_SSL
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;
""",
        "does not name a region of AWS.* AWS_REGION",
    ),
    "endpoint without credentials": (
        """
bootstrap.servers=kafka:9092
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=https://idp/token
sasl.oauthbearer.client.id=ID
""",
        "Set kafka.sasl.oauthbearer.client.credentials.client.secret, or clientId",
    ),
    "MSK with the keys of a role": (
        """
bootstrap.servers=b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098
security.protocol=SASL_SSL
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required awsRoleArn="r" awsRoleAccessKeyId="A" \
awsRoleSecretAccessKey="hush";
""",
        "has awsRoleAccessKeyId, which is not supported. Set the environment variables AWS_ACCESS_KEY_ID",
    ),
    "Strimzi, token as text": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
oauth.access.token="hush";
sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
""",
        "has oauth.access.token, which is not supported. Write the token to a file and set "
        "kafka.sasl.oauthbearer.token.endpoint.url=file:///PATH",
    ),
    "Strimzi, refresh token": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
oauth.client.id="ID" oauth.refresh.token="hush" oauth.token.endpoint.uri="https://keycloak/token";
sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
""",
        "has oauth.refresh.token, which is not supported. Set kafka.sasl.oauthbearer.token.endpoint.url",
    ),
    "Strimzi, PKCS12 store of the endpoint": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
oauth.client.id="ID" oauth.client.secret="hush" oauth.token.endpoint.uri="https://keycloak/token" \
oauth.ssl.truststore.location="/opt/ca.p12" oauth.ssl.truststore.password="hush";
sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
""",
        "has oauth.ssl.truststore.location, which is supported for PEM files alone. Set kafka.https.ca.location",
    ),
    "Kafka 4, key store for the endpoint": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
clientId="ID" clientSecret="hush" ssl.keystore.location="/opt/own.p12";
sasl.oauthbearer.token.endpoint.url=https://idp/token
""",
        "has ssl.keystore.location, which is not supported. Use a token endpoint without client certificates",
    ),
    "delegation token": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="id" \
password="hush" tokenauth="true";
""",
        "has tokenauth, which is not supported: delegation tokens. Use the name and the password of a SCRAM user",
    ),
    "Confluent Platform, metadata service": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.login.callback.handler.class=io.confluent.kafka.clients.plugins.auth.token.TokenUserLoginCallbackHandler
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required username="u" \
password="hush" metadataServerUrls="http://localhost:8090";
""",
        "names TokenUserLoginCallbackHandler, a class in Java.*Set kafka.sasl.oauthbearer.token.endpoint.url",
    ),
    "OAUTHBEARER alone": (
        "bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n",
        "is OAUTHBEARER without a token source. Set kafka.sasl.oauthbearer.token.endpoint.url",
    ),
}


def read(tmp_path: Path, text: str) -> ClientSettings:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return ClientSettings.parse(client_properties(path))


@pytest.mark.parametrize("vendor", ACCEPTED_LOGINS)
def test_accepted(tmp_path: Path, vendor: str) -> None:
    text, expected = ACCEPTED_LOGINS[vendor]
    settings = read(tmp_path, text)
    security = settings.security
    assert isinstance(settings.bootstrap[0], Address)
    for name, value in expected.items():
        owner: Any = security
        for part in name.split("."):
            owner = getattr(owner, part)
        assert owner == value, name
    assert "SECRET" not in repr(settings) and "secret" not in repr(settings)
    if security.protocol.endswith("SSL"):
        assert security.tls is not None and security.tls.check_hostname


@pytest.mark.parametrize("vendor", REJECTED)
def test_rejected_with_the_line_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    text, message = REJECTED[vendor]
    with pytest.raises(ConfigurationError, match=message) as raised:
        read(tmp_path, text)
    assert "hush" not in str(raised.value)
