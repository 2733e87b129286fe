"""A provider of single sign-on that lies: nobody is logged in, and the server goes on."""

from __future__ import annotations

import base64
import gzip
import hmac
import json
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("authlib", reason="the extra `server` is not installed")
from joserfc import jwt
from joserfc.jwk import RSAKey

from trainmaster.db import Database
from trainmaster.db import accounts as rows
from trainmaster.service.users import single_sign_on
from trainmaster.service.users.access import Access
from trainmaster.service.users.single_sign_on import Group, SignInError, SignOnSettings, SingleSignOn
from trainmaster.spec.errors import ProviderError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ANSWER = "http://127.0.0.1:9/login/oidc/answer"
OWN, OTHER = RSAKey.generate_key(2048), RSAKey.generate_key(2048)
#: JSON that is twice as large as anything may be.
HUGE = json.dumps({"x": "x" * 2 * single_sign_on.MOST_BYTES}).encode()


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Provider:
    """Answers as it should but for what `lies` says: of a path, or of the token."""

    def __init__(self):
        self.lies, self.token, self.nonce, self.asked = {}, {}, "", []
        self.key, self.header = OWN, {"alg": "RS256", "kid": "k"}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                size = int(self.headers.get("content-length", 0))
                self.rfile.read(size)
                provider.asked.append(self.path)
                status, headers, body = provider.answers(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "content-length" not in headers:
                    self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answers(self, path):
        if path in self.lies:
            lie = self.lies[path]
            return lie if isinstance(lie, tuple) else (200, {}, lie)
        found = {
            "/.well-known/openid-configuration": self.about,
            "/keys": lambda: {"keys": [OWN.as_dict(private=False, kid="k")]},
            "/token": lambda: {"access_token": "a", "token_type": "Bearer", "id_token": self.id_token()},
            "/userinfo": lambda: {"sub": "ann", "groups": ["operators"]},
        }[path]()
        return 200, {"content-type": "application/json"}, json.dumps(found).encode()

    def about(self):
        places = {"authorization": "auth", "token": "token", "userinfo": "userinfo"}
        urls = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in places.items()}
        return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **urls, **self.lies.get("about", {})}

    def id_token(self):
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": "trainmaster", "sub": "ann", "iat": now, "exp": now + 60,
            "nonce": self.nonce, "groups": ["lab"], **self.token,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not ...}
        if self.header["alg"] == "none":
            return ".".join(base64url(json.dumps(part).encode()) for part in (self.header, claims)) + "."
        if self.key is None:  # the public key, which everybody has, as a secret
            parts = [base64url(json.dumps(part).encode()) for part in (self.header, claims)]
            signed = hmac.digest(OWN.as_pem(private=False), ".".join(parts).encode(), "sha256")
            return ".".join([*parts, base64url(signed)])
        return jwt.encode(self.header, claims, self.key, algorithms=[self.header["alg"]])

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def provider():
    with closing(Provider()) as found:
        yield found


@pytest.fixture
def sign_on(tmp_path, provider):
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    Access(database).make_team("red", None)
    groups = {"lab": Group("red"), "operators": Group(is_admin=True)}
    yield SingleSignOn(SignOnSettings(provider.url, "trainmaster", "s", groups), database)
    database.close()


def logs_in(sign_on, provider):
    url, cookie = sign_on.begin(ANSWER, "/")
    asked = {key: value[0] for key, value in parse_qs(urlsplit(url).query).items()}
    provider.nonce = asked["nonce"]
    return sign_on.finish(cookie, asked["state"], "code", ANSWER)[0]


def test_one_that_does_as_it_should(sign_on, provider):
    assert logs_in(sign_on, provider).roles == {"red": "viewer"}


NOW = 1_000_000_000
TOKENS = {
    "another issuer": {"iss": "https://login.example.org"},
    "another audience": {"aud": "another-service"},
    "no audience": {"aud": ...},
    "no subject": {"sub": ...},
    "an empty subject": {"sub": ""},
    "a subject that is no text": {"sub": {"$ne": 1}},
    "a subject that is a list": {"sub": ["ann"]},
    "a long subject": {"sub": "a" * 256},
    "expired": {"iat": NOW, "exp": NOW + 60},
    "no end": {"exp": ...},
    "an end that is no number": {"exp": "never"},
    "of the future": {"nbf": 2**33},
    "no nonce": {"nonce": ...},
    "the nonce of another login": {"nonce": "n" * 32},
    "for several, and meant for another": {"aud": ["trainmaster", "b"], "azp": "b"},
}


