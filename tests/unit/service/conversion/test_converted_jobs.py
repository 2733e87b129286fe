"""Files of sbatch, SkyPilot, dstack and docker-compose, and launchers' command lines, become recipes."""

from __future__ import annotations

import contextlib
import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.service.conversion.converting import conversion_of, convert
from trainmaster.service.conversion.shell import Script
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.hardware import Most

SBATCH = """\
#!/bin/bash
#SBATCH --job-name=resnet   # its name
#SBATCH -N 2 --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:a100:4
#SBATCH --mem=64G
#SBATCH --time=1-04:30:00
#SBATCH --array=0-2%2
#SBATCH --signal=B:TERM@120
#SBATCH --partition=big
##SBATCH --nodes=7
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
module load cuda
LRS=(0.1 0.03 0.01)
srun --label python train.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]}
#SBATCH --nodes=9
"""
SKY = """\
name: tune
resources:
  accelerators: {V100: 4}
  infra: aws/us-east-1
  use_spot: true
  cpus: 8+
  memory: 32+
  disk_tier: best
num_nodes: 2
workdir: src
file_mounts:
  /data: s3://bucket/images
  ~/.ssh/key: ~/.ssh/key
envs:
  EPOCHS: "10"
  HF_TOKEN:
  API_KEY: abc-123-secret
setup: |
  git clone https://example.org/code.git
  uv pip install -r code/requirements.txt
run: |
  cd code
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc-per-node ${SKYPILOT_NUM_GPUS_PER_NODE} \\
    --node_rank=$SKYPILOT_NODE_RANK --master_addr=$HEAD \\
    train.py --data /data || exit 1
"""
DSTACK = """\
type: task
name: tune
nodes: 2
python: 3.12
env: [NCCL_DEBUG=INFO, HF_TOKEN]
commands:
  - git clone https://example.org/code.git
  - cd code
  - pip install -r requirements.txt
  - torchrun --nproc-per-node=$DSTACK_GPUS_PER_NODE --nnodes=$DSTACK_NODES_NUM train.py
resources: {gpu: "H100:2", cpu: 8.., memory: 64GB.., disk: 200GB}
max_price: 5
max_duration: 2h
"""


def only(text: str) -> Experiment:
    """The one experiment of a recipe."""
    (found,) = Recipe.from_text(text).experiments.values()
    return found


def lines_of(script: str) -> list[str]:
    return [line for line in script.split("\n") if line.strip()]


def test_a_batch_script_is_a_gang_for_each_task_of_its_array() -> None:
    made = conversion_of(SBATCH, "job.sbatch")
    recipe = Recipe.from_text(made.recipe)
    main = only(made.recipe)
    assert recipe.name == "resnet"
    assert main.distributed is not None
    assert (main.distributed.workers, main.distributed.per_node) == (8, 4)
    hardware = main.hardware
    assert (hardware.cpus, hardware.gpu, hardware.gpus, hardware.memory_bytes) == (32, "a100", 4, 64 << 30)
    assert (main.timeout_s, main.grace_s, main.workers) == (28.5 * 3600, 120, 2)
    assert [main.tasks(0).parameters(n) for n in range(3)] == [{"SLURM_ARRAY_TASK_ID": n} for n in range(3)]
    assert main.aliases == ("slurm",)
    assert lines_of(main.command) == [
        "set +eu; set +o pipefail",
        "LRS=(0.1 0.03 0.01)",
        "python train.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]}",
    ]
    assert {line for line, _, _ in made.dropped} == {10, 12, 13}


