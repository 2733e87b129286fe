"""Logins to a Kubernetes, and how patient requests to it are."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from pathlib import Path

import pytest

from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.transport.http_calls import HttpAnswer, send_request
from trainmaster.transport.kubernetes.api import KubeApi, KubeRefusedError
from trainmaster.transport.kubernetes.login import KubeCredentials, KubeLogin, login_for_pod, read_login

CONFIG = """
current-context: {current}
clusters:
- {{name: c, cluster: {{server: {server}}}}}
users:
- {{name: u, user: {user}}}
contexts:
- {{name: {current}, context: {{cluster: c, user: u, namespace: research}}}}
"""


def login(tmp_path: Path, user: str = "{token: t}", server: str = "https://k", name: str = "a") -> KubeLogin:
    file = tmp_path / name
    file.write_text(CONFIG.format(current=name, user=user, server=server))
    return read_login("", {"KUBECONFIG": str(file), "HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "text",
    [
        "{contexts: 5}",
        "{current-context: a, contexts: [5, {name: a, context: 5}]}",
        "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],"
        " clusters: [{name: c, cluster: 5}], users: [{name: u, user: [1]}]}",
    ],
)
def test_a_login_that_means_nothing_is_refused_in_words(tmp_path: Path, text: str) -> None:
    """A team could send such a one to a server, which had no answer to it."""
    (tmp_path / "config").write_text(text)
    with pytest.raises(UsageError, match="context"):
        read_login("", {"KUBECONFIG": str(tmp_path / "config")})


def test_an_end_of_line_behind_a_token_is_no_part_of_it(tmp_path: Path) -> None:
    """It was a traceback with the token in it."""
    assert KubeCredentials(login(tmp_path, '{token: "a\\n"}')).headers() == {"Authorization": "Bearer a"}
    for user in ("{exec: 5}", "{exec: {command: /bin/cat, args: 5}}"):
        with pytest.raises(UsageError):
            KubeCredentials(login(tmp_path, user)).headers()


def test_the_first_file_holds_and_a_context_may_be_named(tmp_path: Path) -> None:
    """As `kubectl` reads them."""
    login(tmp_path, name="a")
    login(tmp_path, "{tokenFile: its-token}", "https://other", name="b")
    (tmp_path / "its-token").write_text("renewed\n")
    environ = {"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/missing:{tmp_path}/b"}
    found = read_login("", environ)
    assert (found.name, found.server, found.namespace) == ("a", "https://k", "research")
    assert KubeCredentials(found).headers() == {"Authorization": "Bearer t"}
    alone = read_login("b", {"KUBECONFIG": f"{tmp_path}/b"})
    assert KubeCredentials(alone).headers() == {"Authorization": "Bearer renewed"}
    (tmp_path / "its-token").unlink()
    with pytest.raises(UsageError, match=r"context 'b': its token cannot be read: .*its-token") as caught:
        KubeCredentials(alone).headers()
    assert caught.value.hint


def sent(tmp_path: Path, told: KubeLogin, *, is_its_own: bool) -> KubeLogin:
    """A login as one of its pods reads it."""
    (tmp_path / "sent").write_text(login_for_pod(told, is_its_own=is_its_own))
    return read_login(told.name, {"KUBECONFIG": str(tmp_path / "sent")})


def test_a_login_that_is_sent_to_a_pod_needs_no_file_of_this_machine(tmp_path: Path) -> None:
    """Also one by certificates; the place is called as before."""
    (tmp_path / "mine").write_text("PEM")
    there = sent(tmp_path, login(tmp_path, "{token: t, client-key: mine}"), is_its_own=False)
    assert KubeCredentials(there).headers() == {"Authorization": "Bearer t"}
    (tmp_path / "mine").unlink()
    assert KubeCredentials(there).text(there.user, "client-key") == "PEM"
    assert (there.server, there.namespace, there.place) == ("https://k", "research", "https://k")


def test_a_pod_with_an_account_of_its_own_gets_no_secret(tmp_path: Path) -> None:
    """Its ledger is still that of the same place."""
    there = sent(tmp_path, login(tmp_path, "{exec: {command: aws}}"), is_its_own=True)
    assert (there.server, there.place) == ("https://kubernetes.default.svc", "https://k")
    assert there.user["tokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    found = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    inside = read_login("", {"KUBECONFIG": str(tmp_path / "sent"), **found})
    assert (inside.server, inside.place) == ("https://10.0.0.1:6443", "https://k"), "without a DNS"


@pytest.mark.parametrize("user", ["{exec: {command: aws}}", "{tokenFile: its-token}"])
def test_a_token_that_only_this_machine_renews_is_not_sent(tmp_path: Path, user: str) -> None:
    """It would be over in the middle of the run."""
    with pytest.raises(UsageError, match="renewed on this machine only") as caught:
        sent(tmp_path, login(tmp_path, user), is_its_own=False)
    assert "service_account" in caught.value.hint


@pytest.mark.parametrize(
    ("user", "server", "words"),
    [
        ("{token: geheim}", "http://far.example.org", "without encryption"),
        ("{token: geheim}", "http://127.0.0.1.example.org", "without encryption"),
        ("{token: geheim}", "https://k, insecure-skip-tls-verify: true", "insecure-skip-tls-verify"),
        ("{auth-provider: {name: gcp}}", "https://k", "auth-provider"),
        ("{token: geheim}", "https://k, proxy-url: 'http://p'", "proxy-url"),
        ("{token: geheim}", "https://k, tls-server-name: n", "tls-server-name"),
        ("{token: geheim, as: limited}", "https://k", "'as'"),
        ("{token: geheim, as-groups: [few]}", "https://k", "as-groups"),
        ("{token: geheim}", "''", "no address"),
    ],
)
def test_what_cannot_work_or_gives_secrets_away_is_refused(
    tmp_path: Path, user: str, server: str, words: str
) -> None:
    """Without saying any."""
    with pytest.raises(UsageError, match=words) as caught:
        login(tmp_path, user, server)
    assert caught.value.hint
    assert "geheim" not in str(caught.value)


def test_without_files_the_pod_itself_may_have_a_login(tmp_path: Path) -> None:
    """Else it is said where was looked."""
    with pytest.raises(UsageError, match=r"\.kube/config"):
        read_login("", {"HOME": str(tmp_path)})
    found = read_login("", {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert found.server == "https://10.0.0.1:443"
    assert read_login(found.name, found.environ).server == found.server
    login(tmp_path)
    with pytest.raises(UsageError, match="no context 'x'"):
        read_login("x", {"KUBECONFIG": f"{tmp_path}/a"})


def plug_in(tmp_path: Path, script: str) -> KubeCredentials:
    program = tmp_path / "tell"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    user = "{exec: {command: ./tell, args: [x], env: [{name: MORE, value: '1'}]}}"
    return KubeCredentials(login(tmp_path, user))


def test_a_program_tells_the_token_and_is_asked_again_when_it_is_refused(tmp_path: Path) -> None:
    """Once as long as it is taken."""
    script = f"echo $1$MORE >> {tmp_path}/asked; n=$(wc -l < {tmp_path}/asked)"
    script += """; printf '{"status": {"token": "%s"}}' $n"""
    credentials = plug_in(tmp_path, script)
    assert [credentials.headers()["Authorization"] for _ in range(2)] == ["Bearer 1", "Bearer 1"]
    assert credentials.headers(is_refused=True) == {"Authorization": "Bearer 2"}
    assert (tmp_path / "asked").read_text() == "x1\nx1\n"
    with pytest.raises(UsageError, match="log in first"):
        plug_in(tmp_path, "echo log in first >&2; exit 1").headers()


def api(tmp_path: Path, answers: list[HttpAnswer | OSError]) -> tuple[KubeApi, list[float]]:
    waited: list[float] = []

    def send(*_: object) -> HttpAnswer:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    return KubeApi(login(tmp_path), "research", send, waited.append), waited


def test_a_busy_server_is_waited_for(tmp_path: Path) -> None:
    """As long as it says; and a token that is not taken is tried once more."""
    busy = HttpAnswer(429, "", {"retry-after": "3"})
    asked, waited = api(tmp_path, [busy, HttpAnswer(401, "{}"), HttpAnswer(200, '{"items": []}')])
    assert asked.call("GET", "pods") == {"items": []}
    assert waited == [3.0]
    asked, _ = api(tmp_path, [HttpAnswer(401, "{}")] * 2)
    with pytest.raises(UsageError, match="does not take the login"):
        asked.call("GET", "pods")


def test_a_new_login_in_the_same_file_is_taken(tmp_path: Path) -> None:
    """A run lasts longer than a token that is written there each day; another server is not followed."""

    def send(_method: str, _address: str, headers: dict[str, str], *_: object) -> HttpAnswer:
        return HttpAnswer(200 if headers["Authorization"] == "Bearer new" else 401, "{}")

    asked = KubeApi(login(tmp_path), "research", send)
    login(tmp_path, "{token: new}", "https://other")
    with pytest.raises(UsageError, match="does not take the login"):
        asked.call("GET", "pods")
    login(tmp_path, "{token: new}")
    assert asked.call("GET", "pods") == {}


def test_renewed_certificates_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that is refused is made anew with what its connections show."""
    answers, made = [HttpAnswer(401, "{}"), HttpAnswer(200, "{}")], list[object]()

    def sender(context: object, **_: object) -> object:
        made.append(context)
        return lambda *_: answers.pop(0)

    monkeypatch.setattr("trainmaster.transport.kubernetes.api.sender", sender)
    KubeApi(login(tmp_path), "research").call("GET", "pods")
    assert len({id(context) for context in made}) == 2


