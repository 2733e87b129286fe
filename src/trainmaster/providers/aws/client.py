"""`AwsClient`: sends requests to AWS, again where that helps, and says in our words why one was refused."""

from __future__ import annotations

import difflib
import logging
import os
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from trainmaster.providers.aws.errors import PASSING, SETTLING, api_error, is_lack, is_of_keys
from trainmaster.providers.aws.requests import AwsRequest
from trainmaster.providers.aws.settings import AwsSettings
from trainmaster.providers.base import ProviderGoneError
from trainmaster.providers.own_settings import NotSetUpError
from trainmaster.spec.clocks import boot_s, steady_s
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError, imports_of
from trainmaster.transport.http_calls import ProviderClock

log = logging.getLogger(__name__)

_MOST_BACKOFF_S: Final = 10.0
_CONNECT_S: Final = 10.0
#: Credentials that were refused are read again after so long: somebody may have renewed them.
_READ_KEYS_S: Final = 30.0
_HTTP_SERVER_ERROR: Final = 500

#: With keys of its own a client reads no profile and no configuration: in a server these are its owner's.
_OWN_KEYS: Final = {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}

#: boto3 has no types of its own: its methods and their answers are made from Amazon's descriptions when it
#: runs.
_Any = Any


class AwsRefusedError(Exception):
    """AWS's own words, for those who can do something about a code.

    Attributes:
        request: that was refused.
        code, message: Amazon's.
    """

    def __init__(self, request: AwsRequest, code: str, message: str) -> None:
        super().__init__(f"{request.operation}: {code}: {message}")
        self.request = request
        self.code = code
        self.message = message

    def explained(self, zones: Sequence[str] = ()) -> TrainmasterError:
        """What it means to users; ``zones``: that were asked for."""
        asked = self.request
        return api_error(
            asked.operation, self.code, self.message, region=asked.region, zones=zones, service=asked.service
        )


