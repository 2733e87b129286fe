"""S3 by profiles, as aws-cli and boto3 have them: a real server, and files in a home of the test's own."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from reading_helpers import wait_until

from trainmaster.objects import ObjectStore, amazon
from trainmaster.objects.delegated_credentials import store_environment, store_host
from trainmaster.spec.errors import MissingPartError, PublishError, TrainmasterError, UsageError
from trainmaster.volumes.mounting import available

pytestmark = [pytest.mark.s3]


class Home:
    """A directory with `~/.aws`; `given` are the server's keys, `url` is its address."""

    def __init__(self, place: Path, private_s3) -> None:
        self.place = place
        self.given = private_s3.environment()
        self.url = f"s3://{private_s3.new_bucket()}"
        (place / ".aws").mkdir()

    def write(self, name: str, text: str) -> None:
        (self.place / ".aws" / name).write_text(
            text.format(
                key=self.given["AWS_ACCESS_KEY_ID"],
                secret=self.given["AWS_SECRET_ACCESS_KEY"],
                endpoint=self.given["AWS_ENDPOINT_URL"],
            )
        )


@pytest.fixture
def home(tmp_path, monkeypatch, private_s3):
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path / "cache"))
    return Home(tmp_path, private_s3)


KEYS = "aws_access_key_id = {key}\naws_secret_access_key = {secret}\n"


def test_a_profile_serves_every_verb_short_names_and_mounts(home, tm) -> None:
    home.write("credentials", "[mine]\n" + KEYS)
    home.write(
        "config",
        "[profile mine]\nregion = eu-central-1\nservices = here\n"
        "[services here]\ns3 =\n  endpoint_url = {endpoint}\n",
    )
    tm.env |= {"AWS_PROFILE": "mine", "TRAINMASTER_STORE": f"{home.url}/home"}
    tm.write("data/a.txt", "hello")
    assert (
        tm.call("volume", "push", tm.work / "data", "pets", "--json", code=0).json["uri"].startswith(home.url)
    )
    tm.call("volume", "get", "pets", tm.work / "back", code=0)
    assert (tm.work / "back" / "a.txt").read_text() == "hello"
    if available() is not None:
        pytest.skip("volumes cannot be mounted here")
    place = tm.work / "mnt"
    tm.call("volume", "mount", "pets", place, code=0)
    try:
        assert (place / "a.txt").read_text() == "hello"
    finally:
        tm.call("volume", "unmount", place, code=0)


def test_the_direct_way_signs_with_the_profile_too(home, monkeypatch) -> None:
    home.write("credentials", "[default]\n" + KEYS)
    home.write("config", "[default]\nendpoint_url = {endpoint}\n")
    store = ObjectStore(home.url)
    store.put("x", b"0123456789")
    monkeypatch.setattr(obstore, "get_range", None)  # the other way
    assert b"".join(bytes(block) for block in store.range_blocks("x", 2, 5)) == b"23456"


