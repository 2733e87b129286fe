"""Keys that are good for a part of an object store only, made from keys that are good for all of it.

* S3: temporary credentials with a session policy. ``GetFederationToken`` for keys of a user,
  ``AssumeRole`` for those of a role; https://docs.aws.amazon.com/STS/latest/APIReference/.
* Azure: a service SAS for the container, signed with the account's key;
  https://learn.microsoft.com/rest/api/storageservices/create-service-sas. Prefixes it does not know.
* Others have none that we know of how to make.
"""

import base64
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from trainmaster.dataclass import dataclass
from trainmaster.objects.amazon import amazon_settings
from trainmaster.objects.errors import UnreachableStoreError
from trainmaster.objects.plugins import split_url
from trainmaster.spec.errors import TrainmasterError

#: A role that may be assumed to make narrow keys of those of another role.
ROLE_VARIABLE: Final = "TRAINMASTER_LEND_ROLE"
#: The longest that S3's services give, as a mount has to outlive a driver; then what they may allow instead.
_LIVES_S: Final = (129_600, 43_200, 3_600)
#: Servers that know no roles, but want one to be named.
_NO_ROLE: Final = "arn:aws:iam::000000000000:role/trainmaster"
_ASSUMED: Final = re.compile(r"arn:([\w-]+):sts::(\d+):assumed-role/([^/]+)/")
_SAS_VERSION: Final = "2022-11-02"
#: Clocks differ.
_SKEW: Final = timedelta(minutes=15)


class TooWideKeysError(TrainmasterError):
    """Nothing narrower can be made of the keys that there are."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to use what lies at a URI and below.

    Attributes:
        uri: of an object store.
        writes: new objects may be made there, too.
    """

    uri: str
    writes: bool = False

    def part(self) -> tuple[str, str]:
        """Its bucket, and how the names of its objects begin."""
        bucket, _, prefix = split_url(self.uri)[1].partition("/")
        return bucket, prefix.strip("/")


@dataclass(frozen=True, slots=True)
class NarrowKeys:
    """Variables that hold narrow keys.

    Attributes:
        environment: names and values.
        expires_at: Unix seconds, by the service's clock.
    """

    environment: Mapping[str, str]
    expires_at: float


def amazon_policy(grants: Sequence[Grant]) -> str:
    """A session policy that allows what is granted and nothing else; as JSON.

    >>> found = json.loads(amazon_policy([Grant("s3://b/models/r-1", writes=True)]))["Statement"]
    >>> found[0]["Resource"], "s3:PutObject" in found[0]["Action"], "s3:DeleteObject" in found[0]["Action"]
    (['arn:aws:s3:::b/models/r-1', 'arn:aws:s3:::b/models/r-1/*'], True, False)
    """
    statements: list[dict[str, Any]] = []
    for writes in (True, False):
        names = [name for grant in grants if grant.writes is writes for name in _names(grant)]
        if names:
            actions = ["s3:GetObject"]
            if writes:
                actions += ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
            resources = [f"arn:aws:s3:::{name}" for name in dict.fromkeys(names)]
            statements.append({"Effect": "Allow", "Action": actions, "Resource": resources})
    prefixes: dict[str, list[str]] = {}
    for grant in grants:
        bucket, prefix = grant.part()
        prefixes.setdefault(bucket, []).extend([prefix, f"{prefix}/*"] if prefix else ["*"])
    for bucket, allowed in prefixes.items():
        listing: dict[str, Any] = {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket}"],
        }
        if "*" not in allowed:
            listing["Condition"] = {"StringLike": {"s3:prefix": list(dict.fromkeys(allowed))}}
        statements.append(listing)
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def narrow_amazon(keys: Mapping[str, str], grants: Sequence[Grant]) -> NarrowKeys:
    """Temporary credentials for S3 that are good for what is granted.

    Args:
        keys: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and perhaps ``AWS_SESSION_TOKEN``.
        grants: what for.

    Raises:
        TooWideKeysError: none can be made.
        UnreachableStoreError: the service does not answer.
    """
    policy = amazon_policy(grants)
    with _explained():
        client = _client("sts", keys)
        refusals: list[str] = []
        found = None
        if not keys.get("AWS_SESSION_TOKEN"):
            found = _first(
                lambda life_s: client.get_federation_token(
                    Name="trainmaster", Policy=policy, DurationSeconds=life_s
                ),
                refusals,
            )
        if found is None and (role := _role(client, refusals)):
            found = _first(
                lambda life_s: client.assume_role(
                    RoleArn=role, RoleSessionName="trainmaster", Policy=policy, DurationSeconds=life_s
                ),
                refusals,
            )
        endpoint = amazon_settings().endpoint_url
        if found is None and endpoint:  # what such a server says of calls that it does not know is of no use
            raise _makes_none(endpoint)
        if found is None:
            raise TooWideKeysError("; ".join(refusals), _HINT)
        credentials = {
            "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
            "AWS_SESSION_TOKEN": found["SessionToken"],
        }
        if endpoint:
            _require_narrow(_client("s3", credentials), grants, endpoint)
    return NarrowKeys(credentials, found["Expiration"].timestamp())


