"""What is known of clients and users: quotas and ACLs, which this broker has none of, and SCRAM credentials.

SASL itself is a matter of the connection (`credentials.Login`); the handlers here answer who has already come in.

Source: KIP-546 (quotas), KIP-554 (credentials); Kafka `ScramControlManager`, `DescribeUserScramCredentialsHandler`.
"""

from __future__ import annotations

from collections import Counter

from spark_groupsource.broker.credentials import CredentialStore
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.wire.messages import (
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsResponse,
    Message,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from spark_groupsource.wire.sasl_server import MAX_ITERATIONS, MIN_ITERATIONS, scram_credential

_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_NUMBERS = {name: number for number, name in _MECHANISMS.items()}
_NO_AUTHORIZER = "No Authorizer is configured on the broker: it has no ACLs, and everything is allowed"
_ENTITY_TYPES = ("user", "client-id", "ip")
_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Quota = AlterClientQuotasResponse.EntryData


# --- quotas ---


def describe_client_quotas(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """No client and no user is limited."""
    unknown = next((each for each in request.components if each.entity_type not in _ENTITY_TYPES), None)
    if unknown is not None:
        code = ErrorCode.UNSUPPORTED_VERSION if unknown.entity_type else ErrorCode.INVALID_REQUEST
        text = f"Custom entity type '{unknown.entity_type}' not supported"
        return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=code, error_message=text, entries=None)
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=0, error_message=None, entries=[])


def alter_client_quotas(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """What is not there can be removed; nothing can be set, for nobody would keep to it."""
    entries = []
    for entry in request.entries:
        sets = [operation.key for operation in entry.ops if not operation.remove]
        text = f"this broker limits no client, so {', '.join(sets)} cannot be set" if sets else None
        entity = [_Quota.EntityData(entity_type=e.entity_type, entity_name=e.entity_name) for e in entry.entity]
        code = ErrorCode.INVALID_REQUEST if sets else ErrorCode.NONE
        entries.append(_Quota(error_code=code, error_message=text, entity=entity))
    return AlterClientQuotasResponse(throttle_time_ms=0, entries=entries)


# --- ACLs ---


def describe_acls(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """As a Kafka without ``authorizer.class.name``: everybody who is in may do everything."""
    code = ErrorCode.SECURITY_DISABLED
    return DescribeAclsResponse(throttle_time_ms=0, error_code=code, error_message=_NO_AUTHORIZER, resources=[])


def create_acls(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """None is taken, each is told so."""
    refused = CreateAclsResponse.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
    return CreateAclsResponse(throttle_time_ms=0, results=[refused] * len(request.creations))


def delete_acls(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """There is none."""
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER, matching_acls=[]
    )
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[refused] * len(request.filters))


# --- users ---


def describe_scram_credentials(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Which mechanisms users have credentials for, and with how many iterations; never the credentials."""
    users = broker.credentials.scram_users
    named = Counter(user.name for user in request.users or ())
    results = []
    for name in named or sorted(users):
        code, text = ErrorCode.NONE, None
        if named[name] > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif name not in users:
            code = ErrorCode.RESOURCE_NOT_FOUND
            text = f"Attempt to describe a user credential that does not exist: {name}"
        infos = [
            _Described.CredentialInfo(mechanism=_NUMBERS[mechanism], iterations=credential.iterations)
            for mechanism, credential in (sorted(users[name].items()) if code is ErrorCode.NONE else ())
        ]
        results.append(_Described(user=name, error_code=code, error_message=text, credential_infos=infos))
    return DescribeUserScramCredentialsResponse(throttle_time_ms=0, error_code=0, error_message=None, results=results)


def alter_scram_credentials(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Adds, replaces and removes credentials, one of each user: Kafka takes no two of one user in a request."""
    changes: dict[str, list[Message]] = {}
    for entry in [*request.deletions, *request.upsertions]:
        changes.setdefault(entry.name, []).append(entry)
    results = []
    for name, entries in changes.items():
        code, text = ErrorCode.NONE, None
        try:
            if len(entries) > 1:
                text = "A user credential cannot be altered twice in the same request"
                raise ApiError(ErrorCode.DUPLICATE_RESOURCE, text)
            _check(broker.credentials, entries[0])
            _apply(broker.credentials, entries[0])
        except ApiError as error:
            code, text = error.code, error.message
        except StorageError as error:
            broker.report(f"credentials of user {name} are not kept: {error}")
            code, text = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        results.append(_Altered(user=name, error_code=code, error_message=text))
    return AlterUserScramCredentialsResponse(throttle_time_ms=0, results=results)


def _check(credentials: CredentialStore, entry: Message) -> None:
    """Raises: ApiError."""
    mechanism = _MECHANISMS.get(entry.mechanism)
    if not entry.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(entry, _Deletion):
        if mechanism not in credentials.scram_users.get(entry.name, {}):
            text = "Attempt to delete a user credential that does not exist"
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, text)
    elif entry.iterations < MIN_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif entry.iterations > MAX_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def _apply(credentials: CredentialStore, entry: Message) -> None:
    mechanism = _MECHANISMS[entry.mechanism]
    if isinstance(entry, _Deletion):
        credentials.remove(entry.name, mechanism)
        return
    salted, salt = bytes(entry.salted_password), bytes(entry.salt)
    credentials.put(entry.name, mechanism, scram_credential(mechanism, salted, salt, entry.iterations))


# --- SASL, where none is due ---


def sasl_handshake(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """Who is in already, or need not say who he is, is told so."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


def sasl_authenticate(broker: Broker, context: ApiRequestContext, request: Message) -> Message:
    """The same."""
    text = "SaslAuthenticate request received after successful authentication"
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text, auth_bytes=b"", session_lifetime_ms=0
    )