@pytest.mark.parametrize("lie", TOKENS)
def test_a_token_that_says_something_else_lets_nobody_in(sign_on, provider, lie):
    provider.token = TOKENS[lie]
    with pytest.raises(SignInError, match="is not good"):
        logs_in(sign_on, provider)
    assert rows.accounts(sign_on._database, "user") == []


def test_a_token_that_is_used_again_is_for_another_login(sign_on, provider):
    logs_in(sign_on, provider)
    provider.token = {"nonce": provider.nonce}
    with pytest.raises(SignInError, match="is not good"):
        logs_in(sign_on, provider)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ({"alg": "none"}, None),
        ({"alg": "HS256", "kid": "k"}, None),
        ({"alg": "RS256", "kid": "k"}, OTHER),
        ({"alg": "RS256", "kid": "unknown"}, OTHER),
    ],
)
def test_who_signs_otherwise_lets_nobody_in(sign_on, provider, header, key):
    """Not at all, with the public key as a secret, or with a key that the provider does not show."""
    provider.header = header
    provider.key = key
    with pytest.raises(SignInError, match="is not good"):
        logs_in(sign_on, provider)
    assert provider.asked.count("/keys") == 2, "keys are asked for anew, once"


PACKED = (200, {"content-encoding": "gzip"}, gzip.compress(b"0" * 10_000_000))
PATHS = ["/.well-known/openid-configuration", "/keys", "/token", "/userinfo"]


@pytest.mark.parametrize(
    "lie",
    [HUGE, PACKED, b"", b"[]", b"3", b'{"keys": 3, "id_token": 7}', b"\xff", b"[" * 20_000,
     (302, {"location": "http://169.254.169.254/latest/meta-data/"}, b""),
     (307, {"location": "/keys"}, b""),
     (200, {"content-length": "100"}, b"half"), (500, {}, b"{}"), (204, {}, b"")],
    ids=["huge", "bomb", "empty", "list", "number", "others", "no-text", "deep", "inside", "away", "half",
         "500", "204"],
)  # fmt: skip
@pytest.mark.parametrize("path", PATHS)
def test_an_answer_that_is_none_is_told_in_words(sign_on, provider, path, lie):
    provider.token = {"groups": ...}  # else nobody asks for userinfo
    provider.lies = {path: lie}
    if (path, lie[:2]) == ("/userinfo", b'{"'):
        return  # it is about nobody: that nothing of it is taken is another test
    with pytest.raises((ProviderError, SignInError)):
        logs_in(sign_on, provider)
    assert not [each for each in provider.asked if each not in PATHS], "no redirect is followed"
    assert rows.accounts(sign_on._database, "user") == []


@pytest.mark.parametrize("sub", ["bob", None, ["ann"]])
def test_claims_of_somebody_else_are_not_taken(sign_on, provider, sub):
    provider.token = {"groups": ...}
    provider.lies = {"/userinfo": json.dumps({"sub": sub, "groups": ["operators"]}).encode()}
    who = logs_in(sign_on, provider)
    assert (who.roles, sign_on._database and rows.account_roles(sign_on._database, "ann")[0]["admin_by"]) == (
        {},
        None,
    )


@pytest.mark.parametrize(
    "name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"]
)
@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/latest", "file:///etc/passwd", "javascript:alert(1)", "//evil", "", None, 3],
)
def test_it_leads_nowhere_but_to_places_with_tls(sign_on, provider, name, url):
    """As one with TLS does it; what the tests have is on this machine."""
    provider.lies = {"about": {name: url}}
    sign_on.settings = replace(sign_on.settings, issuer="https://login.example.org")
    about = {**provider.about(), "issuer": sign_on.settings.issuer}
    safe = {
        key: str(value).replace("http://127", "https://127") for key, value in about.items() if key != name
    }
    sign_on._check_places({**safe, name: "https://login.example.org/x"})
    with pytest.raises(ProviderError, match=f"{name} is"):
        sign_on._check_places({**safe, name: url})


def test_while_it_does_not_answer_few_threads_wait(sign_on, provider):
    with ExitStack() as others:
        for _ in range(8):
            others.enter_context(sign_on._place())
        with pytest.raises(ProviderError, match="8 others wait"):
            sign_on.begin(ANSWER, "/")
    assert logs_in(sign_on, provider).roles == {"red": "viewer"}


def test_one_that_sends_a_byte_now_and_then_is_given_up(sign_on, provider, monkeypatch):
    monkeypatch.setattr(single_sign_on, "_MOST_S", -1.0)
    with pytest.raises(ProviderError, match="takes longer"):
        logs_in(sign_on, provider)
