"""Keys for a part of a store: what they allow, as rules and as signatures."""

from __future__ import annotations

import base64
import fnmatch
import json
from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.objects import delegated_credentials, narrowing
from trainmaster.objects.delegated_credentials import (
    EXPIRES_VARIABLE,
    WHOLE_KEYS_VARIABLE,
    DelegatedCredentials,
)
from trainmaster.objects.narrowing import Grant, NarrowKeys, TooWideKeysError, amazon_policy, narrow_azure

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
RUN = Grant("s3://bucket/models/r-1", writes=True)
_names = st.text("ab/", max_size=8)


def allows(policy: str, action: str, bucket: str, key: str = "") -> bool:
    """What a service that reads such rules would say; https://docs.aws.amazon.com/IAM/latest/UserGuide/."""
    for rule in json.loads(policy)["Statement"]:
        if action not in rule["Action"]:
            continue
        prefixes = rule.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        if action == "s3:ListBucket":
            named = f"arn:aws:s3:::{bucket}" in rule["Resource"]
            if named and (prefixes is None or any(fnmatch.fnmatchcase(key, each) for each in prefixes)):
                return True
        elif any(fnmatch.fnmatchcase(f"arn:aws:s3:::{bucket}/{key}", each) for each in rule["Resource"]):
            return True
    return False


@given(_names, _names, st.booleans())
def test_a_policy_allows_what_lies_below_and_nothing_else(prefix, key, writes):
    policy = amazon_policy([Grant(f"s3://b/{prefix}", writes)])
    inside = prefix.strip("/")
    is_below = not inside or key == inside or key.startswith(f"{inside}/")
    assert allows(policy, "s3:GetObject", "b", key) == is_below
    assert allows(policy, "s3:PutObject", "b", key) == (is_below and writes)
    assert allows(policy, "s3:ListBucket", "b", key) == is_below
    for action in ("s3:DeleteObject", "s3:PutBucketPolicy", "s3:GetBucketPolicy"):
        assert not allows(policy, action, "b", key)
    assert not allows(policy, "s3:GetObject", "c", key)


def test_what_may_be_read_is_not_written():
    policy = amazon_policy([RUN, Grant("s3://bucket/volumes/v")])
    assert allows(policy, "s3:PutObject", "bucket", "models/r-1/t/0/x")
    assert not allows(policy, "s3:PutObject", "bucket", "volumes/v/chunks/x")
    assert not allows(policy, "s3:GetObject", "bucket", "models/r-10/x")


def test_a_signature_of_azures_store_is_for_one_container_and_some_hours():
    key = base64.b64encode(b"0123456789abcdef" * 4).decode()
    account = {"AZURE_STORAGE_ACCOUNT_NAME": "acc", "AZURE_STORAGE_ACCOUNT_KEY": key}
    keys = narrow_azure(
        account, [Grant("az://box/models/r-1", writes=True)], datetime(2026, 1, 1, tzinfo=UTC)
    )
    query = {
        name: values[0] for name, values in parse_qs(keys.environment["AZURE_STORAGE_SAS_TOKEN"]).items()
    }
    assert (query["sp"], query["sr"], query["st"]) == ("rcwl", "c", "2025-12-31T23:45:00Z")
    assert query["se"] == "2026-01-02T12:00:00Z"
    assert len(base64.b64decode(query["sig"])) == 32
    reading = narrow_azure(account, [Grant("az://box/v")], datetime(2026, 1, 1, tzinfo=UTC))
    assert "sp=rl&" in reading.environment["AZURE_STORAGE_SAS_TOKEN"]
    with pytest.raises(TooWideKeysError, match="several containers"):
        narrow_azure(account, [Grant("az://box/v"), Grant("az://other/v")])
    with pytest.raises(TooWideKeysError, match="AZURE_STORAGE_ACCOUNT_KEY only"):
        narrow_azure({"AZURE_CLIENT_SECRET": "s"}, [Grant("az://box/v")])


