"""What obstore raises, as errors of ours.

Its classes tell only a refusal from the rest, and the rest is prose: nothing but this file reads it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trainmaster.objects.errors import (
    ERRORS,
    NETWORK_HINT,
    ObjectChangedError,
    ObjectStoreError,
    StoreTrouble,
)

_CREDENTIALS = (
    "Check the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE and ~/.aws (s3://), "
    "GOOGLE_APPLICATION_CREDENTIALS (gs://), AZURE_STORAGE_ACCOUNT_NAME and _KEY, or "
    "AZURE_STORAGE_SAS_TOKEN (az://)."
)
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound")
_NO_PARTS = re.compile(r"NoSuchUpload|InvalidBlockList")
_TIMED_OUT = re.compile(r"timed? ?out|deadline", re.IGNORECASE)
#: It may be well a little later: no answer, or it says itself that it cannot just now.
_PASSING = re.compile(
    r"error sending request|timed? ?out|connection (refused|reset|aborted|was cut)|no route to host"
    r"|network is unreachable|temporary failure in name resolution|error decoding response body"
    r"|request or response body error|status code: (429|5\d\d)\b",
    re.IGNORECASE,
)
#: Somebody may have called a file "timeout".
_NAMES = re.compile(r"\b\w+://\S+|(?<!\w)'[^']*'")
#: By what is said, the first that fits: what is wrong, and what to do.
_REFUSED = StoreTrouble.REFUSED
_KINDS = (
    (
        r"No space left|ENOSPC|Disk quota|File too large|status code: 507\b",
        StoreTrouble.FULL,
        "Free some space there, or use another place.",
    ),
    (
        r"NoSuchBucket|bucket does not exist",
        StoreTrouble.MISSING,
        "Create the bucket first, or correct its name.",
    ),
    (r"ContainerNotFound", StoreTrouble.MISSING, "Create the container first, or correct its name."),
    (
        r"Unauth|credential|Account must|AccessDenied|Forbidden|InvalidAccessKey|SignatureDoesNotMatch"
        r"|\b40[13]\b",
        _REFUSED,
        _CREDENTIALS,
    ),
    (
        r"incorrectly configured region",
        _REFUSED,
        "Set AWS_REGION to the region that the bucket is in.",
    ),
    (
        r"certificate",
        _REFUSED,
        "Its certificate is not trusted here: name the file of its authority (PEM) in AWS_CA_BUNDLE "
        "or SSL_CERT_FILE.",
    ),
    (
        r"connect|dns|timed out|timeout|reset by peer|error sending request",
        StoreTrouble.OTHER,
        NETWORK_HINT,
    ),
)
_XML_ERROR = re.compile(
    r"(?:<\?xml.*?\?>\s*)?<Error\b.*?<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?.*</Error>", re.DOTALL
)
# What Azure adds to each message, in lines of its own.
_AZURE_TRACE = re.compile(r"\s*RequestId:\S+\s+Time:[\w:.-]+(?<!\.)")
# An error of ours, from what gives the keys: its type, its words and its hint.
_PROVIDER = re.compile(r".*External AWS credential provider: (\w+): (.*?)\s*\n\s*\.?\s*\n?(.*)", re.DOTALL)
# How the library begins; how long each try took makes each message another one.
_REQUEST = re.compile(
    r"(?:(?:Generic \w+ error|The operation lacked the necessary privileges to complete for path \S+"
    r"|Error performing [\w ]+ request): )*"
    r"Error performing ([A-Z]+) (\S+)(?: in \d[^\s,]*)?(?:, after \d+ retries[^-]*)?\s+- "
    r"(?:HTTP error: |Server returned non-2xx status code: )?"
)
_NO_KEYS = "no credentials were found"
# Why a request could not be sent is said only in the dump behind the text.
_DUMPED = (
    (re.compile(r"InvalidCertificate\(\s*(\w+)"), "its certificate is not trusted ({})"),
    (re.compile(r"\b(ConnectionRefused|HostUnreachable|NetworkUnreachable)\b"), "{}"),
)


@contextmanager
def typed() -> Iterator[None]:
    """Turns what obstore raises into errors of ours; that something is not there, or is, passes."""
    try:
        yield
    except Exception as error:
        name = type(error).__name__
        if not type(error).__module__.startswith("obstore") or name == "AlreadyExistsError":
            raise
        if name == "PreconditionError":
            raise ObjectChangedError("another ETag", "It was written again meanwhile.") from error
        is_refused = name in ("PermissionDeniedError", "UnauthenticatedError")
        raise store_error(str(error) or name, is_refused=is_refused) from error


def store_error(text: str, *, is_refused: bool = False) -> ObjectStoreError:
    """The error for what the library has said.

    Args:
        text: all of it.
        is_refused: its class says that the credentials are not good for it.
    """
    reason = _plain_reason(text)
    if found := _PROVIDER.fullmatch(reason):
        kinds = {kind.__name__: kind for kind in ERRORS.values()}
        hint = f"{found[3].rstrip('.')}."
        return kinds.get(found[1], ERRORS[_REFUSED])(found[2].rstrip("."), hint)
    said = _NAMES.sub("URL", reason)
    kind, hint = next(
        ((kind, hint) for words, kind, hint in _KINDS if re.search(words, reason, re.IGNORECASE)),
        (StoreTrouble.OTHER, ""),
    )
    if is_refused:
        kind, hint = _REFUSED, _CREDENTIALS
    elif kind is not StoreTrouble.FULL and _PASSING.search(said) and not _is_lasting(said, text):
        kind = StoreTrouble.UNREACHABLE
    return ERRORS[kind](_REQUEST.sub(r"\1 \2: ", reason), hint)


def no_bucket(error: FileNotFoundError) -> ObjectStoreError:
    """What to raise where it can only be the bucket that is not found."""
    return store_error(str(error).partition("\n\nDebug")[0])


def is_no_bucket(error: Exception) -> bool:
    """Whether it is the bucket, and not an object, that is not there."""
    return bool(_NO_BUCKET.search(str(error)))


def is_of_parts(error: Exception) -> bool:
    """Whether the parts that an object was to be made of are not there."""
    return bool(_NO_PARTS.search(str(error)))


def is_timeout(error: Exception) -> bool:
    """Whether the server has said nothing for too long."""
    # Why is only in the dump behind the text, which also has the names of our settings.
    return bool(_TIMED_OUT.search(str(error).replace("retry_timeout", "")))


def _is_lasting(said: str, text: str) -> bool:
    """The same error stands for missing credentials and for a foreign certificate."""
    return "certificate" in said.lower() or "metadata.google" in text


def _plain_reason(text: str) -> str:
    """What the library has said, without what only its authors read."""
    reason, _, dump = text.partition("\n\nDebug")
    if "169.254." in reason:  # the library asked a cloud's machine for its role, as its last hope
        return _NO_KEYS
    reason = _XML_ERROR.sub(lambda found: ": ".join(filter(None, found.groups())), reason)
    reason = _AZURE_TRACE.sub("", reason).strip().rstrip(".:")
    for pattern, words in _DUMPED:
        if found := pattern.search(dump):
            return f"{reason}: {words.format(found[1])}"
    return reason
