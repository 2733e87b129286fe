from trainmaster.executors._gangs import GangProcesses, MemberProcess


def gang(*gpus: int) -> GangProcesses:
    members = []
    for index, count in enumerate(gpus):
        member = MemberProcess(f"worker-{index}", True)
        member.gpus = count
        members.append(member)
    return GangProcesses("run/train/0/1", "run", "/nowhere", 1.0, members)


def test_each_member_gets_its_own_gpus():
    several = gang(1, 2)
    several.allot_gpus(("4", "5", "7"))
    assert [member.gpu_ids for member in several.members] == [("4",), ("5", "7")]


def test_members_that_choose_by_local_rank_see_all_gpus_of_the_gang():
    several = gang(1, 1)
    several.share_gpus = True
    several.allot_gpus(("4", "5"))
    assert [member.gpu_ids for member in several.members] == [("4", "5"), ("4", "5")]