def test_what_is_lent_is_keys_and_never_a_file(home, monkeypatch) -> None:
    home.write("credentials", "[default]\n" + KEYS + "aws_session_token =\n")
    home.write("config", "[default]\nregion = eu-west-3\nendpoint_url = {endpoint}\n")
    ObjectStore(home.url).put("x", b"1")
    credentials = store_environment(home.url)
    assert credentials == {
        "AWS_ACCESS_KEY_ID": home.given["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": home.given["AWS_SECRET_ACCESS_KEY"],
        "AWS_REGION": "eu-west-3",
        "AWS_ENDPOINT_URL_S3": home.given["AWS_ENDPOINT_URL"],
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    assert store_host(home.url) == "127.0.0.1"
    # The other machine has a profile of its own, which is not to be mixed in.
    elsewhere = {**credentials, "HOME": str(home.place / "other"), "PATH": os.environ["PATH"]}
    (home.place / "other" / ".aws").mkdir(parents=True)
    (home.place / "other" / ".aws" / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:1\n")
    code = f"from trainmaster.objects import ObjectStore; assert ObjectStore({home.url!r}).get('x') == b'1'"
    subprocess.run([sys.executable, "-c", code], env=elsewhere, check=True, timeout=60)


def test_the_environment_comes_before_the_profile(home, monkeypatch) -> None:
    home.write("credentials", "[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n")
    home.write("config", "[default]\nregion = eu-west-3\nendpoint_url = http://127.0.0.1:1\n")
    for name, value in home.given.items():
        monkeypatch.setenv(name, value)
    ObjectStore(home.url).put("x", b"1")
    assert ObjectStore(home.url).get("x") == b"1"
    # What the environment leaves open is the profile's.
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    assert amazon.amazon_settings() == amazon.AmazonSettings("eu-west-3", "http://127.0.0.1:1", "")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert amazon.amazon_settings().endpoint_url == ""
    credentials = store_environment(home.url)
    assert credentials is not None
    assert credentials["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] == "true"
    assert credentials["AWS_ACCESS_KEY_ID"] == home.given["AWS_ACCESS_KEY_ID"]


def test_files_elsewhere_and_files_that_are_corrected(home, monkeypatch) -> None:
    (home.place / "keys").write_text("[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home.place / "keys"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", home.given["AWS_ENDPOINT_URL"])
    with pytest.raises(PublishError, match=r"Cannot write") as caught:
        ObjectStore(home.url).put("x", b"1")
    assert "AWS_PROFILE" in caught.value.hint
    home.write("credentials", "[default]\n" + KEYS)
    (home.place / ".aws" / "credentials").replace(home.place / "keys")
    ObjectStore(home.url).put("x", b"1")  # in the same process


def helper(home) -> Path:
    """A program that gives keys for 5 minutes, as the profile has it."""
    log = home.place / "asked"
    program = home.place / "helper"
    program.write_text(
        f"#!{sys.executable}\nimport datetime, json\nopen({str(log)!r}, 'a').write('x')\n"
        "soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5)\n"
        f"print(json.dumps({{'Version': 1, 'AccessKeyId': {home.given['AWS_ACCESS_KEY_ID']!r},"
        f" 'SecretAccessKey': {home.given['AWS_SECRET_ACCESS_KEY']!r}, 'Expiration': soon.isoformat()}}))\n"
    )
    program.chmod(0o755)
    home.write("config", f"[default]\ncredential_process = {program}\nendpoint_url = {{endpoint}}\n")
    return program


def test_keys_of_a_helper_program_are_asked_for_again(home, monkeypatch) -> None:
    program, log = helper(home), home.place / "asked"
    store = ObjectStore(home.url)
    store.put("x", b"1")
    first = len(log.read_text())
    # As they are valid for less than botocore wants, each asking makes new ones.
    assert store_environment(home.url)
    assert len(log.read_text()) > first
    program.write_text(f"#!{sys.executable}\nraise SystemExit('log in first')\n")
    with pytest.raises(UsageError, match="log in first"):
        store_environment(home.url)


def test_a_store_that_stays_open_asks_again(home, monkeypatch) -> None:
    monkeypatch.setattr(amazon, "_VALID_FOR", timedelta(seconds=1))  # obstore asks 5 minutes before
    program = helper(home)
    store = ObjectStore(home.url)
    store.put("x", b"1")
    first = len((home.place / "asked").read_text())
    # Obstore asks again some time after it asked last.
    wait_until(lambda: store.get("x") == b"1" and len((home.place / "asked").read_text()) > first)
    program.write_text(f"#!{sys.executable}\nraise SystemExit('log in first')\n")

    said: list[str] = []

    def is_refused() -> bool:
        try:
            store.get("x")
        except PublishError as error:
            said.extend((str(error), error.hint))
        return bool(said)

    wait_until(is_refused)
    assert said[0].startswith(f"Cannot read {home.url}/x: The profile 'default' (")
    assert "log in first.\n" in said[0]
    assert said[1].startswith("Run `aws configure`")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[profile other]\nregion = x\n", "There is no profile 'mine'"),
        ("[profile mine]\nregion = x\n", "no credentials"),
        ("[profile mine]\naws_access_key_id = half\n", "[Pp]artial"),
        ("[profile mine]\nrole_arn = arn:x\nsource_profile = gone\n", "gone"),
        ("no section\n", "pars"),
        (
            "[profile mine]\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n"
            "[sso-session s]\nsso_start_url = https://example.org\nsso_region = eu-west-1\n",
            "(?i)sso",
        ),
    ],
)
def test_a_profile_that_is_wrong_is_the_users_to_mend(home, tm, monkeypatch, config, said) -> None:
    home.write("config", config)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    with pytest.raises(UsageError, match=said) as caught:
        ObjectStore(home.url)
    assert "mine" in str(caught.value)
    with pytest.raises(TrainmasterError):
        store_environment(home.url)
    tm.env["AWS_PROFILE"] = "mine"
    tm.call("volume", "ls", f"{home.url}/pets", code=2)


def test_without_boto3_it_is_said_what_to_install(home, monkeypatch) -> None:
    home.write("credentials", "[default]\n" + KEYS)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(MissingPartError, match="boto3") as caught:
        ObjectStore(home.url)
    assert "trainmaster[aws]" in caught.value.hint
    for name, value in home.given.items():
        monkeypatch.setenv(name, value)
    ObjectStore(home.url).put("x", b"1")  # keys in the environment need nothing