class AwsClient:
    """botocore, which is what boto3 stands on, behind a small door.

    Threads may share it.

    Args:
        settings: endpoint, keys, patience.
        sleep: for the time between attempts.
        clock: gives Unix seconds; never set back.

    Attributes:
        clock: AWS's own.
    """

    def __init__(
        self,
        settings: AwsSettings,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self._settings = settings
        self._sleep = sleep
        self.clock = ProviderClock(clock)
        self._clients: dict[tuple[str, str], _Any] = {}
        self._session: _Any = None
        self._keys_read_at = float("-inf")
        self._making = threading.Lock()  # boto3's clients may be shared between threads, but not made by two
        self._jitter = random.Random()  # noqa: S311 - no secret; two that retry at once must not stay in step

    @property
    def region(self) -> str:
        """Where requests go that name no region.

        Raises:
            UsageError: it is not set.
        """
        found = self._settings.region or self._boto().get_config_variable("region")
        if not found:
            raise UsageError("no AWS region is set", "Set AWS_REGION, or `hardware.region` in the recipe.")
        return str(found)

    def close(self) -> None:
        """Close connections; it may be used again."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def require_keys(self) -> None:
        """Look for credentials, without asking AWS whether they are good.

        Raises:
            UsageError: there are none, or the AWS configuration cannot be used.
        """
        session = self._boto()  # says what to install
        from botocore.exceptions import BotoCoreError

        try:
            found = session.get_credentials()
        except BotoCoreError as error:
            raise _no_keys(error) from None
        if found is None:
            raise _no_keys("none are configured")

    def call(self, request: AwsRequest, zones: Sequence[str] = (), *, settle: bool = True) -> dict[str, Any]:
        """Send a request, and again while it fails for reasons that pass.

        Args:
            request: without references.
            zones: asked, for the error.
            settle: names that are not found may be new, and are waited for.

        Raises:
            UsageError, NoCapacityError, ProviderError: see `aws_errors`.
        """
        try:
            return self.try_call(request, settle=settle)
        except AwsRefusedError as refused:
            raise refused.explained(zones) from None

    def change(self, request: AwsRequest, done: Collection[str] = (), *, settle: bool = False) -> None:
        """As `call`; a refusal with one of these codes means that it is done already."""
        try:
            self.try_call(request, settle=settle)
        except AwsRefusedError as refused:
            if refused.code not in done:
                raise refused.explained() from None

    def try_call(self, request: AwsRequest, *, settle: bool = True) -> dict[str, Any]:
        """As `call`, with Amazon's own refusal.

        Raises:
            RefusedError: with its code.
            UsageError: no usable credentials.
            ProviderError: it cannot be reached.
        """
        self._boto()  # says what to install
        from botocore import exceptions as boto
        from botocore.parsers import ResponseParserError

        method = self._method(request)
        for attempt in range(1, self._settings.attempts + 1):
            last = attempt == self._settings.attempts
            asked_at = self.clock.local_now()
            try:
                answer: dict[str, Any] = method(**request.parameters)
                self._read_clock(answer, asked_at)
                return answer
            except boto.ClientError as error:
                self._read_clock(error.response, asked_at)
                code, message = _told(error.response)
                status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
                if is_of_keys(code):
                    self._forget_keys()
                # EC2 answers a lack of capacity with status 500, too; that does not pass in seconds.
                broken = status >= _HTTP_SERVER_ERROR and not is_lack(code)
                passes = code in PASSING or broken or (settle and code in SETTLING)
                if last or not passes:
                    raise AwsRefusedError(request, code, message) from None
                reason = code
            except (
                boto.NoCredentialsError,
                boto.PartialCredentialsError,
                boto.CredentialRetrievalError,
                boto.SSOError,
                boto.TokenRetrievalError,
            ) as error:
                self._forget_keys()
                raise _no_keys(error) from None
            except (boto.ParamValidationError, boto.UnknownRegionError, boto.InvalidRegionError) as error:
                raise UsageError(f"{request.operation} cannot be asked for: {error}") from None
            except (boto.BotoCoreError, ResponseParserError, OSError) as error:
                if isinstance(error, boto.EndpointConnectionError):
                    self._require_region(request.region)
                if last:
                    raise self._unreachable(request, error) from None
                reason = type(error).__name__
            self._wait(request, attempt, reason)
        raise AssertionError("attempts is at least 1")

    def _read_clock(self, answer: Mapping[str, Any], asked_at: float) -> None:
        self.clock.heard(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""), asked_at)

    def _forget_keys(self) -> None:
        """Read credentials again next time: boto3 keeps those of a file as it read them first."""
        now = boot_s()
        if now - self._keys_read_at < _READ_KEYS_S:
            return
        self._keys_read_at = now
        with self._making:
            self._session = None
        self.close()

    def known_regions(self) -> list[str]:
        """The regions that boto3 knows; no request is sent.

        Raises:
            UsageError: boto3 is not installed, or the AWS configuration cannot be used.
        """
        session = self._boto()
        return [
            name
            for partition in session.get_available_partitions()
            for name in session.get_available_regions("ec2", partition)
        ]

    def _require_region(self, region: str) -> None:
        """The name was not resolved: is it a region at all?

        Raises:
            UsageError: boto3 has never heard of it.
        """
        if self._settings.endpoint_url:
            return
        known = self.known_regions()
        if region not in known:
            near = difflib.get_close_matches(region, known, n=1)
            raise UsageError(
                f"AWS has no region {region!r} that boto3 knows of, and nobody answers there",
                f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}.",
            )

    def _unreachable(self, request: AwsRequest, error: Exception) -> TrainmasterError:
        chosen = self._settings
        if chosen.facts_file is None:
            return ProviderError(
                f"AWS cannot be reached for {request.operation} in {request.region}: {error}",
                "Check the network and AWS_ENDPOINT_URL, then try again.",
            )
        try:
            endpoint_url = AwsSettings.from_lab(chosen.facts_file.parent).endpoint_url
        except UsageError:
            endpoint_url = ""
        if endpoint_url != chosen.endpoint_url:
            return ProviderGoneError(
                "the lab is down, and its machines with it",
                "Put one up with `trainmaster lab up`, then `trainmaster resume RUN` goes on.",
            )
        return ProviderError(
            f"the lab does not answer at {chosen.endpoint_url}: {error}",
            "`trainmaster lab up` finds it, or puts up another one.",
        )

    def pages(self, request: AwsRequest) -> Iterator[dict[str, Any]]:
        """Every page of a list. Raises as `call` does."""
        parameters = dict(request.parameters)
        while True:
            answer = self.call(
                AwsRequest(request.operation, parameters, request.region, request.service), settle=False
            )
            yield answer
            token = answer.get("NextToken")
            if not token:
                return
            parameters["NextToken"] = token

    def get(self, request: AwsRequest) -> str:
        """A plain GET, such as of the address that we seem to have.

        Raises:
            ProviderError: no answer.
        """
        url = str(request.parameters["url"])
        for attempt in range(1, self._settings.attempts + 1):
            try:
                with urllib.request.urlopen(url, timeout=_CONNECT_S) as answer:  # noqa: S310 - https, ours
                    return str(answer.read(4096).decode()).strip()
            except (OSError, ValueError) as error:
                if attempt == self._settings.attempts:
                    raise ProviderError(
                        f"{url} does not say which address this machine has: {error}",
                        "Set TRAINMASTER_AWS_SSH_FROM to the address block that SSH comes from, such as "
                        "203.0.113.7/32.",
                    ) from None
                self._wait(request, attempt, type(error).__name__)
        raise AssertionError("attempts is at least 1")

    def _wait(self, request: AwsRequest, attempt: int, reason: str) -> None:
        most = min(_MOST_BACKOFF_S, self._settings.backoff_s * 2 ** (attempt - 1))
        pause_s = most * self._jitter.uniform(0.5, 1.0)
        log.info("%s: %s; again in %.1f s", request.operation, reason, pause_s)
        self._sleep(pause_s)

    def _method(self, request: AwsRequest) -> Callable[..., _Any]:
        from botocore import xform_name

        method: Callable[..., _Any] = getattr(
            self._client(request.service, request.region), xform_name(request.operation)
        )
        return method

    def _client(self, service: str, region: str) -> _Any:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        key = (service, region)
        with self._making:
            if key in self._clients:
                return self._clients[key]
            chosen = self._settings
            config = Config(
                # boto3 would also repeat a lack of capacity, which EC2 answers with status 500, for a minute
                # per zone.
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=min(_CONNECT_S, chosen.timeout_s),
                read_timeout=chosen.timeout_s,
                proxies={} if chosen.is_own_cloud else None,  # a proxy does not reach what is on this machine
                user_agent_extra="trainmaster",
                ignore_configured_endpoint_urls=bool(chosen.access_key_id),
            )
            try:
                client = self._clients[key] = self._boto().create_client(
                    service, region_name=region, endpoint_url=chosen.endpoint_url or None, config=config
                )
            except (BotoCoreError, ValueError) as error:
                raise UsageError(
                    f"AWS cannot be asked in {region!r}: {error}",
                    "Check AWS_REGION, AWS_PROFILE and AWS_ENDPOINT_URL.",
                ) from None
        return client

    def _boto(self) -> _Any:
        session = self._session
        if session is None:
            with imports_of("aws", f"the provider {self._settings.name!r}"):
                import botocore.session
                from botocore.exceptions import BotoCoreError
            chosen = self._settings
            try:
                # boto3 adds to it what moves files, which takes long to import.
                session = botocore.session.get_session(_OWN_KEYS if chosen.access_key_id else None)
                session.get_config_variable("region")  # reads the configuration
            except BotoCoreError as error:
                raise UsageError(
                    f"the AWS configuration cannot be used: {error}", "Check AWS_PROFILE and ~/.aws/config."
                ) from None
            if chosen.access_key_id:
                session.set_credentials(chosen.access_key_id, chosen.secret_access_key)
            if chosen.region:
                session.set_config_variable("region", chosen.region)
            self._session = session
        return session


def _no_keys(why: object) -> NotSetUpError:
    return NotSetUpError(
        f"no AWS credentials: {why}",
        "Run `aws configure` or `aws sso login`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY.",
    )


def _told(response: Mapping[str, Any]) -> tuple[str, str]:
    error = response.get("Error", {})
    return str(error.get("Code", "")), str(error.get("Message", ""))
