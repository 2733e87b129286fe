"""The plan of a first boot, run by a shell that only writes down what it would do."""

from __future__ import annotations

import base64
import gzip
import subprocess
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

from trainmaster.lab.user_data import plan_boot

KEY = "ssh-ed25519 AAAA me@here"


def run(script: str, root: Path, what: str) -> str:
    """Run it with its places below a directory; users are only echoed."""
    for name in ("/var/lib/cloud/instance", "/var/log", "/etc/sudoers.d"):
        script = script.replace(name, f"{root}{name}")
    (root / "etc/sudoers.d").mkdir(parents=True, exist_ok=True)
    fakes = 'useradd() { echo "useradd $*"; }; id() { return 1; }; chown() { :; }\n'
    path = root / "firstboot.sh"
    path.write_text(fakes + script.replace("grant() {", 'grant() { echo "grant $1: $2"; return 0; '))
    done = subprocess.run(["bash", path, what], capture_output=True, text=True, check=True)
    log = root / "var/log/cloud-init-output.log"
    return done.stdout + (log.read_text() if what == "data" else "")


def test_the_key_pair_lets_the_images_user_in_and_tells_root(tmp_path: Path) -> None:
    said = run(plan_boot(b"", [KEY], "admin").script(), tmp_path, "keys")
    lines = said.splitlines()
    assert lines[0] == f"grant admin: {KEY}"
    assert lines[1].startswith("grant root: no-port-forwarding")
    assert 'Please login as the user \\"admin\\"' in lines[1]
    assert run(plan_boot(b"", [KEY], "admin").script(), tmp_path, "keys") == ""  # once


def test_a_script_runs_once_with_its_own_interpreter(tmp_path: Path) -> None:
    script = plan_boot(b"#!/bin/sh\necho \"it's $0\" 'a  b'\n", [], "admin").script()
    assert "part-000 a  b" in run(script, tmp_path, "data")
    before = (tmp_path / "var/log/cloud-init-output.log").read_text()
    assert run(script, tmp_path, "data") == before


def test_cloud_config(tmp_path: Path) -> None:
    target = tmp_path / "made/x y"
    config = f"""#cloud-config
hostname: node-1
users:
- default
- name: ada
  groups: [sudo, video]
  ssh_authorized_keys: ['{KEY}']
  sudo: ALL=(ALL) NOPASSWD:ALL
- 'no such name!'
ssh_keys: {{ed25519_private: PRIVATE, ed25519_public: PUBLIC}}
write_files:
- {{path: '{target}', content: "a 'b' $c", permissions: '0600'}}
- {{path: '{target}', content: '{base64.b64encode(b"+").decode()}', encoding: b64,
   append: true, permissions: '0600'}}
- {{path: relative, content: x}}
runcmd:
- [echo, "one  argument", $HOME]
- echo two; exit 3
packages: [vim]
"""
    plan = plan_boot(config.encode(), [KEY], "admin")
    assert plan.hostname == "node-1"
    assert plan.host_keys == {"ssh_host_ed25519_key": "PRIVATE", "ssh_host_ed25519_key.pub": "PUBLIC"}
    users = run(plan.script(), tmp_path, "keys")
    assert "useradd -m -s /bin/bash -p * -G sudo,video ada" in users
    assert f"grant ada: {KEY}" in users
    assert (tmp_path / "etc/sudoers.d/90-lab-ada").read_text() == "ada ALL=(ALL) NOPASSWD:ALL\n"
    log = run(plan.script(), tmp_path, "data")
    assert target.read_text() == "a 'b' $c+"
    assert target.stat().st_mode & 0o777 == 0o600
    assert "one  argument $HOME\n" in log
    assert "two\nexit code 3" in log
    assert "cloud-config keys that the lab does not know: packages" in log
    assert "a user without a proper name" in log
    assert "write_files without an absolute path" in log


def test_parts_and_compression(tmp_path: Path) -> None:
    message = MIMEMultipart()
    message.attach(MIMEText("#!/bin/sh\necho first\n", "x-shellscript"))
    message.attach(MIMEText("#cloud-config\nruncmd: [echo second]\n", "cloud-config"))
    log = run(plan_boot(gzip.compress(message.as_bytes()), [], "admin").script(), tmp_path, "data")
    assert log.split() == ["first", "second"]


def test_what_cannot_be_done_is_noted() -> None:
    for data, said in (
        (b"#cloud-config\n{", "cloud-config is no YAML"),
        (b"#cloud-config\n- x\n", "cloud-config is no mapping"),
        (b"hello", "user data that begins with 'hello'"),
        (b"\xff\xfe", "neither text nor gzip"),
        (b"\x1f\x8b broken", "neither text nor gzip"),
    ):
        assert any(said in note for note in plan_boot(data, [], "admin").notes), data
