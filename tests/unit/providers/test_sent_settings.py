"""What a machine is sent so that it can use a place as its home does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.ray.settings import RAY
from trainmaster.providers.sent_settings import SentSettings, driver_login, path_mark, sent_settings
from trainmaster.providers.slurm.settings import SLURM
from trainmaster.providers.slurm.shell import SlurmShell
from trainmaster.service.on_cluster.machine_driver import in_memory
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.private_files import short_digest
from trainmaster.transport.base import jump_target
from trainmaster.transport.host_keys import FILE_NAME, HostKeys

MACHINES = "machines:\n  node: {cpus: 2, memory: 900MB}\n"


def sent(tmp_path: Path, provider: str, settings: str, **environ: str) -> SentSettings | None:
    """By a home with these settings."""
    (tmp_path / f"{provider}.yaml").write_text(settings)
    return sent_settings(provider, ProviderPlace(tmp_path, "h", environ))


def test_a_slurm_on_this_machine_needs_no_login(tmp_path: Path) -> None:
    """Nothing that opens anything is sent; where its configuration lies is."""
    found = sent(tmp_path, "slurm", MACHINES, SLURM_CONF="/etc/s.conf", SECRET="x")
    assert found is not None
    assert (found.files, found.is_wide) == ({"TRAINMASTER_SLURM": MACHINES}, False)
    assert found.environ["SLURM_CONF"] == "/etc/s.conf"
    assert "SECRET" not in found.environ


def test_the_key_of_a_login_goes_with_it(tmp_path: Path) -> None:
    """And is found there, wherever it is put."""
    (tmp_path / "id").write_text("PRIVATE")
    found = sent(tmp_path, "slurm", f"login: ada@hpc\nkey: id\n{MACHINES}")
    assert found is not None
    assert found.is_wide
    assert found.files["TRAINMASTER_SLURM_KEY"] == "PRIVATE"
    assert "ada@hpc" in found.words[0]
    text = found.files["TRAINMASTER_SLURM"].replace(path_mark("TRAINMASTER_SLURM_KEY"), "/proc/self/fd/9")
    (there := tmp_path / "there.yaml").write_text(text)
    assert SLURM.read_file(there).key_file == Path("/proc/self/fd/9")


def test_the_login_is_known_there_by_the_key_that_it_had_here(tmp_path: Path) -> None:
    """Whoever answers first there is not trusted; what that machine has pinned before stays."""
    key, other = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"
    (tmp_path / "id").write_text("PRIVATE")
    (tmp_path / FILE_NAME).write_text(f"gate ssh-ed25519 CCCC\n[hpc]:2200 {key}\n")
    found = sent(tmp_path, "slurm", f"login: ada@hpc:2200\nkey: id\n{MACHINES}")
    assert found is not None
    login = jump_target("ada@hpc:2200", None)
    assert login is not None
    settings = SLURM.read(tmp_path, {})
    for name, pinned, known in (("new", "", key), ("old", f"[hpc]:2200 {other}\n", other)):
        (there := tmp_path / name).mkdir()
        if pinned:
            (there / FILE_NAME).write_text(pinned)
        SlurmShell(settings, ProviderPlace(there, "h", found.environ)).close()
        assert [pin.key for pin in HostKeys(there / FILE_NAME).pins(login)] == [known]


def test_messages_there_name_the_settings_of_the_home(tmp_path: Path) -> None:
    """And not the file that they are in there, which nobody can mend; mistakes as well as what is missing."""
    found = sent(tmp_path, "slurm", MACHINES)
    assert found is not None
    (there := tmp_path / "there.yaml").write_text(MACHINES)
    environ = {**found.environ, "TRAINMASTER_SLURM": str(there)}
    with pytest.raises(UsageError, match="has no machine 'large'") as missing:
        SLURM.read(tmp_path / "elsewhere", environ).machine("large")
    there.write_text("machines: {}\n")
    with pytest.raises(RecipeError) as wrong:
        SLURM.read(tmp_path / "elsewhere", environ)
    for caught in (missing, wrong):
        assert str(tmp_path / "slurm.yaml") in str(caught.value)
        assert str(there) not in str(caught.value)


def test_a_login_by_an_agent_is_refused(tmp_path: Path) -> None:
    """Nothing else would do there."""
    with pytest.raises(UsageError, match="cannot log in to ada@hpc") as caught:
        sent(tmp_path, "slurm", f"login: ada@hpc\n{MACHINES}")
    assert "`key`" in caught.value.hint


def test_a_key_that_is_not_there_is_told(tmp_path: Path) -> None:
    """By its whole path, also where it begins with a tilde."""
    for key in ("none", "~/.trainmaster-none"):
        with pytest.raises(UsageError, match="cannot be read: No such file") as caught:
            sent(tmp_path, "slurm", f"login: ada@hpc\nkey: {key}\n{MACHINES}")
        assert "~" not in str(caught.value)
        assert "slurm.yaml" in caught.value.hint


def test_pods_get_a_login_or_use_their_own(tmp_path: Path) -> None:
    """The latter is no secret."""
    config = {
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://k"}}],
        "users": [{"name": "u", "user": {"token": "hush"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    told = "image: any\n" + MACHINES
    mine = sent(tmp_path, "kubernetes", told, KUBECONFIG=str(tmp_path / "config"))
    theirs = sent(tmp_path, "kubernetes", f"service_account: tm\n{told}", KUBECONFIG=str(tmp_path / "config"))
    assert mine is not None
    assert theirs is not None
    assert (mine.is_wide, theirs.is_wide) == (True, False)
    assert "hush" in mine.files["KUBECONFIG"]
    assert not any("hush" in text for text in theirs.files.values())


def test_a_node_of_a_ray_uses_what_it_says_itself(tmp_path: Path) -> None:
    """It has that Ray's Python and knows its address: neither a login nor a way there goes."""
    told = f"address: ray://head:10001\nlogin: ada@head\nkey: ~/.ssh/id\npython: /home/ray/python\n{MACHINES}"
    found = sent(tmp_path, "ray", told + "variables: {RAY_AUTH_TOKEN: hush}\n")
    assert found is not None
    assert "hush" not in str(found.files)
    assert not found.is_wide
    assert "ray://head:10001" in found.words[0]
    there = {
        "TRAINMASTER_RAY_ADDRESS": "10.0.0.1:6379", "TRAINMASTER_RAY_PYTHON": "/opt/python", "HOME": "/root",
    }  # fmt: skip
    settings = RAY.read(tmp_path / "elsewhere", {**found.environ, **in_memory(found.files, there)})
    assert (settings.address, settings.python) == ("10.0.0.1:6379", "/opt/python")
    assert (settings.login, settings.key, settings.via) == ("", "", "")
    assert settings.file == tmp_path / "ray.yaml"
    assert settings.machine("node").cpus == 2


