"""Login configurations that providers document, and their parsed settings."""

from __future__ import annotations

from typing import Any

from spark_groupsource.client.network.token_sources import EndpointSource, FileSource, GoogleSource, MskSource

# provider -> properties, and what is expected: attributes of SecuritySettings
ACCEPTED_LOGINS: dict[str, tuple[str, dict[str, Any]]] = {
    "Confluent Cloud, Java": (
        """
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=pkc-abc12.us-east-1.aws.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username='KEY' password='SE/CR+ET==';
sasl.mechanism=PLAIN
# Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips
# Best practice for higher availability in Apache Kafka clients prior to 3.0
session.timeout.ms=45000
# Best practice for Kafka producer to prevent data loss
acks=all
""",
        {"sasl_mechanism": "PLAIN", "username": "KEY", "password": "SE/CR+ET=="},
    ),
    "Confluent Cloud, librdkafka": (
        """
bootstrap.servers=pkc-abc12.us-east-1.aws.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.mechanisms=PLAIN
sasl.username=KEY
sasl.password=SECRET
session.timeout.ms=45000
client.id=ccloud-python-client-1
""",
        {"sasl_mechanism": "PLAIN", "username": "KEY", "password": "SECRET"},
    ),
    "Confluent Cloud, Java with Schema Registry": (
        """
bootstrap.servers=pkc-abc12.us-east-1.aws.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username='KEY' password='SECRET';
sasl.mechanism=PLAIN
client.dns.lookup=use_all_dns_ips
session.timeout.ms=45000
acks=all
schema.registry.url=https://psrc-abc12.us-east-2.aws.confluent.cloud
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=REGISTRY_KEY:SECRET
""",
        {"sasl_mechanism": "PLAIN", "username": "KEY", "password": "SECRET"},
    ),
    "Confluent Cloud, example with escaped characters": (
        r"""
ssl.endpoint.identification.algorithm=https
sasl.mechanism=PLAIN
request.timeout.ms=20000
bootstrap.servers=pkc-abc12.us-east-1.aws.confluent.cloud\:9092
retry.backoff.ms=500
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username\="KEY" password\="SECRET";
security.protocol=SASL_SSL
""",
        {"sasl_mechanism": "PLAIN", "username": "KEY", "password": "SECRET"},
    ),
    "Confluent Cloud, OAuth": (
        """
bootstrap.servers=pkc-abc12.us-east-1.aws.confluent.cloud:9092
security.protocol=SASL_SSL
sasl.oauthbearer.token.endpoint.url=https://myidp.example.com/oauth2/default/v1/token
sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler
sasl.mechanism=OAUTHBEARER
sasl.jaas.config= \\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \\
    clientId='ID' \\
    scope='api://kafka' \\
    clientSecret='SECRET' \\
    extension_logicalCluster='lkc-1' \\
    extension_identityPoolId='pool-1';
""",
        {
            "sasl_mechanism": "OAUTHBEARER",
            "token_source": EndpointSource(
                "https://myidp.example.com/oauth2/default/v1/token",
                "ID",
                "SECRET",
                "api://kafka",
                (("identityPoolId", "pool-1"), ("logicalCluster", "lkc-1")),
            ),
        },
    ),
    "Azure Event Hubs, connection string": (
        """
bootstrap.servers=mynamespace.servicebus.windows.net:9093
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="$ConnectionString" \
password="Endpoint=sb://mynamespace.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=ab+c/d=";
""",
        {
            "username": "$ConnectionString",
            "password": "Endpoint=sb://mynamespace.servicebus.windows.net/;SharedAccessKeyName=Root;"
            "SharedAccessKey=ab+c/d=",
        },
    ),
    "Azure Event Hubs on Databricks": (
        """
bootstrap.servers=mynamespace.servicebus.windows.net:9093
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required \
username="$ConnectionString" password="Endpoint=sb://x/;SharedAccessKey=k=";
request.timeout.ms=60000
session.timeout.ms=30000
""",
        {"username": "$ConnectionString", "password": "Endpoint=sb://x/;SharedAccessKey=k="},
    ),
    "Azure Event Hubs, service principal on Databricks": (
        """
bootstrap.servers=mynamespace.servicebus.windows.net:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=kafkashaded.org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
clientId="ID" clientSecret="SECRET" scope="https://mynamespace.servicebus.windows.net/.default" ssl.protocol="SSL";
sasl.oauthbearer.token.endpoint.url=https://login.microsoft.com/TENANT/oauth2/v2.0/token
sasl.login.callback.handler.class=\
kafkashaded.org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler
""",
        {
            "token_source": EndpointSource(
                "https://login.microsoft.com/TENANT/oauth2/v2.0/token",
                "ID",
                "SECRET",
                "https://mynamespace.servicebus.windows.net/.default",
            )
        },
    ),
    "AWS MSK IAM": (
        """
bootstrap.servers=b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098
ssl.truststore.location=/tmp/kafka.client.truststore.jks
security.protocol=SASL_SSL
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;
sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
""",
        {"sasl_mechanism": "AWS_MSK_IAM", "token_source": MskSource("eu-central-1")},
    ),
    "AWS MSK IAM, README of the library": (
        """
bootstrap.servers=b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098
# Sets up TLS
security.protocol = SASL_SSL

sasl.mechanism = AWS_MSK_IAM

sasl.jaas.config = software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="<Credential Profile Name>";

sasl.client.callback.handler.class = software.amazon.msk.auth.iam.IAMClientCallbackHandler
""",
        {"sasl_mechanism": "AWS_MSK_IAM", "token_source": MskSource("eu-central-1", "<Credential Profile Name>")},
    ),
    "AWS MSK IAM on Databricks": (
        """
bootstrap.servers=b-1.demo.abc123.c2.kafka.us-west-2.amazonaws.com:9098
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config=shadedmskiam.software.amazon.msk.auth.iam.IAMLoginModule required;
security.protocol=SASL_SSL
sasl.client.callback.handler.class=shadedmskiam.software.amazon.msk.auth.iam.IAMClientCallbackHandler
""",
        {"sasl_mechanism": "AWS_MSK_IAM", "token_source": MskSource("us-west-2")},
    ),
    "AWS MSK IAM with a role": (
        """
bootstrap.servers=boot-abc.c1.kafka-serverless.us-east-1.amazonaws.com:9098
security.protocol=SASL_SSL
sasl.mechanism=AWS_MSK_IAM
sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required \
awsRoleArn="arn:aws:iam::123456789012:role/msk_client_role" awsRoleSessionName="producer" awsStsRegion="us-west-2";
sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
""",
        {
            "token_source": MskSource(
                "us-east-1", "", "arn:aws:iam::123456789012:role/msk_client_role", "producer", sts_region="us-west-2"
            )
        },
    ),
    "AWS MSK IAM with a role of another account": (
        """
bootstrap.servers=b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098
security.protocol = SASL_SSL
sasl.mechanism = AWS_MSK_IAM
# Binds SASL client implementation.
sasl.jaas.config = software.amazon.msk.auth.iam.IAMLoginModule required awsRoleArn="arn:aws:iam::1:role/r" \
awsRoleExternalId="orders" awsRoleSessionName="producer" awsMaxRetries="7" awsDebugCreds=true;
sasl.client.callback.handler.class = software.amazon.msk.auth.iam.IAMClientCallbackHandler
""",
        {"token_source": MskSource("eu-central-1", "", "arn:aws:iam::1:role/r", "producer", "orders")},
    ),
    "AWS MSK IAM by OAUTHBEARER": (
        """
bootstrap.servers=b-1.demo.abc123.c2.kafka.us-gov-west-1.amazonaws.com:9098
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required awsProfileName="p";
sasl.login.callback.handler.class=software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler
sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler
""",
        {"token_source": MskSource("us-gov-west-1", "p")},
    ),
    "AWS MSK SCRAM": (
        """
bootstrap.servers=b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9096
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
ssl.truststore.location=/tmp/kafka.client.truststore.jks
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";
""",
        {"sasl_mechanism": "SCRAM-SHA-512", "username": "alice", "password": "secret"},
    ),
    "Google Managed Kafka": (
        """
bootstrap.servers=bootstrap.my-cluster.us-central1.managedkafka.my-project.cloud.goog:9092
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.login.callback.handler.class=com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
""",
        {"token_source": GoogleSource()},
    ),
    "Google Managed Kafka, local server of tokens, librdkafka": (
        """
bootstrap.servers=bootstrap.my-cluster.us-central1.managedkafka.my-project.cloud.goog:9092
security.protocol=SASL_SSL
sasl.mechanisms=OAUTHBEARER
sasl.oauthbearer.token.endpoint.url=localhost:14293
sasl.oauthbearer.client.id=unused
sasl.oauthbearer.client.secret=unused
sasl.oauthbearer.method=oidc
""",
        {"token_source": EndpointSource("http://localhost:14293", "unused", "unused")},
    ),
    "Google Managed Kafka, key of a service account": (
        """
bootstrap.servers=bootstrap.my-cluster.us-central1.managedkafka.my-project.cloud.goog:9092
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.username=app@my-project.iam.gserviceaccount.com
sasl.password=ewogICJ0eXBlIjogInNlcnZpY2VfYWNjb3VudCJ9
""",
        {"username": "app@my-project.iam.gserviceaccount.com"},
    ),
    "Aiven, SASL": (
        """
bootstrap.servers=demo.aivencloud.com:24960
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="avnadmin" password="SECRET";
ssl.truststore.type=JKS
ssl.truststore.location=client.truststore.jks
ssl.truststore.password=SECRET
""",
        {"sasl_mechanism": "SCRAM-SHA-256", "username": "avnadmin", "tls.ca_file": "client.truststore.jks"},
    ),
    "Aiven, client certificate": (
        """
bootstrap.servers=demo.aivencloud.com:24949
security.protocol=SSL
ssl.protocol=TLS
ssl.endpoint.identification.algorithm=https
ssl.key.password=secret
ssl.keystore.location=client.keystore.p12
ssl.keystore.password=secret
ssl.keystore.type=PKCS12
ssl.truststore.location=client.truststore.jks
ssl.truststore.password=secret
ssl.truststore.type=JKS
""",
        {"sasl_mechanism": None, "tls.cert_file": "client.keystore.p12", "tls.ca_file": "client.truststore.jks"},
    ),
    "Redpanda Cloud": (
        """
bootstrap.servers=abc.any.eu-central-1.mpx.prd.cloud.redpanda.com:9092
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";
""",
        {"sasl_mechanism": "SCRAM-SHA-256", "username": "u"},
    ),
    "Strimzi, OAuth": (
        """
bootstrap.servers=my-cluster-kafka-bootstrap:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
oauth.client.id="ID" oauth.client.secret="SECRET" oauth.token.endpoint.uri="https://keycloak/token" ;
sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
""",
        {"token_source": EndpointSource("https://keycloak/token", "ID", "SECRET")},
    ),
    "Strimzi, OAuth with the authority of the endpoint": (
        """
bootstrap.servers=my-cluster-kafka-bootstrap:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
oauth.client.id="ID" oauth.client.secret="SECRET" oauth.token.endpoint.uri="https://keycloak/token" \
oauth.scope="s" oauth.audience="kafka" oauth.ssl.truststore.location="/opt/ca.crt" oauth.ssl.truststore.type="PEM" ;
sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
""",
        {
            "token_source": EndpointSource(
                "https://keycloak/token", "ID", "SECRET", "s", ca_file="/opt/ca.crt", audience="kafka"
            )
        },
    ),
    "Strimzi, token of a Kubernetes service account": (
        """
bootstrap.servers=my-cluster-kafka-bootstrap:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
oauth.access.token.location="/var/run/secrets/strimzi.io/token";
sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler
""",
        {"token_source": FileSource("/var/run/secrets/strimzi.io/token")},
    ),
    "IBM Event Streams": (
        """
bootstrap.servers=broker-0.eventstreams.cloud.ibm.com:9093
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="token" password="secret";
ssl.protocol=TLSv1.2
ssl.enabled.protocols=TLSv1.2
ssl.endpoint.identification.algorithm=HTTPS
""",
        {"username": "token", "password": "secret"},
    ),
    "Oracle Cloud Streaming": (
        """
bootstrap.servers=streaming.us-phoenix-1.oci.oraclecloud.com:9092
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="tenancy/domain/ann/ocid1.streampool" password="secret";
max.partition.fetch.bytes=1048576
""",
        {"username": "tenancy/domain/ann/ocid1.streampool", "password": "secret"},
    ),
    "Strimzi, client certificate": (
        """
bootstrap.servers=my-cluster-kafka-bootstrap:9093
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location=/opt/ca.crt
ssl.keystore.type=PEM
ssl.keystore.location=/opt/user.pem
""",
        {"tls.ca_file": "/opt/ca.crt", "tls.cert_file": "/opt/user.pem"},
    ),
    "Kafka 4, client credentials": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;
sasl.oauthbearer.client.credentials.client.id=ID
sasl.oauthbearer.client.credentials.client.secret=SECRET
sasl.oauthbearer.jwt.retriever.class=org.apache.kafka.common.security.oauthbearer.ClientCredentialsJwtRetriever
sasl.oauthbearer.scope=kafka
sasl.oauthbearer.token.endpoint.url=https://idp/token
""",
        {"token_source": EndpointSource("https://idp/token", "ID", "SECRET", "kafka")},
    ),
    "Kubernetes, projected token": (
        """
bootstrap.servers=kafka:9093
security.protocol=SASL_SSL
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;
sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler
sasl.oauthbearer.token.endpoint.url=file:///var/run/secrets/kafka/token
""",
        {"token_source": FileSource("/var/run/secrets/kafka/token")},
    ),
}
