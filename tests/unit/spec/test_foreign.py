"""Files of other tools that are given as recipes: it is said what they are, and what their keys are here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.errors import RecipeError
from trainmaster.spec.foreign import NO_JOBS, foreign_file

MIGRATE = Path(__file__).parents[3] / "docs" / "migrate.md"
FILES = {
    "SkyPilot": "name: x\nresources:\n  accelerators: V100:4\nnum_nodes: 2\nrun: |\n  make\n",
    "dstack": "type: task\nname: x\nnodes: 2\ncommands:\n  - make\n",
    "docker-compose": "services:\n  a:\n    image: x\n",
    "sbatch": "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n",
}


@pytest.mark.parametrize("tool", FILES)
def test_a_file_of_another_tool_is_named(tmp_path, tool):
    file = tmp_path / "file.yaml"
    file.write_text(FILES[tool])
    with pytest.raises(RecipeError, match=f'{tool}, not a recipe: .*`; docs/migrate.md, "From {tool}"'):
        read_recipe(file)
    assert re.search(rf"^## From {tool}$", MIGRATE.read_text(), re.MULTILINE), "what is named is there"


def test_a_service_over_several_nodes_leads_to_no_conversion():
    said = foreign_file("service: {replicas: 2}\nnum_nodes: 2\nrun: serve\n")
    assert "A replica is one machine here" in said
    assert "convert" not in said
    assert "trainmaster convert" in foreign_file("service: {replicas: 2}\nnum_nodes: 1\nrun: serve\n")


def test_a_pool_leads_to_its_jobs():
    said = foreign_file("pool: {workers: 3}\nresources: {cpus: 2}\nsetup: make\n")
    assert "which is no job" in said
    assert "a recipe" not in said
    assert "trainmaster convert" in foreign_file("pool: {workers: 3}\nresources: {cpus: 2}\nrun: make\n")


@pytest.mark.parametrize("kind", NO_JOBS)
def test_what_is_no_job_leads_to_no_conversion(tmp_path, kind):
    file = tmp_path / "file.yaml"
    file.write_text(f'type: "{kind}"\nname: x\n')
    with pytest.raises(RecipeError, match=f"a {kind} of dstack, which is no job") as refused:
        read_recipe(file)
    assert "convert" not in str(refused.value)
    assert NO_JOBS[kind] in str(refused.value)


def test_a_document_in_tosca_is_converted(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("tosca_definitions_version: tosca_simple_yaml_1_0\n")
    with pytest.raises(RecipeError, match="trainmaster convert"):
        read_recipe(file)


def test_what_other_tools_write_as_values_is_told_in_our_words(tmp_path):
    file = tmp_path / "recipe.yaml"
    hardware = "{gpu: 'A100:8', disk: 8GB..1TB, any_of: [{gpu_memory: 16..32}]}"
    file.write_text(f"experiments:\n  main: {{command: x, env: {{KEY: null}}, hardware: {hardware}}}\n")
    with pytest.raises(RecipeError) as refused:
        read_recipe(file)
    for words in (
        "env.KEY: no value; to take it from your own environment write `secrets: [KEY]`",
        "write `gpu: A100, gpus: 8`",
        "gpu_memory: the text '16..32'; write 16GB:",
        "disk: the text '8GB..1TB'; write 8GB:",
    ):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("hardware", "gpu", "gpus", "region"),
    [
        ("{gpu: {type: H100, count: 8}}", "H100", 8, None),
        ("{gpu: {type: [L4, A10G], count: 2}, region: [a, b]}", ("L4", "A10G"), 2, ("a", "b")),
        ("{gpu: [L4], region: [a]}", "L4", None, "a"),
        ("{gpu: {count: 2}}", None, 2, None),
        ("{gpu: [], region: []}", None, None, None),
    ],
)
def test_gpus_and_regions_as_other_tools_have_them(hardware, gpu, gpus, region):
    recipe = Recipe.from_text(f"experiments:\n  main: {{command: x, hardware: {hardware}}}\n")
    found = recipe.experiments["main"].hardware
    assert (found.gpu, found.gpus, found.region) == (gpu, gpus, region)


@pytest.mark.parametrize(
    ("hardware", "gpus", "gpu_memory"),
    [
        ("{gpu: {type: A10G, count: 2, memory: 24GB+}}", 2, 24 * 10**9),
        ("{gpu: {memory: 24+}}", 1, 24 * 10**9),
        ("{gpu_memory: 40GiB, gpus: 4+}", 4, 40 * 2**30),
        ("{gpus: 2.., cpus: 8+, memory: 64+, disk: 1TB..}", 2, None),
    ],
)
def test_at_least_so_much_may_be_written_with_a_sign(hardware, gpus, gpu_memory):
    recipe = Recipe.from_text(f"experiments:\n  main: {{command: x, hardware: {hardware}}}\n")
    found = recipe.experiments["main"].hardware
    assert (found.gpu_count, found.gpu_memory_bytes) == (gpus, gpu_memory)


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ("{gpu: {memory: 24GB}, gpu_memory: 24GB}", "gpu.memory: `gpu_memory` says that already"),
        ("{any_of: [{gpu: L4, gpus: 2}]}", "any_of.0.gpus: unknown key"),
        ("{any_of: [{gpu: {type: L4, count: 2}}]}", "any_of.0.gpu.count: unknown key"),
        ("{any_of: [L4]}", "any_of.0: the text 'L4'; write a mapping"),
        ("{accelerators: 'V100:4'}", "accelerators: write `gpu` and `gpus`"),
        ("{type: m5.large}", "type: did you mean `instance`?"),
        ("{gpu: [L4, L4]}", "gpu.1: the text 'L4' a second time"),
        ("{gpu: [L4, 'A100:8']}", "gpu.1: the text 'A100:8'; write `gpu: A100, gpus: 8`"),
        ("{gpu: {type: L4, count: 2}, gpus: 3}", "gpu.count: `gpus` says that already"),
        ("{gpu: {type: L4, number: 2}}", "gpu.number: unknown key"),
        ("{gpu: {type: L4, count: many}}", "gpu.count: the text 'many'; write a whole number"),
    ],
)
def test_what_is_wrong_with_such_gpus_is_told_where_it_stands(hardware, said):
    with pytest.raises(RecipeError) as refused:
        Recipe.from_text(f"experiments:\n  main: {{command: x, hardware: {hardware}}}\n")
    assert said in str(refused.value)