def test_a_task_of_skypilot_keeps_its_shell_and_loses_its_launcher() -> None:
    made = conversion_of(SKY, "sky.yaml")
    recipe, main = Recipe.from_text(made.recipe), only(made.recipe)
    assert (recipe.name, recipe.provider, recipe.code) == ("tune", "aws", "src")
    assert main.distributed is not None
    assert (main.distributed.workers, main.distributed.per_node, main.launcher) == (8, 4, "torchrun")
    hardware = main.hardware
    assert (hardware.gpu, hardware.gpus, hardware.cpus, hardware.spot) == ("V100", 4, 8, True)
    assert (hardware.region, hardware.memory_bytes) == ("us-east-1", 32_000_000_000)
    assert (main.env, main.secrets) == ({"EPOCHS": "10"}, ("HF_TOKEN", "API_KEY"))
    assert main.data["data"].url == "s3://bucket/images"
    assert lines_of(main.command)[-1] == "python train.py --data $TRAINMASTER_DATA_DATA || exit 1"
    assert 'cd "$VIRTUAL_ENV/work"' in main.command
    assert 'cp -a . "$VIRTUAL_ENV/work"' in str(main.setup), "what setup clones is there for later runs, too"
    assert "abc-123" not in made.recipe
    assert {line for line, _, _ in made.dropped} == {8, 13, 24, 25}


def test_commands_of_dstack_that_make_ready_are_the_setup() -> None:
    main = only(convert(DSTACK, "x/.dstack.yml"))
    assert main.distributed is not None
    assert (main.distributed.workers, main.distributed.per_node) == (4, 2)
    assert lines_of(str(main.setup))[-3:] == [
        "git clone https://example.org/code.git",
        "cd code",
        "pip install -r requirements.txt",
    ]
    assert lines_of(main.command) == ["set +u", 'cd "$VIRTUAL_ENV/work"', "cd code", "python train.py"]
    assert (main.timeout_s, main.secrets, main.hardware.disk_bytes) == (7200, ("HF_TOKEN",), 200 * 10**9)


def test_a_script_that_starts_ray_is_a_gang_of_ray() -> None:
    script = """
num_nodes: 2
run: |
  head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
    ps aux | grep ray &> /dev/null || ray start --head --port 6379
    ray job submit --address http://127.0.0.1:8265 --working-dir . -- python train.py --gpus 2
    ray status
  else
    ray start --address $head:6379
  fi
"""
    made = conversion_of(script, "ray.yaml")
    main = only(made.recipe)
    assert main.launcher == "ray"
    assert main.distributed is not None
    assert (main.distributed.workers, main.distributed.per_node) == (2, 1)
    assert "ray start" not in main.command
    assert "if true; then" in main.command
    assert "  python train.py --gpus 2\n  :\n" in main.command
    assert {line for line, _, _ in made.dropped} == {6, 7, 8, 10}


def test_paths_of_skypilots_data_have_the_values_of_variables_and_none_that_are_unknown() -> None:
    made = conversion_of(
        """envs: {BUCKET: s3://ours, KEPT: }
file_mounts:
  /data: ${BUCKET}/pets
  /checkpoints: {source: $KEPT, mode: MOUNT}
  /models: {source: "oci://ours@us-sanjose-1"}
run: python train.py /data
""",
        "sky.yaml",
    )
    main = only(made.recipe)
    assert {name: each.url for name, each in main.data.items()} == {"data": "s3://ours/pets"}
    told = [text for _, text, why in made.decisions if "unknown here" in why]
    assert told == ["/checkpoints: $KEPT", "/models: oci://ours@us-sanjose-1"]


def test_options_of_launchers_that_stand_in_arrays_are_read_and_those_of_the_script_stay() -> None:
    script = """#!/bin/bash
#SBATCH --nodes=2
declare -a ARGS=(
    --container-image $IMAGE
)
declare -a TORCHRUN_ARGS=(
    --nproc_per_node=8  # GPUs of a node
    --nnodes=$SLURM_JOB_NUM_NODES
    --rdzv_endpoint=$(hostname)
)
export TORCHRUN=./pt/bin/torchrun
declare -a TRAIN_ARGS=( --epochs 3 )
MORE=""
MORE="--auto-resume=1"
srun ${MORE} -l "${ARGS[@]}" ${TORCHRUN} "${TORCHRUN_ARGS[@]}" $SCRIPT "${TRAIN_ARGS[@]}"
"""
    made = conversion_of(script, "fsdp.sbatch")
    main = only(made.recipe)
    assert main.distributed is not None
    assert (main.distributed.workers, main.distributed.per_node) == (16, 8)
    assert main.command.endswith('\npython $SCRIPT "${TRAIN_ARGS[@]}"\n')
    assert "container: IMAGE" in " ".join(why for _, _, why in made.decisions)


