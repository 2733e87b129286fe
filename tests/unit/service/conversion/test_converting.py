"""RADL and TOSCA become recipes, and nothing of them is lost without a word."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import invoke
from trainmaster.service.conversion.converting import convert
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import TrainmasterError, UsageError

#: Distributed training with parameter servers and HDFS: four types of nodes, steps, keys in it.
SEED = """\
# Architecture of a distributed training
network publica (outbound = 'yes' and
  outports = '22/tcp, 2222/tcp-2222/tcp, 6006/tcp, 8888/tcp, 9000/tcp, 8033/tcp' and provider_id = 'vpc-1')
network privada (provider_id = 'vpc-1.subnet-1')

system ps (
  instance_type = 't2.small' and
  net_interface.0.connection = 'privada' and
  net_interface.0.dns_name = 'ps-#N#' and
  net_interface.1.connection = 'publica' and
  disk.0.image.url = 'aws://us-east-1/ami-0000' and
  disk.0.os.credentials.username = 'ubuntu' and
  disk.0.applications contains (name = 'ansible.modules.git+https://host/ansible-role-hadoop|hadoop') and
  disk.0.os.name = 'linux'
)
system ps_gpu (instance_type = 'p2.xlarge' and disk.0.os.name = 'linux')
system master_gpu (
  instance_type = 'p2.xlarge' and
  memory.size >= 4096m and
  disk.0.size = 50g and
  net_interface.0.dns_name = 'master-#N#'
)
system worker_gpu (
  instance_type = 'p2.xlarge' and
  net_interface.0.dns_name = 'worker-#N#'
)

configure hadoop_master (
@begin
---
  - roles:
    - { role: 'hadoop', hadoop_version: '2.9.0', type_of_node: 'master' }
@end
)
configure training (
@begin
  - vars:
      ps_nodes_list: "ps-0:2222"
      access_key: 'AKIAVERYSECRET'
      secret_key: 'abcdEFGHijkl'
    roles:
    - role: distributed_tf
@end
)
deploy ps 1
deploy master_gpu 1 ec2
contextualize (
  system ps configure hadoop_master step 1
  system master_gpu configure training step 2
)
"""
TOSCA = """\
tosca_definitions_version: tosca_simple_yaml_1_0
description: two nodes
topology_template:
  inputs:
    cores: {type: integer, default: 4}
  node_templates:
    ps_server:
      type: tosca.nodes.Compute
      capabilities:
        host:
          properties: {num_cpus: 2, mem_size: 4 GB}
    wn:
      type: tosca.nodes.indigo.Compute
      capabilities:
        scalable:
          properties:
            count: 3
        host:
          properties:
            num_cpus: { get_input: cores }
            num_gpus: 1
            mem_size: { get_attribute: [ x, y ] }
        os:
          properties:
            image: ost://site/1
    app:
      type: tosca.nodes.SoftwareComponent
      interfaces:
        Standard:
          configure: install.yaml
    hadoop:
      type: tosca.nodes.SoftwareComponent
      artifacts:
        galaxy_role:
          file: git+https://host/ansible-role-hadoop.git,main
          type: tosca.artifacts.AnsibleGalaxy.role
      interfaces:
        Standard:
          configure:
            implementation: hadoop_install.yml
            inputs: {hadoop_version: 2.9.0, hadoop_password: verysecret, hadoop_cores: {get_input: cores}}
      requirements: [host: wn]
