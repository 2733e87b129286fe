"""Credentials for Infrastructure Manager in its own form; what is secret is told nobody but it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.providers.im.credentials import ImCredentials, parse_credentials, read_credentials
from trainmaster.spec.errors import UsageError

FILE = Path("im.auth")
LOGIN = "type = InfrastructureManager; username = me; password = pw-of-mine\n"
PLAIN = st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="'\"\\")
VALUES = st.text(PLAIN, min_size=1).filter(lambda it: it == it.strip() and not it.startswith("file("))


def test_records_comments_quotes_and_new_lines(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("BEGIN\nabc\n")
    file = tmp_path / "im.auth"
    file.write_text(
        f"# mine\n{LOGIN}\n"
        "id = gce; type = GCE; username = u ; password = 'a;b=c' ; private_key = file(key.pem)\n"
        'id = ost; type = OpenStack; host = "https://x:5000/v3"; password = it is\\nlong\n'
    )
    file.chmod(0o600)
    found = read_credentials(file)
    assert found.clouds == {"gce": "GCE", "ost": "OpenStack"}
    assert found.records[1]["password"] == "a;b=c"
    assert found.records[1]["private_key"] == "BEGIN\nabc\n"
    assert found.records[2]["password"] == "it is\nlong"
    assert found.records[2]["host"] == "https://x:5000/v3"
    assert "\n" not in found.header


@given(VALUES, VALUES)
def test_the_header_says_what_the_file_says(login: str, secret: str) -> None:
    """Read as IM reads it: records apart by a backslash and an n, quotes taken off."""
    listed = [
        {"type": "InfrastructureManager", "username": "me", "password": login},
        {"id": "c", "type": "EC2", "password": secret},
    ]
    found = parse_credentials(json.dumps(listed), FILE)
    again = parse_credentials(found.header.replace(r"\n", "\n"), FILE)
    assert [dict(each) for each in again.records] == listed


def test_what_is_secret_is_in_no_message() -> None:
    found = parse_credentials(LOGIN + "id = c; type = EC2; username = AKIA1; password = sssh-secret", FILE)
    assert found.hidden("bad: sssh-secret, pw-of-mine, AKIA1") == "bad: ***, ***, AKIA1"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id = c; type = EC2; password = topsecret", "no record of the type InfrastructureManager"),
        (LOGIN + "id = c; password = topsecret", "record 2 has no type"),
        (LOGIN + "type = EC2; password = topsecret", r"record 2 \(EC2\) has no id"),
        (LOGIN + "id = 1c; type = EC2; password = topsecret", "an id that IM does not take"),
        (LOGIN + "id = c; type = EC2\nid = c; type = GCE; password = topsecret", "the id c is there twice"),
        (LOGIN + "topsecret", "line 2 is no record"),
        (LOGIN + "id = c; type = EC2; password = topsecret\x01", "a character that HTTP does not carry"),
        (LOGIN + "id = c; type = GCE; password = file(no-such)", "no-such, which cannot be read"),
        ("[topsecret", "is no list of records in JSON"),
    ],
)
def test_what_is_wrong_is_told_without_values(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_credentials(text, FILE)
    assert caught.value.hint
    assert "topsecret" not in f"{caught.value.args} {caught.value.hint}"


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "im.auth"
    file.write_text(LOGIN)
    file.chmod(0o644)
    with pytest.raises(UsageError, match="others may read it") as caught:
        read_credentials(file)
    assert re.search("chmod 600", caught.value.hint)
    with pytest.raises(UsageError, match="there are no credentials"):
        read_credentials(tmp_path / "none")


def test_no_records_is_an_empty_header() -> None:
    assert ImCredentials(()).header == ""