def test_tokens_of_text_are_no_secrets_and_others_are_shown_by_their_line() -> None:
    script = """#!/bin/bash
# for the small cluster
#SBATCH --nodes=2
#SBATCH --exclusive

declare -a ARGS=(
  --tokenizer=hf-internal/llama
  --max-tokens=4096
)
python train.py --lr 1 "${ARGS[@]}"
python push.py --token=abcdef
"""
    made = conversion_of(script, "fsdp.sbatch")
    main = only(made.recipe)
    assert "# for the small cluster\ndeclare -a ARGS=(\n  --tokenizer=hf-internal/llama\n" in main.command
    assert main.secrets == ()
    assert [text for _, text, why in made.decisions if "a secret" in why] == ["python push.py --token=***"]


def test_a_reference_is_no_secret_and_a_script_that_meets_by_address_has_one() -> None:
    source = """
num_nodes: 2
resources: {accelerators: H100:8}
envs: {HF_TOKEN: null, LENGTH: 2048}
run: |
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  HF_TOKEN=$HF_TOKEN NNODES=$SKYPILOT_NUM_NODES MASTER_ADDR=$MASTER_ADDR trainer-cli train \\
    dataset.max_num_tokens=$((LENGTH * 2))
  trainer-cli push --token=abcdef
"""
    made = conversion_of(source, "train.yaml")
    main = only(made.recipe)
    assert [text for _, text, why in made.decisions if "a secret" in why] == ["trainer-cli push --token=***"]
    assert "MASTER_ADDR=$(" not in main.command
    assert main.framework is None  # not `plain`: each member has a MASTER_ADDR


FILES = {
    "ddp.yaml": "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\nmixed_precision: bf16\n",
    "fsdp.yaml": "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 8\nfsdp_config: {fsdp_x: 2}\n",
    "hosts": "# two of them\na slots=4\nb slots=4\n",
}


@pytest.mark.parametrize(
    ("line", "command", "gang"),
    [
        (
            "accelerate launch --config_file ddp.yaml train.py --lr 1",
            "ACCELERATE_MIXED_PRECISION=bf16 python train.py --lr 1",
            (8, 4),
        ),
        (
            "accelerate launch --config_file ddp.yaml --num_processes 2 --mixed_precision no train.py",
            "ACCELERATE_MIXED_PRECISION=no python train.py",
            (2, 1),
        ),
        (
            "accelerate launch --config_file fsdp.yaml --machine_rank $R train.py",
            "accelerate launch --config_file fsdp.yaml --machine_rank $R --num_machines 2 --num_processes 8 "
            '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" train.py',
            (2, 1),
        ),
        (
            "deepspeed --hostfile=hosts train.py --deepspeed ds.json",
            'python train.py --deepspeed ds.json --local_rank="$LOCAL_RANK"',
            (8, 4),
        ),
    ],
)
def test_files_that_a_launcher_reads_say_how_many_there_are(
    line: str, command: str, gang: tuple[int, int]
) -> None:
    main = only(conversion_of(line, "command line", lambda path: FILES.get(path, "")).recipe)
    assert main.command == command
    assert main.distributed is not None
    assert (main.distributed.workers, main.distributed.per_node, main.launcher) == (*gang, "torchrun")