def test_refusals_are_told_in_its_words(tmp_path: Path) -> None:
    """A quota is no missing right."""

    def told(words: str) -> HttpAnswer:
        return HttpAnswer(403, json.dumps({"message": words, "reason": "Forbidden"}))

    asked, _ = api(tmp_path, [told("exceeded quota: q"), told('pods is forbidden: User "me" cannot list')])
    with pytest.raises(KubeRefusedError) as caught:
        asked.call("POST", "pods", {})
    assert caught.value.is_quota
    with pytest.raises(UsageError, match='User "me" cannot list') as refused:
        asked.call("GET", "pods")
    assert "role" in refused.value.hint
    asked, _ = api(tmp_path, [HttpAnswer(200, "{}"), told('pods is forbidden: User "me" cannot list')])
    asked.call("GET", "pods")
    with pytest.raises(KubeRefusedError, match='User "me"'):  # it could before: it is asked again
        asked.call("GET", "pods")
    asked, _ = api(tmp_path, [OSError("no route")])
    with pytest.raises(ProviderError, match="does not answer at https://k: no route"):
        asked.call("GET", "pods")


@pytest.mark.parametrize("body", ["", "{}", "[]"])
def test_what_no_list_is_has_not_no_pods(tmp_path: Path, body: str) -> None:
    """A gateway's answer is not the Kubernetes's."""
    asked, _ = api(tmp_path, [HttpAnswer(200, body)])
    with pytest.raises(ProviderError, match="https://k"):
        asked.all("pods")


def test_an_answer_that_ends_too_early_is_none() -> None:
    """Also when nothing of it has come."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                line.recv(10_000)
                line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(http.client.IncompleteRead):
            send_request("GET", f"http://127.0.0.1:{server.getsockname()[1]}", {}, None, 60.0)


@pytest.mark.parametrize(
    "words", ["failed quota: q: must specify limits.memory", "insufficient quota to match these scopes: []"]
)
def test_a_quota_that_wants_something_else_is_not_waited_for(words: str) -> None:
    """It would be for ever."""
    assert not KubeRefusedError(403, f'pods "p" is forbidden: {words}').is_quota


def test_lists_come_page_by_page_and_clocks_are_compared(tmp_path: Path) -> None:
    """A second's difference is none."""
    first = '{"items": [{"a": 1}], "metadata": {"continue": "c"}}'
    date = {"date": "Thu, 01 Jan 1970 00:00:00 GMT"}
    asked, _ = api(tmp_path, [HttpAnswer(200, first), HttpAnswer(200, '{"items": [{"a": 2}]}', date)])
    assert asked.all("pods") == [{"a": 1}, {"a": 2}]
    assert asked.clock.ahead_s < -1e9
