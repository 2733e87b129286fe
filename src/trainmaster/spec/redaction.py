"""URLs without what is secret in them: for messages, events, logs, and all that is written down."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

_USER = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^\s/?#'\"<>]*)@"
_QUERY = (
    r"(?P<name>[?&;](?:[A-Za-z]+-)*(?:signature|credential|security-token|[a-z_-]*token|sig|hmac|auth|"
    r"[a-z_-]*key|[a-z_-]*keyid|[a-z_-]*secret|password|passwd|pwd)=)[^&\s#'\"<>]+"
)
# Names of accounts are no secrets there, nor is what our own hints give as an example.
_OPEN_SCHEMES: Final = ("ssh", "git+ssh", "hdfs")
_EXAMPLES: Final = ("user:password", "USER:PASSWORD")


def redacted(text: str) -> str:
    """A text in which no URL shows a password, a token or a signature.

    >>> redacted("https://me:pw@h/x?X-Amz-Signature=1f&n=2 is away, ssh://git@h/p is not")
    'https://***@h/x?X-Amz-Signature=***&n=2 is away, ssh://git@h/p is not'
    """
    if "://" in text:
        text = re.sub(_USER, _without_user, text)
    # Compiled when it is first needed, which takes ten times as long as the import of this module.
    return re.sub(_QUERY, rf"\g<name>{HIDDEN}", text, flags=re.IGNORECASE) if "=" in text else text


def has_secret(url: str) -> bool:
    """Whether a URL shows something that should not be written down."""
    return redacted(url) != url


def _without_user(found: re.Match[str]) -> str:
    user = found["user"]
    is_open = found["scheme"].lower() in _OPEN_SCHEMES and ":" not in user
    if is_open or user in _EXAMPLES or "${" in user or user.endswith(f":{HIDDEN}"):
        return found[0]
    return f"{found['scheme']}://{HIDDEN}@"