@pytest.mark.parametrize(
    ("line", "command", "workers", "per_node", "framework"),
    [
        ("torchrun --nnodes 2 --nproc-per-node=4 train.py --lr 1", "python train.py --lr 1", 8, 4, "pytorch"),
        ("torchrun --standalone --nproc_per_node 2 -m pkg.train", "python -m pkg.train", 2, 2, "pytorch"),
        ("torchrun --no-python --nproc-per-node 2 ./a.out", "./a.out", 2, 2, "pytorch"),
        (
            "python -m torch.distributed.launch --nproc_per_node=2 train.py",
            'python train.py --local_rank="$LOCAL_RANK"',
            2,
            2,
            "pytorch",
        ),
        (
            "accelerate launch --multi_gpu --num_machines 2 --num_processes 8 --mixed_precision bf16 a.py -x",
            "ACCELERATE_MIXED_PRECISION=bf16 python a.py -x",
            8,
            4,
            "pytorch",
        ),
        (
            "deepspeed --hostfile hosts --num_nodes 2 --num_gpus 2 train.py --deepspeed",
            'python train.py --deepspeed --local_rank="$LOCAL_RANK"',
            4,
            2,
            "pytorch",
        ),
        ("mpirun -np 4 --bind-to none -x PATH ./solve 7", "./solve 7", 4, 4, "mpi"),
        ("torchrun train.py", "python train.py", None, None, "pytorch"),
    ],
)
def test_launchers_become_distributed(
    line: str, command: str, workers: int | None, per_node: int | None, framework: str
) -> None:
    main = only(convert(line, "command line"))
    asked = main.distributed
    assert (main.command, main.framework) == (command, framework)
    assert (asked and asked.workers, asked and asked.per_node) == (workers, per_node)


@pytest.mark.parametrize(
    "line",
    [
        "accelerate launch --config_file fsdp.yaml train.py",
        "torchrun --nproc-per-node=$COUNT train.py",
        "accelerate launch --use_deepspeed train.py",
    ],
)
def test_a_launcher_that_says_more_than_how_many_stays_and_that_is_to_be_decided(line: str) -> None:
    made = conversion_of(line, "command line")
    assert only(made.recipe).command == line
    assert made.decisions


@pytest.mark.parametrize(
    ("step", "command"),
    [
        ("srun -N1 -n1 -w $H hostname", "srun -N1 -n1 -w $H hostname"),
        ("H=$(srun --nodes=1 -w \"$N\" hostname -i)", 'H=$(echo "$N")'),
        ("N=( $(scontrol show hostnames $SLURM_NODELIST) )", "N=( $(tr , '\\n' <<< $SLURM_NODELIST) )"),
        ("srun --ntasks=1 make", '[ "$SLURM_PROCID" != 0 ] || make'),
        ("srun -n $SLURM_NNODES --ntasks-per-node=1 cp a b", '[ "$SLURM_LOCALID" != 0 ] || cp a b'),
        ("srun ${EXTRA} python a.py", "python a.py"),
    ],
)  # fmt: skip
def test_steps_of_slurm_are_what_each_member_does(step: str, command: str) -> None:
    main = only(convert(f"#SBATCH -N 2 --ntasks-per-node 2\n{step}\nsrun python train.py\n", "a.sh"))
    if step.startswith("srun -N1"):  # a line of its own, not in a substitution
        command = '[ "$SLURM_PROCID" != 0 ] || hostname'
    assert command in lines_of(main.command)


def test_variables_that_only_a_script_reads_are_found_in_it() -> None:
    source = "#SBATCH --ntasks=2\nsrun python train.py\n"
    made = conversion_of(source, "a.sh", lambda path: "os.environ['SLURM_PROCID']" * (path == "train.py"))
    assert only(made.recipe).aliases == ("slurm",)
    assert "# train.py reads SLURM_PROCID" in made.recipe
    assert only(convert(source, "a.sh")).aliases == ()


