"""Handlers of client quotas and SCRAM credentials.

This broker has no quotas.
The connection performs SASL authentication (`SaslAuthenticator`); the SASL handlers here respond after that.

Source: KIP-546 (quotas), KIP-554 (credentials); Kafka `ScramControlManager`, `DescribeUserScramCredentialsHandler`.
"""

from __future__ import annotations

import logging
from collections import Counter

from spark_groupsource.broker.credentials import MAX_USERS, CredentialStore
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.common.coroutines import in_thread, pause
from spark_groupsource.errors import ApiError, ErrorCode, StorageError
from spark_groupsource.model import bounded_names
from spark_groupsource.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_groupsource.wire.sasl_server import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, scram_credential

_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_NUMBERS = {name: number for number, name in _MECHANISMS.items()}
_ENTITY_TYPES = ("user", "client-id", "ip")
_PER_STEP, _NAMES_PER_STEP = 200, 2_000
_MAX_CREDENTIAL_BYTES = 2_000
_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Quota = AlterClientQuotasResponse.EntryData


# --- quotas ---


def describe_client_quotas(
    broker: Broker, context: ApiRequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Returns no quotas: this broker has none."""
    unknown = next((each for each in request.components if each.entity_type not in _ENTITY_TYPES), None)
    if unknown is not None:
        code = ErrorCode.UNSUPPORTED_VERSION if unknown.entity_type else ErrorCode.INVALID_REQUEST
        text = f"Custom entity type '{unknown.entity_type}' not supported"
        return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=code, error_message=text, entries=None)
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=0, error_message=None, entries=[])


async def alter_client_quotas(
    broker: Broker, context: ApiRequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Accepts the removal of quotas; rejects new ones, because the broker would not enforce them."""
    entries = []
    for entry in request.entries:
        await pause()
        sets = [operation.key for operation in entry.ops if not operation.remove]
        text = f"Quotas are not supported: cannot set {bounded_names(sets)}." if sets else None
        entity = [_Quota.EntityData(entity_type=e.entity_type, entity_name=e.entity_name) for e in entry.entity]
        code = ErrorCode.INVALID_REQUEST if sets else ErrorCode.NONE
        entries.append(_Quota(error_code=code, error_message=text, entity=entity))
    return AlterClientQuotasResponse(throttle_time_ms=0, entries=entries)


# --- users ---


async def describe_scram_credentials(
    broker: Broker, context: ApiRequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Returns the mechanisms and iterations of users, never the credentials."""
    users = broker.credentials.scram_users
    named = Counter(user.name for user in request.users or ())
    results = []
    for name in named or sorted(users):
        await pause()
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


async def alter_scram_credentials(
    broker: Broker, context: ApiRequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Adds, replaces and removes credentials; like Kafka, rejects two changes of one user in a request.

    All of them are stored at once, by the worker thread.
    """
    changes: dict[str, list[_Deletion | _Upsertion]] = {}
    named: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
    for number, entry in enumerate(named, 1):
        changes.setdefault(entry.name, []).append(entry)
        if number % _NAMES_PER_STEP == 0:
            await pause()
    results = []
    altered: dict[tuple[str, str], ScramCredential | None] = {}
    for name, entries in changes.items():
        await pause()
        code, text = ErrorCode.NONE, None
        try:
            if len(entries) > 1:
                text = "A user credential cannot be altered twice in the same request"
                raise ApiError(ErrorCode.DUPLICATE_RESOURCE, text)
            _check(broker.credentials, entries[0], len(altered))
            altered[name, _MECHANISMS[entries[0].mechanism]] = _credential(entries[0])
        except ApiError as error:
            code, text = error.code, error.message
        results.append(_Altered(user=name, error_code=code, error_message=text))
    if altered:
        try:
            await in_thread(broker.credentials.change, altered)
        except StorageError as error:
            broker.report(f"[broker] Storing SCRAM credentials failed: {error}", logging.ERROR)
            for result in results:
                if not result.error_code:
                    result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return AlterUserScramCredentialsResponse(throttle_time_ms=0, results=results)


def _check(credentials: CredentialStore, entry: _Deletion | _Upsertion, altered: int) -> None:
    """Checks a change after `altered` others. Raises: ApiError."""
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
    elif len(entry.salt) + len(entry.name) > _MAX_CREDENTIAL_BYTES:
        text = f"User name and salt must have at most {_MAX_CREDENTIAL_BYTES} bytes"
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    elif entry.name not in credentials.scram_users and len(credentials.scram_users) + altered >= MAX_USERS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"The broker has {MAX_USERS:,} SCRAM users. Remove one first.")


def _credential(entry: _Deletion | _Upsertion) -> ScramCredential | None:
    """Returns the new credential, None for a deletion."""
    if isinstance(entry, _Deletion):
        return None
    salted, salt = bytes(entry.salted_password), bytes(entry.salt)
    return scram_credential(_MECHANISMS[entry.mechanism], salted, salt, entry.iterations)


# --- SASL after authentication ---


def sasl_handshake(broker: Broker, context: ApiRequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Rejects the request: the connection is authenticated already, or SASL is disabled."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


def sasl_authenticate(
    broker: Broker, context: ApiRequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Rejects the request, as `sasl_handshake`."""
    text = "SaslAuthenticate request received after successful authentication"
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text, auth_bytes=b"", session_lifetime_ms=0
    )
