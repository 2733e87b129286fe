"""Gangs: all members or none, found through MASTER_ADDR, ended and restarted together."""

from __future__ import annotations

import pytest

#: An all-reduce over MASTER_ADDR:MASTER_PORT, with nothing but the standard library.
ALLREDUCE = """
    import os, socket, sys, time

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

    def allreduce(value):
        if rank == 0:
            with socket.create_server(address) as server:
                peers = [server.accept()[0] for _ in range(world - 1)]
                total = value + sum(int(peer.recv(64)) for peer in peers)
                for peer in peers:
                    peer.sendall(str(total).encode())
                    peer.close()
            return total
        while True:
            try:
                with socket.create_connection(address) as connection:
                    connection.sendall(str(value).encode())
                    return int(connection.recv(64))
            except ConnectionRefusedError:
                time.sleep(0.02)
"""


def pair(workers=2):
    return {"strategy": "allreduce", "workers": workers}


def test_members_meet_and_reduce(tm):
    tm.write(
        "train.py",
        ALLREDUCE
        + """
    total = allreduce(rank + 1)
    print("rank", rank, "of", world, "total", total)
    names = "TRAINMASTER_INDEX TRAINMASTER_WORLD_SIZE TRAINMASTER_ROLE LOCAL_RANK".split()
    print(*(os.environ[name] for name in names))
    """,
    )
    run = tm.run(tm.task("python train.py", distributed=pair(3)))["run"]
    for rank in range(3):
        log = tm.logs(run, "--member", f"worker-{rank}").splitlines()
        assert log[0] == f"rank {rank} of 3 total 6"
        assert log[1].split()[:3] == [str(rank), "3", "worker"]
    tm.until_quiet()


def test_gangs_side_by_side_have_ports_of_their_own(tm):
    tm.write(
        "train.py",
        ALLREDUCE
        + """
    print("total", allreduce(int(os.environ["TRAINMASTER_PARAM_X"])), "port", address[1])
    time.sleep(0.3)
    """,
    )
    recipe = tm.task("python train.py", distributed=pair(), parameters={"x": [1, 10, 100, 1000]})
    run = tm.run(recipe)["run"]
    for task, value in enumerate((1, 10, 100, 1000)):
        log = tm.logs(run, "--task", task)
        assert log.count(f"total {2 * value} ") == 2, log


def test_when_one_fails_the_others_are_stopped_and_all_start_again(tm):
    tm.write(
        "train.sh",
        """
        echo "$TRAINMASTER_ATTEMPT $RANK $$" >> $NOTES/starts
        trap 'echo $RANK >> $NOTES/stopped; exit 0' TERM
        if [ $TRAINMASTER_ATTEMPT = 2 ]; then exit 0; fi
        until [ $(wc -l < $NOTES/starts) -ge 2 ]; do sleep 0.02; done
        if [ $RANK = 1 ]; then exit 7; fi
        sleep 600 & wait
    """,
    )
    recipe = tm.task("source train.sh", distributed=pair(), retries=1)
    result = tm.call("run", recipe, "--json")
    assert tm.summary(result)["reason"] == "SUCCEEDED"
    assert sorted(line.rsplit(" ", 1)[0] for line in tm.marks("starts")) == ["1 0", "1 1", "2 0", "2 1"]
    assert tm.marks("stopped") == ["0"]
    assert "worker-1" in result.err
    assert "7" in result.err
    tm.until_quiet()