def test_services_listen_where_they_are_told() -> None:
    sky = (
        "service: {readiness_probe: /ready, replicas: 2}\nresources: {ports: 8080}\nrun: serve --port 8080\n"
    )
    main = only(convert(sky, "sky.yaml"))
    assert main.serve is not None
    assert (main.serve.replicas.fewest, main.serve.port, main.serve.health.path) == (2, None, "/ready")
    assert main.command == "serve --port {{port}}"
    fixed = conversion_of(sky.replace("--port 8080", ""), "sky.yaml")
    found = only(fixed.recipe).serve
    assert found is not None
    assert (found.port, found.replicas.fewest) == (8080, 1)
    assert any("2 replicas" in text for _, text, _ in fixed.decisions)


PROBED = {
    "sky.yaml": """\
service:
  readiness_probe:
    path: /v1/chat
    post_data: {model: $MODEL, max_tokens: 1}
    initial_delay_seconds: 1200
    timeout_seconds: 20
resources: {ports: 8080, accelerators: [L4:1, L4:4]}
envs: {MODEL: m}
setup: sudo apt-get install -y libaio-dev
run: serve --port 8080
""",
    ".dstack.yml": """\
type: service
port: 8080
commands: [serve --port 8080]
probes: [{type: http, url: /v1/chat, method: post, body: '{"model": "m", "max_tokens": 1}', timeout: 20s}]
resources: {gpu: "L4:1..4", shm_size: 16GB}
""",
    "docker-compose.yml": """\
services:
  api:
    image: vllm
    command: serve --port 8080
    ports: ["8080:8080"]
    shm_size: 16gb
    healthcheck:
      test: curl -f -X POST http://localhost:8080/v1/chat -d '{"model":"m","max_tokens":1}'
      timeout: 20s
      start_period: 20m
""",
}


@pytest.mark.parametrize("file", PROBED)
def test_probes_by_post_and_what_machines_have_at_most_are_kept(file: str) -> None:
    found = conversion_of(PROBED[file], file)
    (main,) = Recipe.from_text(found.recipe).experiments.values()
    assert main.serve is not None
    health = main.serve.health
    assert (health.asks, json.loads(health.body)) == ("POST /v1/chat", {"model": "m", "max_tokens": 1})
    assert health.timeout_s == 20.0
    if file != ".dstack.yml":
        assert main.serve.start_s == 1200.0
    if file != "docker-compose.yml":
        assert (main.hardware.gpus, main.hardware.most) == (1, Most(gpus=4))
    if file != "sky.yaml":
        assert main.hardware.shm_bytes == 16 * 10**9
    told = " ".join(text for _, text, _ in [*found.dropped, *found.decisions])
    assert not any(
        word in told for word in ("sudo", "post_data", "probes", "shm_size", "1..4", "healthcheck")
    )


def test_what_any_will_do_of_becomes_lists() -> None:
    sky = """\
resources:
  accelerators: {L4, A10G, A100-80GB}
  any_of: [{infra: aws/us-east-1}, {infra: gcp/us-central1}, {infra: aws/eu-west-1}]
run: python train.py
"""
    made = conversion_of(sky, "sky.yaml")
    hardware = only(made.recipe).hardware
    assert hardware.gpu == ("L4", "A10G", "A100-80GB")
    assert (hardware.gpus, hardware.region) == (1, ("us-east-1", "eu-west-1"))
    assert any(text == "gcp" for _, text, _ in made.decisions)


def test_several_documents_of_skypilot_follow_each_other() -> None:
    made = convert("name: both\n---\nname: a\nrun: echo 1\n---\nname: b\nrun: echo 2\n", "x.yaml")
    recipe = Recipe.from_text(made)
    assert (recipe.name, recipe.experiments["b"].depends_on) == ("both", ("a",))