"""


def only(text: str) -> Experiment:
    return Recipe.from_text(text).experiments["train"]


def test_the_architecture_of_a_distributed_training() -> None:
    recipe = convert(SEED, "distributed_training_architecture.radl")
    train = only(recipe)
    assert train.distributed is not None
    assert (train.distributed.parameter_servers, train.distributed.workers) == (1, 1)
    assert train.distributed.chief == "worker", "the master is one of the replicas"
    assert train.hardware.instance == ("p2.xlarge",)
    assert (train.hardware.memory_bytes, train.hardware.disk_bytes) == (4 << 30, 50 << 30)
    assert train.distributed.hardware["ps"].instance == ("t2.small",)
    assert Recipe.from_text(recipe).provider == "im"


def test_roles_are_kept_with_variables_steps_and_names_of_secrets() -> None:
    recipe = convert(SEED, "a.radl")
    roles = only(recipe).roles
    assert roles is not None
    assert roles.groups == {"ps": ("roles/hadoop",), "worker": ("roles/distributed_tf",)}
    assert roles.variables_of("ps", "roles/hadoop") == {"hadoop_version": "2.9.0", "type_of_node": "master"}
    assert roles.variables_of("worker", "roles/distributed_tf") == {
        "ps_nodes_list": "ps-0:2222",
        "access_key": {"secret": "ACCESS_KEY"},
        "secret_key": {"secret": "SECRET_KEY"},
    }
    assert only(recipe).secrets == ("ACCESS_KEY", "SECRET_KEY")
    assert '#   - {name: "hadoop", src: "https://host/ansible-role-hadoop"}' in recipe


def test_images_networks_users_and_the_cloud_are_kept_as_settings_of_the_provider() -> None:
    gpus = "disk.0.image.url = 'aws://us-east-1/ami-9999' and\n  memory.size >= 4096m"
    settings = re.search(
        r"^#   clouds: (.*)$", convert(SEED.replace("memory.size >= 4096m", gpus), "a.radl"), re.MULTILINE
    )
    assert settings is not None
    assert json.loads(settings[1]) == {
        "ec2": {
            "public_network": "vpc-1",
            "private_network": "vpc-1.subnet-1",
            "image": "aws://us-east-1/ami-0000",
            "user": "ubuntu",
            "gpu_image": "aws://us-east-1/ami-9999",
        }
    }


def test_a_role_with_the_same_variables_for_both_is_for_all_and_other_tasks_are_dropped() -> None:
    both = SEED.replace("type_of_node: 'master' }", "type_of_node: 'master' }\n    tasks: [{debug: {}}]")
    both = both.replace("master_gpu configure training step 2", "master_gpu configure hadoop_master step 2")
    roles = only(recipe := convert(both, "a.radl")).roles
    assert roles is not None
    assert roles.groups == {"all": ("roles/hadoop", "roles/distributed_tf")}
    assert "tasks: [{debug: {}}]  -> tasks of Ansible" in recipe


def test_each_line_that_was_dropped_has_a_comment_and_secrets_stay_where_they_are() -> None:
    recipe = convert(SEED, "a.radl")
    told = {int(match[1]) for match in re.finditer(r"^# (\d+): ", recipe, re.MULTILINE)}
    lines = SEED.splitlines()
    kept = ("instance_type", "memory.size", "disk.0.size", "deploy ps", "system", "configure", "@", ")", "#")
    kept += ("disk.0.applications", "disk.0.image.url", "disk.0.os.credentials.username")
    is_role = False  # of a block of roles, which are kept
    for number, line in enumerate(lines, 1):
        is_role = line.startswith("@begin") or (is_role and not line.startswith("@end"))
        if (
            line.strip()
            and not is_role
            and not line.strip().startswith((*kept, "contextualize (", "network"))
        ):
            assert number in told, line
    assert 2 in told
    assert "vpc-1" in recipe
    assert "# 10: net_interface.1.connection = 'publica'  -> " in recipe
    assert "AKIAVERYSECRET" not in recipe
    assert "abcdEFGHijkl" not in recipe


def test_a_tosca_document() -> None:
    recipe = convert(TOSCA, "nodes.yaml")
    train = only(recipe)
    assert train.distributed is not None
    assert (train.distributed.parameter_servers, train.distributed.workers) == (1, 3)
    assert (train.hardware.cpus, train.hardware.gpus, train.hardware.memory_bytes) == (4, 1, None)
    assert train.distributed.hardware["ps"].memory_bytes == 4 << 30
    for said in (
        "mem_size: { get_attribute",
        "image: ost://site/1",
        "configure: install.yaml",
        "description:",
    ):
        assert said in recipe
    assert "num_gpus" not in recipe
    assert train.roles is not None
    assert train.roles.groups == {"worker": ("roles/ansible-role-hadoop",)}
    assert train.roles.variables_of("worker", "roles/ansible-role-hadoop") == {
        "hadoop_version": "2.9.0",
        "hadoop_password": {"secret": "HADOOP_PASSWORD"},
        "hadoop_cores": "4",
    }
    assert "verysecret" not in recipe
    assert '{name: "ansible-role-hadoop", src: "git+https://host/ansible-role-hadoop.git,main"}' in recipe


@pytest.mark.parametrize(
    ("source", "file", "said"),
    [
        ("x", "a.json", "no file of sbatch"),
        ("system a (cpu.count = 1)", "a.radl", "it deploys no machines"),
        ("deploy a 1", "a.radl", "a.radl:1:8: 'a' is no system of this document"),
        ("system a (\n  cpu.count ? 1)", "a.radl", "a.radl:2:13: '?' is a sign that RADL does not have"),
        ("system a (cpu.count", "a.radl", "its end comes"),
        ("frob x", "a.radl", "a word that begins nothing"),
        ("tosca_definitions_version: x", "a.yaml", "topology_template"),
        ("experiments: {}", "a.yaml", "no file of"),
        (TOSCA.replace(".Compute", ".Other"), "a.yaml", "no node of type tosca.nodes.Compute"),
    ],
)
def test_other_documents_are_refused_with_their_place(source: str, file: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        convert(source, file)
    assert said in str(refused.value)


@given(
    st.integers(1, 99),
    st.integers(0, 9),
    st.integers(1, 999),
    st.sampled_from(["m", "g", "MB", "GB"]),
    st.text(alphabet="abcdefghij ():,#{}-.", max_size=30),
)
def test_numbers_survive_and_whatever_stands_in_texts_stays_a_comment(
    workers: int, servers: int, memory: int, unit: str, name: str
) -> None:
    source = (
        f"system wn (memory.size >= {memory}{unit} and net_interface.0.dns_name = '{name}')\n"
        f"system ps (cpu.count >= 2)\ndeploy wn {workers}\n" + (f"deploy ps {servers}\n" if servers else "")
    )
    train = only(convert(source, "x.radl"))
    assert train.hardware.memory_bytes == memory << (20 if unit.lower().startswith("m") else 30)
    asked = train.distributed
    assert (asked.workers if asked else 1) == workers
    assert (asked.parameter_servers if asked else 0) == servers


@given(st.integers(0, len(SEED)), st.text(max_size=20), st.sampled_from(["a.radl", "a.yaml"]))
def test_any_other_text_is_refused_in_words(cut: int, text: str, file: str) -> None:
    for source in (text, SEED[:cut] + text, TOSCA[: cut % len(TOSCA)] + text):
        with contextlib.suppress(TrainmasterError):
            Recipe.from_text(convert(source, file))


def test_the_command_line_makes_a_file_and_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "a.radl").write_text(SEED)
    there = tmp_path / "recipe.yaml"
    first = invoke("convert", tmp_path / "a.radl", there)
    assert first.exit_code == 0, first.stderr
    assert only(there.read_text()).distributed is not None
    with pytest.raises(UsageError, match="File exists"):
        invoke("convert", tmp_path / "a.radl", there)


def test_blocks_without_properties_have_their_comment_too() -> None:
    source = "network a ()\nnetwork b\nconfigure c\nsystem s (cpu.count=1)\ndeploy s 1\n"
    told = convert(source, "x.radl")
    for line, text in ((1, "network a ()"), (2, "network b"), (3, "configure c")):
        assert f"# {line}: {text}  -> " in told


def test_keys_that_share_a_line_with_one_that_is_told_have_their_comments() -> None:
    source = (
        "tosca_definitions_version: tosca_simple_yaml_1_0\n"
        "topology_template:\n  node_templates:\n"
        "    wn: {type: tosca.nodes.Compute, capabilities: {host: {properties: {num_cpus: 4, gpu_vendor: N}},"
        " os: {properties: {type: linux}}}}\n"
    )
    told = convert(source, "x.yaml")
    assert "cpus: 4" in told
    assert "# 4: gpu_vendor: N  -> no key" in told
    assert "# 4: os  -> the image" in told


SECRETS = """\
system s (
  cpu.count = 1 and
  disk.0.os.credentials.password = 'two HIDDEN words' and
  disk.0.os.credentials.private_key = '-----BEGIN RSA PRIVATE KEY-----
HIDDENHIDDEN
-----END RSA PRIVATE KEY-----'
)
configure c (
@begin
  - vars:
      db_password: two HIDDEN words
      api_token: |
        HIDDEN
      - git: https://me:HIDDEN@host/repository
      shell: aws configure set AKIAHIDDENHIDDEN12 us-east-1
@end
)
deploy s 1
"""


def test_secrets_of_several_words_and_lines_are_not_copied() -> None:
    told = convert(SECRETS, "x.radl")
    assert "HIDDEN" not in told
    assert "# 3: disk.0.os.credentials.password = '*** *** ***'  -> " in told
    for line in ("# 8: configure c  -> ", "# 11: db_password: *** *** ***", "# 14: - git: https://***@host"):
        assert line in told


def test_the_default_of_an_input_that_is_a_password_is_not_copied() -> None:
    source = TOSCA.replace(
        "    cores: {type: integer, default: 4}\n",
        "    cores: {type: integer, default: 4}\n    mysql_root_password:\n      type: string\n"
        "      default: HIDDEN\n    key:\n      default: plain\n"
        "    one_secret: {type: string, default: HIDDEN}\n",
    ).replace("image: ost://site/1", "image: ost://site/1\n            token: { get_input: the_token }")
    told = convert(source, "x.yaml")
    assert "HIDDEN" not in told
    for line in ("type: string", "default: ***", "default: plain", "token: { get_input: the_token }"):
        assert line in told


def test_what_a_network_says_has_its_own_reason() -> None:
    source = "network n (outbound = 'yes' and provider_id = 'vpc-1')\nsystem s (cpu.count=1)\ndeploy s 1\n"
    told = convert(source, "x.radl")
    assert "# 1: outbound = 'yes'  -> nothing is open to the world" in told
    assert '#   clouds: {"CLOUD": {"public_network": "vpc-1"}}' in told