@pytest.mark.parametrize("provider", ["aws", "im"])
def test_others_state_nothing(tmp_path: Path, provider: str) -> None:
    """AWS has keys of its own ways; the rest cannot."""
    assert sent_settings(provider, ProviderPlace(tmp_path, "h")) is None


def test_an_openstack_s_login_is_made_for_the_machine(tmp_path: Path) -> None:
    """Its settings go there, and the certificates that it is believed by; no password does."""
    (authorities := tmp_path / "ca.pem").write_text("CERTIFICATE")
    auth = {"auth_url": "https://k/v3", "username": "ada", "password": "hush", "project_name": "p"}
    clouds = {"clouds": {"ours": {"auth": auth, "cacert": str(authorities)}}}
    (file := tmp_path / "clouds.yaml").write_text(json.dumps(clouds))
    found = sent(tmp_path, "openstack", "image: any\n", OS_CLIENT_CONFIG_FILE=str(file))
    assert found is not None
    assert sorted(found.files.values()) == ["CERTIFICATE", "image: any\n"]
    assert found.is_wide
    assert "made for it from ours" in found.words[0]
    assert "itself is sent" not in found.words[0]
    file.write_text(json.dumps({"clouds": {"ours": {"auth": auth}}}))
    place = ProviderPlace(tmp_path, "h", {"OS_CLIENT_CONFIG_FILE": str(file)})
    assert driver_login("openstack", place) is not None
    assert driver_login("slurm", place) is None


def test_what_is_known_of_a_run_s_clusters_travels_and_no_more(tmp_path: Path) -> None:
    """Of all ledgers, as each names its files."""
    place = ProviderPlace(tmp_path, "h")
    mine, other = short_digest("r.train"), short_digest("s.train")
    ours = {f"cluster-{mine}.json", f"{mine}-0011.json", "id_ed25519"}
    for name in (*ours, f"cluster-{other}.json", "billing.json"):
        (place.directory("slurm") / name).touch()
    found = {path.name for path in place.files_for("slurm", ["r.train"]) if path.exists()}
    assert found == ours