def test_services_of_docker_compose_are_experiments() -> None:
    source = """\
services:
  prepare:
    image: python:3.12
    command: ["python", "prepare.py", "--out", "my data"]
    environment: {LEVEL: "1", TOKEN: "${TOKEN}"}
    volumes: ["./data:/data", "cache:/cache"]
  train:
    build: .
    command: python train.py --in /data
    volumes: ["./data:/data"]
    depends_on: [prepare]
    deploy: {resources: {reservations: {devices: [{count: 2, capabilities: [gpu]}]}}}
  api:
    image: nginx
    command: nginx -p 8080
    ports: ["80:8080"]
    healthcheck: {test: curl http://localhost:8080/ready}
    depends_on: [train]
"""
    made = conversion_of(source, "docker-compose.yml")
    recipe = Recipe.from_text(made.recipe)
    prepare, train, api = recipe.experiments.values()
    assert prepare.command == "python prepare.py --out 'my data'"
    assert (prepare.container, prepare.env, prepare.secrets) == ("python:3.12", {"LEVEL": "1"}, ("TOKEN",))
    assert (train.after, train.hardware.gpus, train.data["data"].directory) == (("prepare",), 2, "./data")
    assert train.command == "python train.py --in $TRAINMASTER_DATA_DATA"
    assert api.serve is not None
    assert (api.serve.health.path, api.command) == ("/ready", "nginx -p {{port}}")
    assert any("build" in text for _, text, _ in made.decisions)


