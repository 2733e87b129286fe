"""What the lab's API says again without asking moto again."""

import io
import threading
from types import SimpleNamespace

from trainmaster.lab.api import LabMiddleware


class Lab:
    """A middleware before a moto that counts."""

    def __init__(self):
        self.asked = []
        self.there = [("i-1", "pending", "", "", "")]
        self.cloud = SimpleNamespace(
            settings=SimpleNamespace(access_key_id="key", region="lab-1"),
            market=SimpleNamespace(next_fault=lambda action: None),
            exclusively=threading.RLock(),
            states=lambda: list(self.there),
        )
        self.middleware = LabMiddleware(self.cloud, self._moto, None, lambda: None)

    def _moto(self, environ, start_response):
        self.asked.append(environ["wsgi.input"].read().decode())
        start_response("200 OK", [("Content-Type", "text/xml")])
        return [f"<{len(self.asked)}>".encode()]

    def __call__(self, body):
        said = []
        environ = {
            "PATH_INFO": "/",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body.encode()),
            "HTTP_AUTHORIZATION": "AWS4-HMAC-SHA256 Credential=key/20260101/lab-1/ec2/aws4_request",
        }
        answer = b"".join(self.middleware(environ, lambda line, headers, *rest: said.append((line, headers))))
        assert said == [("200 OK", [("Content-Type", "text/xml")])]
        return answer.decode()


def test_what_nothing_has_changed_is_said_again():
    lab = Lab()
    assert lab("Action=DescribeInstances") == lab("Action=DescribeInstances") == "<1>"
    assert lab("Action=DescribeInstances&InstanceId.1=i-1") == "<2>", "another question"
    assert lab("Action=DescribeVpcs") == "<3>"
    assert lab("Action=DescribeVpcs") == "<4>", "nobody knows what that depends on"
    assert lab("Action=DescribeInstances") == "<1>"


def test_a_host_that_has_booted_is_seen_at_once():
    lab = Lab()
    lab("Action=DescribeInstances")
    lab.there = [("i-1", "running", "", "", "")]
    assert lab("Action=DescribeInstances") == "<2>"


def test_after_any_change_it_is_asked_for_anew():
    lab = Lab()
    lab("Action=DescribeInstances")
    assert lab("Action=CreateTags") == "<2>"
    assert lab("Action=DescribeInstances") == "<3>"