@pytest.fixture
def service(monkeypatch):
    """What makes keys: asked for what, and an answer; the clock in ``now``."""
    found = {"asked": [], "refuses": False, "now": 1_000_000.0}

    def narrow(keys, grants):
        found["asked"].append(tuple(grants))
        if found["refuses"]:
            raise TooWideKeysError("no", "hint")
        number = len(found["asked"])
        made = {"AWS_ACCESS_KEY_ID": f"n{number}", "AWS_SECRET_ACCESS_KEY": "n", "AWS_SESSION_TOKEN": "t"}
        return NarrowKeys(made, found["now"] + 3600)

    monkeypatch.setattr(delegated_credentials, "narrow_amazon", narrow)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", WHOLE_KEYS_VARIABLE, "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    found["lender"] = DelegatedCredentials(lambda: found["now"])
    return found


def test_nodes_get_narrow_keys_that_are_used_again_until_a_third_of_their_life_is_over(service):
    credentials = service["lender"]
    first = credentials.environment([RUN])
    assert first["AWS_ACCESS_KEY_ID"] == "n1"
    assert "secret" not in first.values()
    assert first[EXPIRES_VARIABLE] == "1003600"
    service["now"] += 1199
    assert credentials.environment([RUN])["AWS_ACCESS_KEY_ID"] == "n1"
    service["now"] += 2
    assert credentials.environment([RUN])["AWS_ACCESS_KEY_ID"] == "n2"
    assert credentials.environment([Grant("s3://bucket/volumes/v")])["AWS_ACCESS_KEY_ID"] == "n3"


def test_keys_that_were_changed_are_asked_anew(service, monkeypatch):
    credentials = service["lender"]
    credentials.environment([RUN])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert credentials.environment([RUN])["AWS_ACCESS_KEY_ID"] == "n2"


def test_a_refusal_holds_for_a_while(service):
    service["refuses"] = True
    for _ in range(3):
        with pytest.raises(TooWideKeysError):
            service["lender"].environment([RUN])
    assert len(service["asked"]) == 1
    service["refuses"], service["now"] = False, service["now"] + 301
    assert service["lender"].environment([RUN])["AWS_ACCESS_KEY_ID"] == "n2"


def test_whole_keys_are_lent_only_to_who_asks_for_it(service, monkeypatch):
    monkeypatch.setenv(WHOLE_KEYS_VARIABLE, "true")
    assert service["lender"].environment([RUN])["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert not service["asked"]


def test_what_is_no_secret_or_narrow_already_is_lent_as_it_is(monkeypatch):
    for name in (*KEYS, "AWS_PROFILE", "AZURE_STORAGE_ACCOUNT_KEY", WHOLE_KEYS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sp=r&sig=x")
    monkeypatch.setenv("HADOOP_USER_NAME", "h")
    found = DelegatedCredentials().environment([RUN, Grant("az://box/v"), Grant("hdfs://name:9870/x")])
    assert found["AWS_SKIP_SIGNATURE"] == "true"
    assert found["AZURE_STORAGE_SAS_TOKEN"] == "sp=r&sig=x"
    assert found["HADOOP_USER_NAME"] == "h"
    assert EXPIRES_VARIABLE not in found
    assert DelegatedCredentials().environment([Grant("file:///store")]) is None


def test_keys_of_which_nothing_narrower_can_be_made_stay_here(monkeypatch, tmp_path):
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account", "private_key": "k"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.delenv(WHOLE_KEYS_VARIABLE, raising=False)
    with pytest.raises(TooWideKeysError, match="gs://"):
        DelegatedCredentials().environment([Grant("gs://bucket/models/r-1")])


def test_the_own_role_is_found_by_the_name_of_the_session():
    assert narrowing._ASSUMED.match("arn:aws-cn:sts::123:assumed-role/me/session")[3] == "me"
    assert narrowing._ASSUMED.match("arn:aws:iam::123:user/me") is None


def test_a_service_of_keys_that_says_nothing_is_given_up_within_half_a_minute():
    """A task that is saved waits for it, and its machine may be gone meanwhile."""
    pytest.importorskip("botocore", reason="botocore is not installed")
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    config = narrowing._client("sts", keys).meta.config
    assert config.retries["total_max_attempts"] * (config.connect_timeout + config.read_timeout) <= 30
