"""Tokens of AWS MSK IAM: a presigned URL of the action kafka-cluster:Connect.

Source: the AWS Signature Version 4 specification; `aws-msk-iam-sasl-signer-python`.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import os
import time
from base64 import urlsafe_b64encode
from typing import Mapping, NamedTuple
from urllib.parse import quote, urlencode

from spark_groupsource.client.network.http_requests import http_json, http_text
from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError
from spark_groupsource.version import __version__

_SERVICE = "kafka-cluster"
_LIFETIME_S = 900
_CONTAINER_HOST = "http://169.254.170.2"
_INSTANCE_URL = "http://169.254.169.254/latest/"


class AwsCredentials(NamedTuple):
    """Access key of AWS. `token` is empty for a permanent key."""

    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        return f"AwsCredentials({self.access_key!r})"


def presigned_token(region: str, credentials: AwsCredentials, now_ms: int) -> tuple[str, int]:
    """Returns the token and the time at which it expires."""
    moment = time.gmtime(now_ms // 1000)
    stamp, day = time.strftime("%Y%m%dT%H%M%SZ", moment), time.strftime("%Y%m%d", moment)
    host, scope = f"kafka.{region}.amazonaws.com", f"{day}/{region}/{_SERVICE}/aws4_request"
    parameters = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(_LIFETIME_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.token:
        parameters["X-Amz-Security-Token"] = credentials.token
    query = urlencode(sorted(parameters.items()), quote_via=quote, safe="-_.~")
    canonical = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
    agent = quote(f"spark-groupsource/{__version__}", safe="")
    url = f"https://{host}/?{query}&X-Amz-Signature={signature}&User-Agent={agent}"
    return urlsafe_b64encode(url.encode()).decode().rstrip("="), (now_ms // 1000 + _LIFETIME_S) * 1000


def find_credentials(
    profile: str, role_arn: str, role_session: str, region: str, external_id: str = ""
) -> AwsCredentials:
    """Returns the credentials of this machine: those of botocore if it is installed, else of the usual places.

    These are the environment, the profile, the container and the instance, in this order.

    Args:
        region: where a role is assumed (STS), with `external_id` if its trust policy requires one.
    Raises: AuthenticationError if there are none; ConfigurationError where botocore is needed.
    """
    found = _of_botocore(profile, role_arn, role_session, region, external_id)
    if found is None and role_arn:
        raise ConfigurationError(
            "Option kafka.sasl.jaas.config has awsRoleArn, which needs the package botocore. Install it on the driver "
            "and the executors, or remove awsRoleArn and give the role to the machine."
        )
    found = found or (None if profile else _of_environment(os.environ)) or _of_profile(profile, os.environ)
    if found is None and not profile:
        if os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
            raise AuthenticationError(
                "Credentials of AWS are given by AWS_WEB_IDENTITY_TOKEN_FILE, which needs the package botocore. "
                "Install it on the driver and the executors."
            )
        found = _of_container(os.environ) or _of_instance()
    if found is None:
        place = f"in profile {profile!r}" if profile else "in the environment, the profile, the container or instance"
        raise AuthenticationError(
            f"Credentials of AWS were not found {place}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install "
            "botocore for other ways."
        )
    return found


def _of_botocore(
    profile: str, role_arn: str, role_session: str, region: str, external_id: str
) -> AwsCredentials | None:
    try:
        import botocore.session
    except ImportError:
        return None
    try:
        session = botocore.session.Session(profile=profile or None)
        if role_arn:
            role = {"RoleArn": role_arn, "RoleSessionName": role_session or "spark-groupsource"}
            if external_id:
                role["ExternalId"] = external_id
            response = session.create_client("sts", region_name=region).assume_role(**role)["Credentials"]
            return AwsCredentials(response["AccessKeyId"], response["SecretAccessKey"], response["SessionToken"])
        credentials = session.get_credentials()
        if credentials is None:
            return None
        frozen = credentials.get_frozen_credentials()
    except Exception as error:
        raise AuthenticationError(
            f"Reading credentials of AWS failed: {type(error).__name__} of botocore. Check the profile and the role."
        ) from error
    return AwsCredentials(frozen.access_key, frozen.secret_key, frozen.token or "")


def _of_environment(environment: Mapping[str, str]) -> AwsCredentials | None:
    access_key, secret_key = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        return None
    return AwsCredentials(access_key, secret_key, environment.get("AWS_SESSION_TOKEN", ""))


def _of_profile(profile: str, environment: Mapping[str, str]) -> AwsCredentials | None:
    name = profile or environment.get("AWS_PROFILE") or "default"
    places = (
        (environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", name),
        (environment.get("AWS_CONFIG_FILE") or "~/.aws/config", name if name == "default" else f"profile {name}"),
    )
    for path, section in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.path.expanduser(path))
        except configparser.Error as error:
            raise AuthenticationError(
                f"Reading {path} failed: {type(error).__name__}. Correct the file of AWS."
            ) from None
        if parser.has_option(section, "aws_access_key_id") and parser.has_option(section, "aws_secret_access_key"):
            values = parser[section]
            token = values.get("aws_session_token", "")
            return AwsCredentials(values["aws_access_key_id"], values["aws_secret_access_key"], token)
    return None


def _of_container(environment: Mapping[str, str]) -> AwsCredentials | None:
    relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = _CONTAINER_HOST + relative if relative else environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not url:
        return None
    token = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    path = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    if path:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    response = http_json(url, {"Authorization": token} if token else {}, None, 2_000)
    return AwsCredentials(response["AccessKeyId"], response["SecretAccessKey"], response.get("Token", ""))


def _of_instance() -> AwsCredentials | None:
    """Returns the credentials of the role of an EC2 instance (IMDSv2), None on another machine."""
    try:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        session = http_text(f"{_INSTANCE_URL}api/token", lifetime, None, 1_000, method="PUT")
        headers = {"X-aws-ec2-metadata-token": session}
        role = http_text(f"{_INSTANCE_URL}meta-data/iam/security-credentials/", headers, None, 1_000).strip()
        response = http_json(f"{_INSTANCE_URL}meta-data/iam/security-credentials/{role}", headers, None, 1_000)
    except (AuthenticationError, NetworkError):
        return None
    return AwsCredentials(response["AccessKeyId"], response["SecretAccessKey"], response.get("Token", ""))
