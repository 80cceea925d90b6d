"""Map the error codes of object stores to a remedy, and to whether the same call may succeed soon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_KEYS: Final = "check the credentials (environment or tier.profile) and their rights on the bucket {bucket}"
_ARCHIVED: Final = "the object is archived: restore it, and take the rule that archives off this prefix (S3 Glacier cannot be read directly)"
_CLOCK: Final = "set the clock of this machine: it differs from the store's by more than the store allows"
_REGION: Final = "set tier.region to the region of the bucket {bucket}"
_ELSEWHERE: Final = (
    "the bucket {bucket} is in another region or at another address: set tier.region and tier.endpoint"
)
_QUOTA: Final = "raise the quota of the bucket {bucket} or of the account"
_FULL: Final = "the store has no space left: add storage to it"
_DISABLED: Final = "enable the key or the account again, or use another one: for the store it is disabled"
_BUCKET: Final = "make the bucket {bucket}, or correct tier.url"
_BUSY: Final = "the store limits the rate of calls. Act only if this lasts"

_WHOSE: Final = "the credentials (of tier.profile, else of the environment or the machine)"

_LIBRARY: Final = "correct AWS's files or variables of the environment (profile, keys, credential_process), which its library cannot use"

# Code → remedy. The codes are those of S3, MinIO, Ceph, Google's and Azure's stores.
_REMEDIES: Final[dict[str, str]] = {
    **dict.fromkeys(("InvalidObjectState", "ObjectArchived", "BlobArchived"), _ARCHIVED),
    "RequestTimeTooSkewed": _CLOCK,
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "InvalidRegion"), _REGION
    ),
    **dict.fromkeys(("PermanentRedirect", "MovedPermanently", "301"), _ELSEWHERE),
    **dict.fromkeys(("QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "ServiceQuotaExceeded"), _QUOTA),
    **dict.fromkeys(("XMinioStorageFull", "StorageFull", "InsufficientStorage", "507"), _FULL),
    **dict.fromkeys(
        ("KMS.DisabledException", "DisabledException", "AllAccessDisabled", "AccountProblem", "UserSuspended",
         "AccountIsDisabled"),
        _DISABLED,
    ),
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), _BUCKET),
    "InvalidAccessKeyId": f"check {_WHOSE}: the store does not have the key id, or it is disabled",
    "SignatureDoesNotMatch": f"correct {_WHOSE}: the secret key does not belong to the key id",
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), f"renew {_WHOSE}: they have ended"),
    # Classes of AWS's library, which refuses them without a call
    **dict.fromkeys(
        ("ProfileNotFound", "InvalidConfigError", "InfiniteLoopConfigError", "ConfigParseError", "UnknownCredentialError",
         "PartialCredentialsError"),
        _LIBRARY,
    ),
    "InvalidRegionError": _REGION,
    **dict.fromkeys(("SSOTokenLoadError", "UnauthorizedSSOTokenError"), f"renew {_WHOSE}: they have ended"),
    **dict.fromkeys(("AccessDenied", "AuthenticationFailed", "AuthorizationFailure", "403"), _KEYS),
    **dict.fromkeys(("SlowDown", "TooManyRequests", "RequestLimitExceeded", "ServerBusy", "429", "503"), _BUSY),
}  # fmt: skip
_MAY_PASS: Final = frozenset(code for code, remedy in _REMEDIES.items() if remedy is _BUSY)
_MOST_CAUSES: Final = 8


def code_of(error: BaseException) -> str | None:
    """Return the store's code of an error, or the class of AWS's library, from its causes. None if it has none."""
    for each in _causes(error):
        if type(each).__name__ in _REMEDIES:
            return type(each).__name__
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            found = response.get("Error", {}).get("Code")
            return None if found is None else str(found)
        for name in ("error_code", "code", "status"):
            found = getattr(each, name, None)
            found = getattr(found, "value", found)
            if isinstance(found, str | int) and not isinstance(found, bool):
                return str(found)
    return None


def remedy_of(code: str | None, *, bucket: str) -> str | None:
    """Return the remedy for a code, None if the code is not in the table."""
    remedy = _REMEDIES.get(code or "")
    return None if remedy is None else remedy.format(bucket=bucket)


def is_lasting(code: str | None) -> bool:
    """Return whether the same call fails until an operator intervenes."""
    return code in _REMEDIES and code not in _MAY_PASS


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__
