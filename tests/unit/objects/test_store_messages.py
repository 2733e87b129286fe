"""What users are told of a store that does not do what it should."""

import pytest

from trainmaster.objects.errors import StoreTrouble, explained
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.obstore_errors import store_error
from trainmaster.spec.errors import UsageError

SENT = "Generic S3 error: Error performing GET http://host/b - HTTP error: error sending request"
REFUSED = """ - Server returned non-2xx status code: 403 Forbidden: <?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SignatureDoesNotMatch</Code><Message>It is another.</Message><Resource>/b</Resource></Error>"""
UNTRUSTED = f"{SENT}\n\nDebug source:\nHttp(InvalidCertificate(\n  UnknownIssuer,\n))"
NOT_THERE = f"{SENT}\n\nDebug source:\nkind: ConnectionRefused"
AWAY = StoreTrouble.UNREACHABLE


@pytest.mark.parametrize(
    ("text", "said", "unsaid", "hint"),
    [
        (f"Forbidden{REFUSED}", "SignatureDoesNotMatch: It is another.", "<", "AWS_ACCESS_KEY_ID"),
        (UNTRUSTED, "UnknownIssuer", "Debug", "AWS_CA_BUNDLE"),
        (NOT_THERE, "sending request: ConnectionRefused", "Debug", "network"),
        (SENT.replace("host/b", "169.254.169.254/latest"), "no credentials were found", "169.254", "~/.aws"),
        (f"{SENT}\n\nDebug source:\nnothing", "error sending request.", "Debug", "network"),
    ],
)
def test_what_a_library_says_is_put_plainly(text, said, unsaid, hint):
    error = explained(store_error(text), "read", "s3://b/x")
    assert said in str(error.args[0])
    assert unsaid not in str(error.args[0])
    assert hint in error.hint


def test_a_message_has_no_more_than_its_reader_needs():
    """Nor how long it took: what fails in the same way twice has the same words."""
    asked = "Error performing GET http://host/b?list-type=2 in {}µs - Server returned non-2xx status code: "
    begins = ("Generic S3 error: Error performing list request: ", (
        "The operation lacked the necessary privileges to complete for path a/b: "
    ))  # fmt: skip
    said = {
        str(store_error(begin + asked.format(number) + "403 Forbidden: AccessDenied").args[0])
        for begin in begins
        for number in (577.166, 504)
    }
    assert said == {"GET http://host/b?list-type=2: 403 Forbidden: AccessDenied"}
    late = f"{ASKED} in 106ms, after 1 retries, max_retries: 10, retry_timeout: 180s  - HTTP error: refused"
    assert store_error(late).args[0] == "HEAD http://127.0.0.1:9/b: refused"


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("AWS_ENDPOINT_URL", "127.0.0.1:9000", "is no URL"),
        ("AWS_CA_BUNDLE", "/no/such/bundle.pem", "cannot be read"),
    ],
)
def test_settings_that_cannot_be(name, value, match, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name}.*{match}"):
        ObjectStore("s3://bucket/x")


ASKED = "Generic S3 error: Error performing HEAD http://127.0.0.1:9/b"


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        (f"{ASKED} in 106ms, after 1 retries  - HTTP error: error sending request: ConnectionRefused", AWAY),
        (f"{ASKED} in 103ms  - Server returned non-2xx status code: 503 Service Unavailable", AWAY),
        (f"{ASKED} in 103ms  - Server returned non-2xx status code: 429 Too Many Requests", AWAY),
        (f"{ASKED} in 106ms  - HTTP error: error decoding response body", AWAY),
        ("Error performing GET s3://b/certificates/x - HTTP error: error sending request", AWAY),
        (f"{ASKED} in 34ms - Server returned non-2xx status code: 403 Forbidden", StoreTrouble.REFUSED),
        (f"{ASKED} - Received redirect: an incorrectly configured region", StoreTrouble.REFUSED),
        ("PUT http://169.254.169.254/latest/api - HTTP error: error sending request", StoreTrouble.REFUSED),
        (UNTRUSTED, StoreTrouble.REFUSED),
        ("Object at location s3://b/timeout/x cannot be understood", StoreTrouble.OTHER),
    ],
)
def test_which_words_of_the_library_are_of_which_kind(text, trouble):
    assert store_error(text).trouble is trouble