def test_a_gang_starts_again_from_its_newest_checkpoint(tm):
    tm.write(
        "train.py",
        """
        import os, pathlib, sys, time

        rank, folder = os.environ["RANK"], pathlib.Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"])
        notes = pathlib.Path(os.environ["NOTES"])
        own = folder / f"step-{rank}"
        start = int(own.read_text()) if own.exists() else 0
        with (notes / "starts").open("a") as file:
            file.write(f"{os.environ['TRAINMASTER_ATTEMPT']} {rank} {start}\\n")
        for step in range(start + 1, 31):
            time.sleep(0.02)
            (folder / f".{rank}").write_text(str(step))
            (folder / f".{rank}").rename(own)
            if step == 20 and start == 0 and rank == "1":
                while int((folder / "step-0").read_text()) < 15:
                    time.sleep(0.02)
                os._exit(5)
            if step == 25 and start == 0:
                time.sleep(600)
    """,
    )
    tm.run(tm.task("python train.py", distributed=pair(), retries=1, grace="5s"))
    starts = [line.split() for line in tm.marks("starts")]
    assert sorted(s[:2] for s in starts) == [["1", "0"], ["1", "1"], ["2", "0"], ["2", "1"]]
    second = {rank: int(step) for attempt, rank, step in starts if attempt == "2"}
    assert second["1"] == 20
    assert 15 <= second["0"] <= 25


def test_children_in_sessions_of_their_own_end_with_their_task(tm):
    tm.write(
        "fork.py",
        """
        import os, sys, time

        for _ in range(2):  # the usual way to get away
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.chdir("/")
                    devnull = os.open("/dev/null", os.O_RDWR)
                    for number in range(3):
                        os.dup2(devnull, number)
                    time.sleep(600)
                os._exit(0)
        print("forked")
    """,
    )
    for end, code in (("exit 0", 0), ("exit 3", 1), ("kill -9 $$", 1)):
        tm.run(tm.task(f"python fork.py; setsid sleep 600 & {end}"), code=code)
        tm.until_quiet()


def test_a_member_that_ignores_sigterm_is_killed_after_grace(tm):
    recipe = tm.task(
        "if [ $RANK = 1 ]; then sleep 0.3; exit 1; fi; trap '' TERM; while true; do sleep 0.1 || true; done",
        distributed=pair(),
        grace="1s",
    )
    summary = tm.run(recipe, code=1)
    assert summary["reason"] == "USER_ERROR"
    assert summary["seconds"] >= 1.2
    assert "worker-1" in summary["experiments"]["main"]["message"]
    tm.until_quiet()


def test_the_first_failure_tells_the_reason(tm):
    recipe = tm.task(
        "if [ $RANK = 0 ]; then sleep 0.5; exit 11; fi; trap 'exit 12' TERM; sleep 600 & wait",
        distributed=pair(),
    )
    message = tm.run(recipe, code=1)["experiments"]["main"]["message"]
    assert "worker-0" in message
    assert "11" in message


def test_a_gang_larger_than_the_machine_runs_and_takes_turns(tm):
    recipe = tm.task(
        "echo $TRAINMASTER_TASK.$RANK >> $NOTES/who; sleep 0.1", distributed=pair(5), parameters={"x": [1, 2]}
    )
    tm.run(recipe)
    assert sorted(tm.marks("who")) == sorted(f"{task}.{rank}" for task in range(2) for rank in range(5))


def test_plain_members_get_no_rendezvous_of_a_framework(tm):
    recipe = tm.task("echo $TRAINMASTER_ROLE-$TRAINMASTER_INDEX", framework="plain", distributed=pair())
    run = tm.run(recipe)["run"]
    assert sorted(line.rpartition(" ")[2] for line in tm.logs(run).splitlines()) == ["worker-0", "worker-1"]


@pytest.mark.torch
def test_ddp_with_pytorch(tm):
    """Also where the caller is itself inside a torchrun: what that has set does not win."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    tm.env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "7", "WORLD_SIZE": "9"}
    tm.write(
        "train.py",
        """
        import os, sys, torch, torch.distributed as dist

        dist.init_process_group("gloo")
        value = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(value)
        print("sum", value.item())
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # a thread of gloo may abort a process that shuts Python down in order
    """,
    )
    run = tm.run(tm.task("python train.py", distributed=pair()))["run"]
    assert tm.logs(run).count("sum 3.0") == 2