def narrow_azure(keys: Mapping[str, str], grants: Sequence[Grant], now: datetime | None = None) -> NarrowKeys:
    """A signature for one container of Azure's store.

    Args:
        keys: ``AZURE_STORAGE_ACCOUNT_NAME`` and ``AZURE_STORAGE_ACCOUNT_KEY``.
        grants: what for; all of one container.
        now: by default the present.

    Raises:
        TooWideKeysError: there is no key of an account, or several containers are granted.
    """
    account, key = (keys.get(f"AZURE_STORAGE_ACCOUNT_{name}", "") for name in ("NAME", "KEY"))
    containers = {grant.part()[0] for grant in grants}
    if not (account and key):
        raise TooWideKeysError(
            "Azure gives narrower keys for AZURE_STORAGE_ACCOUNT_KEY only",
            "Use a SAS of your own (AZURE_STORAGE_SAS_TOKEN), or lend the keys with --lend-keys.",
        )
    if len(containers) > 1:
        raise TooWideKeysError(f"there is no SAS for several containers ({', '.join(sorted(containers))})")
    permissions = "rcwl" if any(grant.writes for grant in grants) else "rl"
    begin = (now or datetime.now(UTC)) - _SKEW
    end = begin + _SKEW + timedelta(seconds=_LIVES_S[0])
    start, expiry = (at.strftime("%Y-%m-%dT%H:%M:%SZ") for at in (begin, end))
    resource = f"/blob/{account}/{containers.pop()}"
    # Empty: identifier, addresses, protocol; then snapshot, encryption scope and five headers.
    lines = [permissions, start, expiry, resource, "", "", "", _SAS_VERSION, "c", *[""] * 7]
    mac = hmac.new(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256).digest()
    query = {
        "sp": permissions,
        "st": start,
        "se": expiry,
        "sv": _SAS_VERSION,
        "sr": "c",
        "sig": base64.b64encode(mac).decode(),
    }
    return NarrowKeys({"AZURE_STORAGE_SAS_TOKEN": urlencode(query)}, end.timestamp())


_HINT: Final = (
    f"Let your user call sts:GetFederationToken, or name a role in {ROLE_VARIABLE}; "
    "`--lend-keys` lends nodes all that your own keys are good for."
)


def _names(grant: Grant) -> list[str]:
    bucket, prefix = grant.part()
    return [f"{bucket}/{prefix}", f"{bucket}/{prefix}/*"] if prefix else [f"{bucket}/*"]


def _client(service: str, keys: Mapping[str, str]) -> Any:  # noqa: ANN401 - botocore has no types
    import botocore.session
    from botocore.config import Config

    settings = amazon_settings()
    endpoint = (os.environ.get("AWS_ENDPOINT_URL_STS") if service == "sts" else "") or settings.endpoint_url
    return botocore.session.Session().create_client(
        service,
        region_name=settings.region or "us-east-1",
        endpoint_url=endpoint or None,
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=keys.get("AWS_SESSION_TOKEN"),
        verify=settings.ca_bundle or None,
        config=Config(
            connect_timeout=5,
            read_timeout=10,
            retries={"total_max_attempts": 2},  # what waits for keys tries again, and sees what else happens
            s3={"addressing_style": "path"},
        ),
    )


def _first(ask: Callable[[int], Mapping[str, Any]], refusals: list[str]) -> Mapping[str, Any] | None:
    """The keys with the longest life that the service gives; a refusal is noted."""
    from botocore.exceptions import ClientError

    words = ""
    for life_s in _LIVES_S:
        try:
            credentials: Mapping[str, Any] = ask(life_s)["Credentials"]
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            words = str(error).rstrip(".")
            if code in ("ValidationError", "InvalidParameterValue") or "uration" in words:
                continue  # not for so long
            break
        return credentials
    refusals.append(words)
    return None


def _role(client: Any, refusals: list[str]) -> str:  # noqa: ANN401 - botocore has no types
    """The role that is named, else our own, else any for a server that wants one to be named."""
    from botocore.exceptions import ClientError

    if role := os.environ.get(ROLE_VARIABLE):
        return role
    if amazon_settings().endpoint_url:
        return _NO_ROLE
    try:
        own = _ASSUMED.match(client.get_caller_identity()["Arn"])
    except ClientError as error:
        refusals.append(str(error).rstrip("."))
        return ""
    return f"arn:{own[1]}:iam::{own[2]}:role/{own[3]}" if own else ""


def _require_narrow(client: Any, grants: Sequence[Grant], endpoint: str) -> None:  # noqa: ANN401 - botocore
    """See that a server that is not Amazon's knows what a session policy is.

    Raises:
        TooWideKeysError: it ignores it, or its keys open nothing.
    """
    parts: dict[str, str] = {}  # the widest of each bucket
    for bucket, prefix in (grant.part() for grant in grants):
        parts[bucket] = min(parts.get(bucket, prefix), prefix, key=len)
    for bucket, prefix in parts.items():
        if prefix and _lists(client, bucket, ""):
            raise TooWideKeysError(
                "the server ignores session policies: its temporary keys are good for all", _HINT
            )
        if not _lists(client, bucket, prefix and f"{prefix}/"):
            raise _makes_none(endpoint)


def _lists(client: Any, bucket: str, prefix: str) -> bool:  # noqa: ANN401 - botocore has no types
    from botocore.exceptions import ClientError

    try:
        client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 403:
            return False
        raise
    return True


def _makes_none(endpoint: str) -> TooWideKeysError:
    return TooWideKeysError(
        f"{endpoint} makes no keys for a part of a bucket",
        "`--lend-keys` lends nodes all that your own keys are good for.",
    )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        import botocore.exceptions as raised
    except ImportError:
        raise TooWideKeysError(
            "boto3, which asks for narrower keys, is not installed",
            "Install it: pip install 'trainmaster[aws]'.",
        ) from None
    try:
        yield
    except (raised.HTTPClientError, raised.ConnectionError) as error:
        hint = "Check the network, then try again."
        raise UnreachableStoreError(f"No keys for nodes: {error}.", hint) from error
    except (raised.BotoCoreError, raised.ClientError) as error:
        raise TooWideKeysError(str(error).rstrip("."), _HINT) from error
