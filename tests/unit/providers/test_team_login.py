"""What a team's own login may be, and that nothing of the server's is used with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.plugins import PROVIDERS
from trainmaster.providers.team_login import collected, login_kind, team_place
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.transport.checked_connection import TEAM_VARIABLE

SITE = "machines: {node: {cpus: 1, memory: 1GB}}\n"
SLURM = "login: ada@hpc.example.org\nkey: '{TRAINMASTER_SLURM_KEY}'\n" + SITE
RAY = "login: ada@ray.example.org\nkey: '{TRAINMASTER_RAY_KEY}'\naddress: auto\n" + SITE
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nof the team\n"
CLUSTER = {"server": "https://k8s.example.org"}
KUBERNETES = "image: i\nnamespace: research\n" + SITE
OPENSTACK = "cloud: ours\nimage: Ubuntu\n"
AUTH = {
    "auth_url": "https://keystone.example.org/v3",
    "application_credential_id": "a",
    "application_credential_secret": "of the team",
}
AWS = {"AWS_ACCESS_KEY_ID": "AKIATEAM", "AWS_SECRET_ACCESS_KEY": "of the team", "AWS_REGION": "eu-west-1"}
MARK = "'{TRAINMASTER_IM_CREDENTIALS}'"
IM = f"url: https://im.example.org/im\ncredentials: {MARK}\nclouds: {{ec2: {{image: i}}}}\n"


def kubeconfig(user=None, cluster=None, **more):
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {**CLUSTER, **(cluster or {})}}],
            "users": [{"name": "u", "user": user or {"token": "of the team"}}],
            **more,
        }
    )


def clouds(auth=None, **more):
    return json.dumps({"clouds": {"ours": {"auth": {**AUTH, **(auth or {})}, **more}}})


def im(**more):
    server = {"type": "InfrastructureManager", "username": "me", "password": "of the team"}
    return json.dumps([server, {"id": "ec2", "type": "EC2", "username": "a", "password": "b", **more}])


SECURE = {"OS_CLIENT_SECURE_FILE": "/dev/null"}
GOOD = {
    "slurm": ({"TRAINMASTER_SLURM": SLURM, "TRAINMASTER_SLURM_KEY": KEY}, {}),
    "kubernetes": ({"TRAINMASTER_KUBERNETES": KUBERNETES, "KUBECONFIG": kubeconfig()}, {}),
    "openstack": ({"TRAINMASTER_OPENSTACK": OPENSTACK, "OS_CLIENT_CONFIG_FILE": clouds()}, SECURE),
    "aws": ({}, AWS),
    "im": ({"TRAINMASTER_IM": IM, "TRAINMASTER_IM_CREDENTIALS": im()}, {}),
    "ray": ({"TRAINMASTER_RAY": RAY, "TRAINMASTER_RAY_KEY": KEY}, {}),
}


@pytest.mark.parametrize("provider", GOOD)
def test_a_provider_is_made_of_what_was_sent(provider, tmp_path, monkeypatch):
    """With a server that has a login of its own everywhere, of which nothing is used."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASERVER")
    server = {
        "OS_AUTH_URL": "https://server",
        "KUBECONFIG": "/server",
        "AWS_PROFILE": "server",
        "HOME": "/root",
    }
    place = ProviderPlace(tmp_path, "home", {**server, "TRAINMASTER_SLURM": "/server.yaml"})
    files, variables = GOOD[provider]
    found = team_place(provider, place, "vision", files, variables)
    assert (found.team, found.root, found.home_root) == ("vision", tmp_path / "logins" / "vision", tmp_path)
    assert set(found.environ) <= {*files, *variables, "PATH", "LANG", TEAM_VARIABLE}
    for name, text in files.items():
        file = Path(found.environ[name])
        assert file.stat().st_mode & 0o777 == 0o600
        assert "of the team" not in text or "of the team" in file.read_text()
        assert "memfd" in str(file.readlink())
    made = PROVIDERS.make(provider, found)
    made.check_settings()
    made.close()
    assert not list(tmp_path.glob("**/*.yaml"))
    assert "of the team" not in repr(found)


