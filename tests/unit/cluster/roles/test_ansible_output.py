"""What is read from Ansible's output, as it says it at verbosity 2."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cluster.roles.ansible_output import read_output

HEAD = """\
ansible-playbook [core 2.19.14]
PLAYBOOK: playbook.json ********
1 plays in playbook.json

PLAY [roles of all] ***********

TASK [/c/roles/base : fine] ***
task path: /c/roles/base/tasks/main.yml:1
changed: [a] => {"changed": true, "cmd": ["true"], "rc": 0}
ok: [b] => {
    "msg": "hi"
}
"""
FAILS = """\

TASK [/c/roles/base : needs a driver] ***
task path: /c/roles/base/tasks/main.yml:3
changed: [a] => {"changed": true, "rc": 0}
[ERROR]: Task failed: Module failed: non-zero return code
Origin: /c/roles/base/tasks/main.yml:3:3

3 - name: needs a driver
    ^ column 3

fatal: [b]: FAILED! => {"msg": "non-zero return code", "rc": 1, "stderr": "x\\nbad", "stdout": ""}
"""
RECAP = """\

PLAY RECAP ****************
a                          : ok=3    changed=2    unreachable=0    failed=0    skipped=0
b                          : ok=1    changed=1    unreachable=0    failed={failed}    skipped=0    rescued=0
"""


def test_a_failure_names_host_task_file_and_line() -> None:
    said = read_output(HEAD + FAILS + RECAP.format(failed=1))
    (failure,) = said.failed
    assert (failure.host, failure.task) == ("b", "/c/roles/base : needs a driver")
    assert failure.place == "/c/roles/base/tasks/main.yml:3"
    assert failure.words == "non-zero return code: bad"
    assert not failure.is_unreachable


def test_what_was_rescued_is_no_failure() -> None:
    assert not read_output(HEAD + FAILS + RECAP.format(failed=0)).failed


def test_hosts_that_have_not_answered_to_the_last_task_hang() -> None:
    said = read_output(HEAD + FAILS.partition("[ERROR]")[0])
    assert said.silent(["a", "b"]) == ["b"]
    assert said.place == "/c/roles/base/tasks/main.yml:3"
    assert read_output("").silent(["a", "b"]) == ["a", "b"]


def test_items_of_a_loop_and_unreachable_hosts() -> None:
    text = """\
TASK [base : loop] ***
task path: /c/m.yml:1
failed: [a] (item=y) => {"item": "y", "msg": "non-zero return code", "rc": 1, "stdout": "no"}
fatal: [b]: UNREACHABLE! => {"changed": false, "msg": "Connection refused", "unreachable": true}
fatal: [c -> localhost]: FAILED! => {
    "assertion": "1 == 2",
    "msg": "Assertion failed"
}
"""
    failures = {failure.host: failure for failure in read_output(text).failed}
    assert failures["a"].words == "non-zero return code: no"
    assert failures["b"].is_unreachable
    assert failures["c"].words == "Assertion failed"


def test_a_missing_collection_is_named_with_its_place() -> None:
    new = read_output(
        "[WARNING]: Error loading plugin 'community.general.ufw': x\n"
        "[ERROR]: couldn't resolve module/action 'community.general.ufw'. This often is\n"
        "Origin: /c/roles/fw/tasks/main.yml:1:3\n"
    )
    assert new.collection == "community.general"
    assert new.error_place == "/c/roles/fw/tasks/main.yml:1"
    old = read_output(
        "ERROR! couldn't resolve module/action 'a.b.c'. This often indicates a misspelling\n\n"
        "The error appears to be in '/c/x.yml': line 4, column 3, but may\n"
    )
    assert (old.collection, old.error_place) == ("a.b", "/c/x.yml:4")


@given(st.text(), st.integers(0, len(HEAD + FAILS)))
def test_whatever_is_said_can_be_read(text: str, cut: int) -> None:
    read_output(text)
    read_output((HEAD + FAILS)[:cut] + text)
