"""Connections to real SSH servers: what works, and what is said when it does not."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from trainmaster.providers.hosts_over_ssh import target_of
from trainmaster.testing.private_sshd import SshHost, make_key
from trainmaster.transport.base import HostKeyError, LoginRefusedError, RemoteTimeoutError, UnreachableError
from trainmaster.transport.host_keys import HostKeys
from trainmaster.transport.ssh import Ssh

NewHost = Callable[..., SshHost]


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty if it has ended meanwhile."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def test_a_command_that_hangs_is_killed_with_what_it_started(ssh: Ssh, new_host: NewHost) -> None:
    host = new_host()
    with ssh.connect(host.target) as connection:
        with pytest.raises(RemoteTimeoutError, match=r"not done after 0.5 s: sleep 61"):
            connection.run("sleep 61; true", timeout_s=0.5)
        with pytest.raises(RemoteTimeoutError):  # also one that has not even greeted
            connection.run("sleep 61; true", timeout_s=0.001)
        assert connection.check("echo well").strip() == "well", "the connection outlives it"
        deadline = time.monotonic() + 60
        while any("61" in words(process) for process in host.processes()):
            assert time.monotonic() < deadline, "sleep still runs"
            time.sleep(0.05)


def test_many_threads_share_connections(ssh: Ssh, new_host: NewHost) -> None:
    with ssh.connect(new_host().target) as connection:
        answers: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(connection.check(f"echo {n}").strip()))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(answers) == sorted(map(str, range(8)))


def test_a_jump_host_is_gone_through(ssh: Ssh, new_host: NewHost) -> None:
    gateway, inner = new_host("gateway"), new_host("inner")
    entry = inner.entry.model_copy(update={"jump": f"{inner.entry.user}@127.0.0.1:{gateway.port}"})
    with ssh.connect(target_of(entry)) as connection:
        assert connection.check("echo $HOME").strip() == str(inner.home)
        assert gateway.logins()
    pinned = ssh.host_keys.file.read_text()
    assert f"[127.0.0.1]:{gateway.port}" in pinned
    assert f"[127.0.0.1]:{inner.port}" in pinned


def test_a_key_is_pinned_at_first_use_and_a_changed_one_is_refused(ssh: Ssh, new_host: NewHost) -> None:
    host = new_host()
    with ssh.connect(host.target) as connection:
        assert connection.host_key in ssh.host_keys.file.read_text()
    # OpenSSH understands the file.
    command = [
        "ssh",
        "-F",
        "none",
        "-o",
        f"UserKnownHostsFile={ssh.host_keys.file}",
        "-o",
        "StrictHostKeyChecking=yes",
    ]
    command += ["-o", "BatchMode=yes", "-i", str(host.key), "-p", str(host.port), "127.0.0.1", "echo", "in"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "in\n"
    host.stop()
    shown = host.new_host_key()
    host.start()
    with pytest.raises(HostKeyError) as caught:
        ssh.connect(host.target)
    message = str(caught.value)
    assert f"{ssh.host_keys.file}, line 1," in message
    assert f"remove line 1 of {ssh.host_keys.file}" in message
    assert message.count("SHA256:") == 2
    ssh.host_keys.forget(host.target)
    with ssh.connect(host.target) as connection:
        assert connection.host_key == shown


def test_the_inventorys_key_counts_from_the_first_time(ssh: Ssh, new_host: NewHost, tmp_path: Path) -> None:
    host = new_host()
    right = replace(host.target, host_key=host.new_host_key())
    wrong = replace(host.target, host_key=make_key(tmp_path / "other"))
    with pytest.raises(HostKeyError, match="the inventory has SHA256:"):
        ssh.connect(wrong)
    host.stop()
    host.start()
    with ssh.connect(right):
        assert not ssh.host_keys.file.exists(), "there was nothing to pin"


def test_two_first_uses_at_once_pin_one_key(tmp_path: Path, new_host: NewHost) -> None:
    host = new_host()
    keys = HostKeys(tmp_path / "known_hosts")
    shown = " ".join((host.place / "host_key.pub").read_text().split()[:2])
    threads = [threading.Thread(target=keys.accept, args=(host.target, shown)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys.file.read_text().count("\n") == 1


def test_a_key_that_is_not_taken(ssh: Ssh, new_host: NewHost) -> None:
    host = new_host()
    host.authorized_keys.write_text("")
    with pytest.raises(LoginRefusedError) as caught:
        ssh.connect(host.target)
    assert f"does not let {host.entry.user} in with the key {host.key}" in str(caught.value)
    assert f"ssh -i {host.key} -p {host.port}" in caught.value.hint


def test_a_key_file_with_a_passphrase(ssh: Ssh, new_host: NewHost, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    with pytest.raises(LoginRefusedError, match="cannot be used") as caught:
        ssh.connect(replace(new_host().target, key=locked))
    assert "ssh-add" in caught.value.hint


def test_nobody_listens(ssh: Ssh, new_host: NewHost) -> None:
    host = new_host()
    host.stop()
    with pytest.raises(UnreachableError, match=r"h1 \(127\.0\.0\.1"):
        ssh.connect(host.target)


def test_a_frozen_server_is_given_up_in_time(hasty_ssh: Ssh, new_host: NewHost) -> None:
    host = new_host()
    host.freeze()
    with pytest.raises(
        UnreachableError, match="it takes connections, but its SSH server says nothing for 5 s"
    ):
        hasty_ssh.connect(host.target)


def test_a_host_that_freezes_under_a_command_is_noticed(hasty_ssh: Ssh, new_host: NewHost) -> None:
    host = new_host()
    with hasty_ssh.connect(host.target) as connection:
        threading.Timer(0.5, host.freeze).start()
        with pytest.raises(UnreachableError, match="connection was lost"):
            connection.run("sleep 600", timeout_s=600)


def test_a_cut_connection_is_noticed(ssh: Ssh, new_host: NewHost) -> None:
    host = new_host()
    with ssh.connect(host.target) as connection:
        threading.Timer(0.3, host.cut).start()
        with pytest.raises(UnreachableError, match="connection was lost"):
            connection.run("sleep 600", timeout_s=600)
    with ssh.connect(host.target) as connection:
        assert connection.check("echo again").strip() == "again"


def test_closing_ends_what_is_under_way(ssh: Ssh, new_host: NewHost) -> None:
    """As after Ctrl-C: nobody waits for a command that runs for hours."""
    connection = ssh.connect(new_host().target)
    failed: list[Exception] = []

    def work() -> None:
        try:
            connection.run("sleep 600", timeout_s=600)
        except UnreachableError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    ssh.close()
    thread.join(50)
    assert failed
    with pytest.raises(UnreachableError, match="was closed"):
        connection.run("true")


def test_closing_at_any_moment_leaves_nothing_open(tmp_path: Path, new_host: NewHost) -> None:
    """Logins and commands that have just begun are ended, too, and their callers told."""
    host = new_host()
    for moment in range(24):
        ssh = Ssh(HostKeys(tmp_path / "pins.json"))
        answers: list[Exception | str] = []

        def work(ssh: Ssh = ssh, answers: list[Exception | str] = answers) -> None:
            try:
                with ssh.connect(host.target) as connection:
                    for _ in range(50):
                        connection.run("true")
                answers.append("done")
            except UnreachableError as error:
                answers.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(moment * 0.02)
        ssh.close()
        for thread in threads:
            thread.join(30)
        assert len(answers) == 4, "a caller waits for a loop that has ended"
    gc.collect()  # what was left open would warn now, which is an error


def test_a_connection_that_its_user_has_left_without_a_word_ends_with_the_transport(
    ssh: Ssh, new_host: Callable[..., SshHost]
) -> None:
    """It was not known any more, and its socket stayed open until Python tidied up."""
    raw = ssh.connect(new_host().target).raw
    gc.collect()
    assert not raw.is_closed()
    ssh.close()
    assert raw.is_closed()
