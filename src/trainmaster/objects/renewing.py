"""Keys that run out, and are written again while a process uses them: obstore gets whichever there are now.

What gets such keys (see `trainmaster.volumes.mounting.delegated_credentials`) says where they can be
read again.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import AzureCredential, S3Credential

#: Obstore asks again five minutes before the end: so new keys are used soon, whenever they come.
_VALID_FOR = timedelta(minutes=9)

_read: Callable[[], Mapping[str, str]] | None = None


def read_from(source: Callable[[], Mapping[str, str]]) -> None:
    """From now on keys of object stores are those that this gives, as variables."""
    global _read
    _read = source


def renewed_amazon() -> "Callable[[], S3Credential] | None":
    """Gives keys for S3 as obstore asks for them; None where they do not change."""
    read = _read
    if read is None or "AWS_SESSION_TOKEN" not in read():
        return None

    def keys() -> "S3Credential":
        now = read()
        return {
            "access_key_id": now["AWS_ACCESS_KEY_ID"],
            "secret_access_key": now["AWS_SECRET_ACCESS_KEY"],
            "token": now["AWS_SESSION_TOKEN"],
            "expires_at": datetime.now(UTC) + _VALID_FOR,
        }

    return keys


def renewed_azure() -> "Callable[[], AzureCredential] | None":
    """Gives a SAS for Azure as obstore asks for it; None where it does not change."""
    read = _read
    if read is None or "AZURE_STORAGE_SAS_TOKEN" not in read():
        return None

    def token() -> Any:  # noqa: ANN401 - one of three kinds
        return {
            "sas_token": read()["AZURE_STORAGE_SAS_TOKEN"],
            "expires_at": datetime.now(UTC) + _VALID_FOR,
        }

    return token