BAD = {
    "Slurm's commands on the server": ("slurm", {"TRAINMASTER_SLURM": SITE}, "names no `login`"),
    "a key of the server": (
        "slurm", {"TRAINMASTER_SLURM": f"login: a@h\nkey: /srv/id_rsa\n{SITE}"}, "is not the key that",
    ),
    "the agent of the server": ("slurm", {"TRAINMASTER_SLURM": f"login: a@h\n{SITE}"}, "is not the key that"),
    "a variable of the server": (
        "slurm", {"TRAINMASTER_SLURM": SLURM.replace("_KEY}", "_DATABASE}")}, "is not the key that was sent",
    ),
    "the address of the cloud's secrets": (
        "slurm", {"TRAINMASTER_SLURM": SLURM.replace("hpc.example.org", "169.254.169.254")}, "its cloud's",
    ),
    "what listens on the server only": (
        "kubernetes", {"KUBECONFIG": kubeconfig(cluster={"server": "http://localhost:1/x"})}, "is the server",
    ),
    "a file that is not known": ("slurm", {"LD_PRELOAD": "x"}, "LD_PRELOAD in it"),
    "no login to Kubernetes": ("kubernetes", {"KUBECONFIG": None}, "no KUBECONFIG"),
    "a program": ("kubernetes", {"KUBECONFIG": kubeconfig({"exec": {"command": "id"}})}, "has exec"),
    "a file with a token": ("kubernetes", {"KUBECONFIG": kubeconfig({"tokenFile": "/t"})}, "has tokenFile"),
    "a file with a certificate": (
        "kubernetes", {"KUBECONFIG": kubeconfig(cluster={"certificate-authority": "/c"})}, "-authority",
    ),
    "a proxy": ("kubernetes", {"KUBECONFIG": kubeconfig(cluster={"proxy-url": "http://p"})}, "proxy-url"),
    "certificates of the server": (
        "openstack", {"OS_CLIENT_CONFIG_FILE": clouds(cacert="/etc/ca")}, "certificates that were not sent",
    ),
    "a way that is a command": (
        "ray", {"TRAINMASTER_RAY": f"address: ray://r:1\nvia: sh -c id\n{SITE}"}, "names no `login`",
    ),
    "a Ray that it asks itself": ("ray", {"TRAINMASTER_RAY": f"address: ray://r:1\n{SITE}"}, "no `login`"),
    "Ray on the server": ("ray", {"TRAINMASTER_RAY": f"address: auto\n{SITE}"}, "names no `login`"),
    "a value from a file": ("im", {"TRAINMASTER_IM_CREDENTIALS": im(proxy="file(/etc/s)")}, "another file"),
    "a price list": ("im", {"TRAINMASTER_IM": IM + "prices: /etc/shadow\n"}, "another file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_would_use_the_server_itself_is_refused(name, tmp_path):
    provider, changes, words = BAD[name]
    files, variables = GOOD[provider]
    files = {key: text for key, text in {**files, **changes}.items() if text is not None}
    if name == "the agent of the server":
        files.pop("TRAINMASTER_SLURM_KEY")
    with pytest.raises(TrainmasterError, match=words):
        team_place(provider, ProviderPlace(tmp_path, "home"), "vision", files, variables)


@pytest.mark.parametrize(
    ("provider", "changes"),
    [
        ("openstack", {"OS_CLIENT_SECURE_FILE": "/etc/openstack/secure.yaml"}),
        ("openstack", {"OS_AUTH_URL": "https://elsewhere"}),
        ("aws", {"AWS_PROFILE": "server"}),
        ("aws", {"AWS_SECRET_ACCESS_KEY": ""}),
        ("aws", {"AWS_ENDPOINT_URL": "http://169.254.169.254"}),
        ("aws", {"AWS_ENDPOINT_URL": "http://0.0.0.0:1"}),
        ("aws", {"AWS_ENDPOINT_URL": "http://any.example.org"}),
        ("aws", {"AWS_ENDPOINT_URL": "http://2130706433"}),
        ("aws", {"AWS_REGION": "x" * (300 << 10)}),
        ("slurm", {"SLURM_CONF": "/etc/slurm.conf"}),
    ],
)
def test_so_are_variables(provider, changes, tmp_path):
    files, variables = GOOD[provider]
    with pytest.raises(UsageError):
        team_place(provider, ProviderPlace(tmp_path, "home"), "vision", files, variables | changes)


def test_what_is_collected_is_what_a_server_takes(tmp_path):
    """A manager's machine: what leads to other files is inlined."""
    home, config = tmp_path / "home", tmp_path / "config"
    home.mkdir()
    config.mkdir()
    (home / "id").write_text(KEY)
    (home / "slurm.yaml").write_text(f"login: ada@hpc.example.org\nkey: id\n{SITE}")
    (home / "ray.yaml").write_text(f"login: ada@hpc.example.org\nkey: id\naddress: auto\n{SITE}")
    (home / "kubernetes.yaml").write_text(f"service_account: runs\n{KUBERNETES}")
    (config / "token").write_text("certificate")
    told = kubeconfig(cluster={"certificate-authority": "token"})
    (config / "kube").write_text(told)
    (home / "openstack.yaml").write_text(OPENSTACK)
    (config / "clouds.yaml").write_text(clouds(cacert=str(config / "token")))
    (home / "im.yaml").write_text(IM.replace(MARK, "im.auth") + "prices: own.csv\n")
    (home / "own.csv").write_text("provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour\n")
    (home / "im.auth").write_text(
        f"type = InfrastructureManager; username = me; password = of the team\n"
        f"id = ec2; type = EC2; username = a; password = file({config / 'token'})\n"
    )
    (home / "im.auth").chmod(0o600)
    environ = {
        "KUBECONFIG": str(config / "kube"),
        "OS_CLIENT_CONFIG_FILE": str(config / "clouds.yaml"),
        "HOME": str(config),
    }
    for provider in ("slurm", "ray", "kubernetes", "openstack", "im"):
        sent = collected(provider, ProviderPlace(home, "", environ))
        assert sent.words, provider
        assert not any("of the team" in words for words in sent.words)
        found = team_place(
            provider, ProviderPlace(tmp_path / "server", ""), "vision", sent.files, sent.environ
        )
        assert found.team == "vision"
        if provider == "im":
            assert Path(found.environ["TRAINMASTER_IM_PRICES"]).read_text() == (home / "own.csv").read_text()
    assert not (tmp_path / "server" / "slurm.yaml").exists()


@pytest.mark.parametrize("provider", ["hosts", "lab"])
def test_a_provider_without_one_says_so(provider):
    with pytest.raises(UsageError, match=f"{provider}: a team cannot have") as caught:
        login_kind(provider)
    assert "slurm" in caught.value.hint


def test_with_keys_of_its_own_aws_is_asked_where_and_as_no_setting_of_the_server_says(tmp_path, monkeypatch):
    pytest.importorskip("botocore", reason="boto3 is not installed")
    for name, value in (("AWS_PROFILE", "of-the-server"), ("AWS_ENDPOINT_URL", "https://store.server")):
        monkeypatch.setenv(name, value)
    place = team_place("aws", ProviderPlace(tmp_path, "home"), "vision", {}, AWS)
    made = PROVIDERS.make("aws", place)
    client = made._client._client("ec2", "eu-west-1")
    assert client.meta.endpoint_url == "https://ec2.eu-west-1.amazonaws.com"
    assert client._request_signer._credentials.access_key == "AKIATEAM"
    made.close()