@pytest.mark.parametrize(
    ("source", "file", "said"),
    [
        ("type: dev-environment\nide: vscode\n", "a.yml", "a dev-environment of dstack, which is no job"),
        ("service: {}\nnum_nodes: 2\nrun: serve\n", "a.yaml", "line 2: .* whose replicas have several nodes"),
        ("pool: {workers: 3}\nresources: {cpus: 2}\nsetup: make\n", "a.yaml", "line 1: a pool of SkyPilot"),
        ("services: {}\n", "docker-compose.yml", "it has no services"),
        ("echo hello\n", "a.sh", "no file of sbatch"),
        ("#SBATCH -n 1\necho {{ x }}\n", "a.sh", "no recipe says this"),
    ],
)
def test_what_is_no_job_is_refused(source: str, file: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        convert(source, file)


@given(st.integers(0, 10_000), st.text(max_size=20), st.sampled_from([SBATCH, SKY, DSTACK]))
def test_whatever_a_file_has_a_recipe_comes_or_words(cut: int, text: str, whole: str) -> None:
    at = cut % len(whole)
    for source in (whole[:at] + text + whole[at:], whole[:at]):
        with contextlib.suppress(TrainmasterError):
            Recipe.from_text(convert(source, "a.yaml"))


@pytest.mark.parametrize("source", [SBATCH, SKY, DSTACK])
def test_what_is_made_is_a_script_of_bash(source: str) -> None:
    script = only(convert(source, "a.yaml")).command
    subprocess.run(["bash", "-n", "-c", script], check=True)


def test_here_documents_quotes_and_nested_substitutions_are_part_of_words() -> None:
    text = (
        "cat > f <<EOF\nsrun not this\nEOF\n"
        'A="$(srun x "$(y)")" srun real 2>&1 | tee log # srun no\n(cd a; srun b)\n'
    )
    assert [each.program for each in Script(text).commands()] == ["cat", "srun", "tee", "cd", "srun"]


def test_an_environment_of_that_machine_is_to_be_decided_and_what_is_dropped_is_not_rewritten() -> None:
    made = conversion_of(SBATCH.replace("module load cuda", "source ~/venvs/pt/bin/activate"), "job.sbatch")
    assert (13, "~/venvs/pt/bin/activate") in [found[:2] for found in made.decisions]
    assert (12, "MASTER_ADDR", "set for each rank") in made.dropped
    own = "python -m venv env\nsource env/bin/activate"
    made = conversion_of(SBATCH.replace("module load cuda", own), "job.sbatch")
    assert "activate" not in " ".join(text for _, text, _ in made.decisions)


def test_what_dstack_mounts_sends_and_calls_its_runs_is_kept_or_told() -> None:
    text = "type: task\nname: sft\ncommands: [python a.py --out /checkpoints]\npriority: 50\n"
    text += "tags: {team: nlp, 'a b': x}\nbackends: [gcp, k8s, aws]\n"
    text += "files: [src, ../other, '~/.ssh/id_rsa:/root/key']\n"
    text += "volumes:\n  - {name: ckpts, path: /checkpoints}\n  - data:/d\n"
    text += "  - {instance_path: /mnt, path: /mnt}\n"
    made = conversion_of(text, "a.dstack.yml")
    recipe = Recipe.from_text(made.recipe)
    assert (recipe.provider, recipe.labels) == ("kubernetes", {"team": "nlp"})
    told = {what: words for _, what, words in made.decisions}
    assert "`data: {ckpts: {volume: ckpts}}`" in told["ckpts:/checkpoints"]
    assert "TRAINMASTER_OUTPUT_DIR" in told["ckpts:/checkpoints"]
    assert {"data:/d", "../other", "priority: 50", "gcp"} <= told.keys()
    assert told["kubernetes, aws"] == "`provider: [kubernetes, aws]` takes the first that can begin"
    assert {what for _, what, _ in made.dropped} == {"a b", "~/.ssh/id_rsa", "src", "/mnt:/mnt"}


def test_a_task_of_skypilot_finds_what_its_setup_made_at_home() -> None:
    text = "resources: {infra: k8s, labels: {project: nlp}}\n"
    text += "file_mounts: {/ckpt: {source: 's3://b/c', mode: MOUNT}}\n"
    text += "setup: git clone https://example.org/llm.git\nrun: cd ~/llm && python a.py --out /ckpt\n"
    made = conversion_of(text, "a.yaml")
    recipe = Recipe.from_text(made.recipe)
    assert (recipe.provider, recipe.labels) == ("kubernetes", {"project": "nlp"})
    assert 'cd "$VIRTUAL_ENV/work"/llm && python' in only(made.recipe).command
    assert any("read only" in words for _, _, words in made.decisions), "the script writes there"
    made = conversion_of(text.replace("llm.git", "llm.git $HOME/llm"), "a.yaml")
    assert "cd ~/llm && python" in only(made.recipe).command, "it is at home here, too"


@pytest.mark.parametrize(("infra", "provider"), [("ssh/my-pool", "hosts"), ("local", "local")])
def test_where_machines_are_that_are_not_a_clouds(infra: str, provider: str) -> None:
    made = conversion_of(f"resources: {{infra: {infra}}}\nrun: python a.py\n", "a.yaml")
    assert Recipe.from_text(made.recipe).provider == provider
    assert ("local" in [what for _, what, _ in made.decisions]) == (infra == "local"), "a Kubernetes, there"


def test_choices_of_skypilot_are_told_with_their_line() -> None:
    text = "name: a\nresources:\n  ordered: [{infra: aws, use_spot: true}, {infra: aws, use_spot: false}]\n"
    made = conversion_of(f"{text}run: python a.py\n", "a.yaml")
    assert (3, "use_spot: true, false") in [found[:2] for found in made.decisions]


def test_sizes_of_compose_are_in_bytes_and_its_variables_are_filled_in() -> None:
    found = conversion_of(
        """\
services:
  train:
    image: pytorch/pytorch
    command: python train.py
    deploy: {resources: {limits: {cpus: "${CPUS:-2}", memory: 1073741824}}}
    shm_size: 2147483648b
""",
        "docker-compose.yml",
    )
    hardware = Recipe.from_text(found.recipe).experiments["train"].hardware
    assert (hardware.cpus, hardware.memory_bytes, hardware.shm_bytes) == (2, 1 << 30, 2 << 30)
