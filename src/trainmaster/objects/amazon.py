# ruff: noqa: PTH111, PTH113
# By os.path: for a user without a home, or with one that is another's, there is no profile, and no error.
"""What S3 needs to know of its user, found as aws-cli and boto3 find it.

The environment comes first (``AWS_*``). What it leaves open is looked for in the profile: ``AWS_PROFILE``,
``~/.aws/credentials`` and ``~/.aws/config``, with roles, SSO and helper programs. Botocore, the library
below boto3 and aws-cli, reads those, and is imported only where there are any.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.dataclass import dataclass
from trainmaster.objects.errors import UnreachableStoreError
from trainmaster.spec.errors import MissingPartError, UsageError

if TYPE_CHECKING:
    from obstore.store import S3Credential

#: Where nothing names one, as most other servers take any.
DEFAULT_REGION = "us-east-1"
# Botocore renews what has less than 10 minutes left, and obstore asks again 5 minutes before the end.
_VALID_FOR = timedelta(minutes=9)
_TRUE = ("true", "1", "yes")
_FILES = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)
_GIVES_CREDENTIALS = re.compile(
    r"^\s*(aws_access_key_id|role_arn|sso_|credential_process|web_identity|login_)", re.MULTILINE
)
_LOGIN = (
    "Run `aws configure` or `aws sso login`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true for a public bucket)."
)

_lock = threading.RLock()
# By what they were made from: a role that was assumed once is not assumed for every store.
_sessions: dict[tuple[str, ...], Any] = {}


@dataclass(frozen=True, slots=True)
class AmazonSettings:
    """How an S3 server is reached.

    Attributes:
        region: empty if nothing names one.
        endpoint_url: of another server than Amazon's; empty if none is named.
        ca_bundle: file of certificates to trust; empty for the usual ones.
    """

    region: str
    endpoint_url: str
    ca_bundle: str


def amazon_settings(environ: Mapping[str, str] | None = None) -> AmazonSettings:
    """Finds region, endpoint and certificates.

    Args:
        environ: look nowhere else; by default in the environment of this process, then in the profile.

    Raises:
        UsageError: the profile that is asked for is not there, or cannot be read.
    """
    given = os.environ if environ is None else environ
    is_ignored = given.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() in _TRUE
    region = given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or ""
    endpoint = "" if is_ignored else given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL") or ""
    bundle = given.get("AWS_CA_BUNDLE") or ""
    if environ is None and not (region and (endpoint or is_ignored)) and (session := _session()) is not None:
        with _explained():
            profile = session.get_scoped_config()
            region = region or profile.get("region") or ""
            bundle = bundle or profile.get("ca_bundle") or ""
            is_ignored = is_ignored or profile.get("ignore_configured_endpoint_urls", "").lower() in _TRUE
            if not endpoint and not is_ignored:
                services = session.full_config.get("services", {}).get(profile.get("services", ""), {})
                own = services.get("s3")
                endpoint = (
                    (own.get("endpoint_url") if isinstance(own, dict) else "")
                    or profile.get("endpoint_url")
                    or ""
                )
    return AmazonSettings(region, endpoint, os.path.expanduser(bundle))


def is_anonymous() -> bool:
    """Whether requests are not to be signed."""
    return os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in _TRUE


class AmazonCredentials:
    """The keys of a profile, renewed as they expire; obstore calls it when it needs some.

    Args:
        session: of botocore.

    Raises:
        UsageError: there are none, or they have to be renewed by a person.
    """

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - botocore has no types
        with _lock, _explained():
            self._found = session.get_credentials()
        if self._found is None:
            raise UsageError(
                f"There are no credentials for s3://, neither in the environment nor in the {_profile()}.",
                _LOGIN,
            )
        self.environment()  # whatever is wrong with them is said now, and once

    def __call__(self) -> "S3Credential":
        """Gives keys that are valid for some minutes."""
        keys = self._keys()
        expires_at = datetime.now(UTC) + _VALID_FOR if hasattr(self._found, "refresh_needed") else None
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": expires_at,
        }

    def environment(self) -> dict[str, str]:
        """Gives them as variables, for another machine."""
        keys = self._keys()
        found = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
        return {**found, "AWS_SESSION_TOKEN": keys.token} if keys.token else found

    def _keys(self) -> Any:  # noqa: ANN401 - botocore has no types
        with _explained():
            return self._found.get_frozen_credentials()


def profile_credentials() -> AmazonCredentials | None:
    """Gives the credentials of the profile; None if the environment has some, or there is no profile.

    Then obstore finds them itself: in the environment, or from the service of the machine it runs on.

    Raises:
        UsageError: the profile that is asked for is not there, or has none.
        MissingPartError: there is a profile, and nothing here that could read it.
    """
    if is_anonymous() or (os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY")):
        return None
    if (session := _session()) is not None:
        return AmazonCredentials(session)
    if _is_profile_needed():
        raise MissingPartError(
            f"The credentials for s3:// are in the {_profile()}, and boto3, which reads it, is not "
            "installed.",
            "Install it: pip install 'trainmaster[aws]'; or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    return None


def amazon_identity() -> tuple[str, ...]:
    """Changes whenever other credentials or settings may be found."""
    found = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("AWS_")]
    for path in _paths():
        try:
            found.append(f"{path} {path.stat().st_mtime_ns}")
        except OSError:
            continue
    return tuple(found)


def _paths() -> list[Path]:
    return [Path(os.path.expanduser(os.environ.get(name) or usual)) for name, usual in _FILES]


def _asked_for() -> str:
    return os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE") or ""


def _profile() -> str:
    return f"profile {_asked_for() or 'default'!r} ({' and '.join(map(str, _paths()))})"


def _session() -> Any | None:  # noqa: ANN401 - botocore has no types
    """One of botocore, which knows the profile; None if there is none, or botocore is not there."""
    if not _asked_for() and not any(os.path.isfile(path) for path in _paths()):
        return None
    try:
        import botocore.session
    except ImportError:
        return None
    identity = amazon_identity()
    with _lock:
        if identity not in _sessions:
            _sessions.clear()  # what it was made from is gone
            _sessions[identity] = botocore.session.Session()
        return _sessions[identity]


def _is_profile_needed() -> bool:
    """Whether there are credentials that only botocore can read, and no others."""
    if any(name in os.environ for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", *_CONTAINER)):
        return False
    for path in _paths():
        try:
            if _GIVES_CREDENTIALS.search(path.read_text(errors="replace")):
                return True
        except OSError:
            continue
    return bool(_asked_for())


_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


@contextmanager
def _explained() -> Iterator[None]:
    """Turns what botocore raises into errors that say what to do."""
    import botocore.exceptions as raised

    try:
        yield
    except raised.ProfileNotFound as error:
        raise UsageError(
            f"There is no {_profile()}.", "Set AWS_PROFILE to one of `aws configure list-profiles`."
        ) from error
    except (raised.HTTPClientError, raised.ConnectionError) as error:
        raise UnreachableStoreError(
            f"No credentials for s3:// from the {_profile()}: {error}.", _NETWORK
        ) from error
    except (raised.BotoCoreError, raised.ClientError) as error:
        words = str(error).rstrip(".")
        is_login = "SSO" in type(error).__name__ or re.search(r"\b(sso|token)\b", words, re.IGNORECASE)
        profile = f" --profile {_asked_for()}" if _asked_for() else ""
        hint = f"Run `aws sso login{profile}`, then try again." if is_login else _LOGIN
        raise UsageError(f"The {_profile()} gives no credentials for s3://: {words}.", hint) from error


_NETWORK = "Check the network, then try again."
