import pytest

from trainmaster.launchers import Gang, Member, PlainLauncher, TorchrunLauncher


def workers(*hosts: str, per_node: int = 1) -> Gang:
    return Gang(tuple(Member("worker", i, host, (5000 + i,)) for i, host in enumerate(hosts)), per_node)


def test_ranks_on_hosts_in_any_order():
    gang = workers("a", "b", "a", "b", "c")
    assert gang.hosts == ("a", "b", "c")
    assert [gang.rank(m) for m in gang.members] == [0, 1, 2, 3, 4]
    assert [gang.node_rank(m) for m in gang.members] == [0, 1, 0, 1, 2]
    assert [gang.local_rank(m) for m in gang.members] == [0, 0, 1, 1, 0]
    assert [gang.local_world_size(m) for m in gang.members] == [2, 2, 2, 2, 1]


def test_four_nodes_on_one_machine_are_local_to_each_other():
    gang = workers(*["127.0.0.1"] * 4, per_node=1)
    assert [gang.local_rank(m) for m in gang.members] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("members", "per_node", "message"),
    [
        ((), 1, "at least one member"),
        ((Member("worker", 0, "a"), Member("worker", 0, "b")), 1, "same name: worker-0, worker-0"),
        ((Member("worker", 0, "a"),), 0, "per_node must be at least 1, not 0"),
    ],
)
def test_impossible_gangs(members, per_node, message):
    with pytest.raises(ValueError, match=message):
        Gang(members, per_node)


def test_rank_0_needs_a_port():
    gang = Gang((Member("worker", 0, "a"),))
    with pytest.raises(ValueError, match="worker-0 needs a port"):
        TorchrunLauncher().environment(gang, gang.chief)


def test_threads_are_limited_only_where_several_share_a_machine():
    together, apart = workers("a", "a"), workers("a", "b")
    assert TorchrunLauncher().defaults(together, together.chief)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in TorchrunLauncher().defaults(apart, apart.chief)


def test_plain_parameter_servers_are_not_waited_for():
    worker, server = Member("worker", 0, "a"), Member("ps", 0, "a")
    gang = Gang((worker, server))
    assert PlainLauncher().is_essential(gang, worker)
    assert not PlainLauncher().is_essential(gang, server)
    assert TorchrunLauncher().is_essential(gang, server)
