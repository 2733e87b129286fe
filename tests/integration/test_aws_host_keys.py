"""A rented machine is known at the first login: nobody can stand in between, not even then."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from aws_stand_in import AwsBench

from trainmaster.lab.user_data import plan_boot
from trainmaster.providers.base import Node
from trainmaster.providers.hosts_over_ssh import target_of
from trainmaster.transport.base import HostKeyError, Target
from trainmaster.transport.host_keys import HostKeys
from trainmaster.transport.ssh import Ssh


def user_data(bench: AwsBench) -> list[str]:
    calls = [call for call in bench.stand_in.calls if call.action == "RunInstances"]
    return [str(call.as_dict()["parameters"]["UserData"]) for call in calls if call.changes]


def key_in(text: str) -> tuple[str, str]:
    """What cloud-init makes of it: the private key of the SSH server, and the public one."""
    files = plan_boot(text.encode(), [], "admin").host_keys
    return files["ssh_host_ed25519_key"], files["ssh_host_ed25519_key.pub"]


@contextmanager
def ssh_server(host_key: str, user: Path) -> Iterator[int]:
    """Lets the user's key in; the port on which it listens."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def do(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.import_private_key(host_key)],
            authorized_client_keys=asyncssh.import_authorized_keys(user.with_suffix(".pub").read_text()),
            process_factory=lambda process: process.exit(0),
        )

    listener = do(listen())
    try:
        yield listener.get_port()
    finally:

        async def end() -> None:
            listener.close()
            await listener.wait_closed()

        do(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def at(node: Node, port: int) -> Target:
    """The machine, as if it were here."""
    return replace(target_of(node), address="127.0.0.1", port=port)


def test_the_machine_itself_is_let_pass_and_who_stands_before_it_is_refused(
    bench: AwsBench, tmp_path: Path
) -> None:
    (node,) = bench.provider().acquire("one", bench.request())
    own, public = key_in(user_data(bench)[0])
    assert node.host_key == public
    assert node.key is not None
    someone = asyncssh.generate_private_key("ssh-ed25519").export_private_key("openssh").decode()
    with Ssh(HostKeys(tmp_path / "known_hosts")) as ssh:
        with ssh_server(someone, node.key) as port, pytest.raises(HostKeyError, match="user data"):
            ssh.connect(at(node, port))
        with ssh_server(own, node.key) as port, ssh.connect(at(node, port)) as connection:
            assert connection.run("true").code == 0


def test_a_call_that_is_repeated_has_the_same_key_and_others_have_others(bench: AwsBench) -> None:
    bench.stand_in.lose_answer("RunInstances")
    nodes = bench.provider().acquire("one", bench.request(count=2, token="t1"))
    again = bench.provider().acquire("one", bench.request(count=2, token="t1"))
    (other,) = bench.provider().acquire("one", bench.request(token="t2"))
    keys = [key_in(text) for text in user_data(bench)]
    assert keys[0] == keys[1], "the lost answer, and what was sent again"
    assert {node.host_key for node in [*nodes, *again]} == {keys[0][1]}
    assert other.host_key == keys[-1][1] != keys[0][1]
    assert {node.host_key for node in bench.provider().nodes("one")} == {keys[0][1], keys[-1][1]}


def test_the_private_key_is_nowhere_else(bench: AwsBench) -> None:
    provider = bench.provider()
    request = bench.request()
    shown = json.dumps(provider.dry_run("one", [request]))
    provider.acquire("one", request)
    private = key_in(user_data(bench)[0])[0].splitlines()[-2]  # the others begin as every key does
    assert private not in shown
    assert private not in json.dumps(bench.instances(), default=str)
    files = [path for path in bench.root.rglob("*") if path.is_file() and private in path.read_text()]
    assert [path.stat().st_mode & 0o77 for path in files] == [0]
    provider.release("one")
    assert not files[0].exists()


def test_machines_of_earlier_versions_are_pinned_at_first_use(bench: AwsBench) -> None:
    (node,) = bench.provider().acquire("one", bench.request())
    client = bench.ec2()
    client.delete_tags(Resources=[node.id], Tags=[{"Key": "trainmaster:host-key"}])
    client.close()
    assert [node.host_key for node in bench.provider().nodes("one")] == [""]
