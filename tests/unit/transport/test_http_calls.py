"""What is read of answers of any place's API."""

from __future__ import annotations

import pytest

from trainmaster.transport.http_calls import HttpAnswer, pause_before_retry_s, said_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"error": {"code": 401, "title": "Unauthorized", "message": "who\\n are you"}}', "who are you"),
        ('{"code": 404, "message": "no such image"}', "no such image"),
        ('{"message": "", "code": {"message": ""}}', '{"message": "", "code": {"message": ""}}'),
        ("<h1>Bad Gateway</h1>\n", "<h1>Bad Gateway</h1>"),
        ('["no"]', "no"),
        ('{"error": "no such user", "status": 404}', "no such user"),
        ('{"errors": [{"code": 1, "detail": "no"}, {"detail": "two"}]}', "no"),
        ('{"error_message": [1, {}], "name": "x"}', '{"error_message": [1, {}], "name": "x"}'),
        ("", "it does not say why"),
    ],
)
def test_what_an_error_says(text, said):
    assert said_of(text) == said


@pytest.mark.parametrize(
    ("status", "after", "pause_s"),
    [(429, "", 4.0), (429, "90", 60.0), (503, "7", 7.0), (503, "", None), (500, "7", None), (200, "7", None)],
)
def test_what_is_too_much_now_is_asked_again_when_it_may_be(status, after, pause_s):
    answer = HttpAnswer(status, "", {"retry-after": after} if after else {})
    assert pause_before_retry_s(answer, 2, 60.0, (413, 503)) == pause_s
