"""What `convert` makes of files of other tools runs without an edit."""

from __future__ import annotations

SBATCH = """
    #!/bin/bash
    #SBATCH --nodes=2 --ntasks-per-node=2
    #SBATCH --array=5,7
    #SBATCH --time=10
    nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )
    head=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address)
    echo "from $head"
    false
    srun python say.py
"""
SKYPILOT = """
    num_nodes: 2
    envs: {WORD: hello}
    setup: |
      mkdir made
      echo made > made/file
    run: |
      head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
      cat made/file
      torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc-per-node=1 --node-rank=$SKYPILOT_NODE_RANK \\
        --master-addr=$head rank.py $WORD
"""


def test_files_of_slurm_and_skypilot_run_as_they_were_written(tm):
    tm.write(
        "say.py",
        """
        import os
        names = ("ARRAY_TASK_ID", "PROCID", "LOCALID", "NODEID", "NTASKS", "NNODES")
        print("is", *(os.environ[f"SLURM_{name}"] for name in names))
        """,
    )
    tm.write(
        "rank.py",
        "import os, sys; print('rank', os.environ['RANK'], os.environ['WORLD_SIZE'], *sys.argv[1:])",
    )
    tm.write("job.sbatch", SBATCH)
    tm.call("convert", "job.sbatch", "slurm.yaml")
    summary = tm.run("slurm.yaml")
    log = tm.logs(summary["run"])
    for task in ("5", "7"):
        for who in ("0 0 0", "1 1 0", "2 0 1", "3 1 1"):
            assert f"is {task} {who} 4 2" in log
    assert "from 127.0.0.1" in log
    tm.write("sky.yaml", SKYPILOT)
    made = tm.call("convert", "sky.yaml", "recipe.yaml", "--json").json
    assert made["tool"] == "SkyPilot"
    assert [line for line, _, _ in made["dropped"]] == [10, 11]
    for _ in range(2):  # the environment is kept: what the setup made is there again
        summary = tm.run("recipe.yaml")
        log = tm.logs(summary["run"])
        assert "rank 0 2 hello" in log
        assert "rank 1 2 hello" in log
        assert log.count("made") == 2


DSTACK = """
    type: service
    port: 8080
    commands:
      - sudo touch "$VIRTUAL_ENV/by-root"
      - python chat.py 8080
    probes: [{type: http, url: /v1/chat, method: post, body: '{"max_tokens": 1}', timeout: 3s, interval: 1s}]
    resources: {cpu: 1..64, shm_size: 1MB}
"""
CHAT = """
    import http.server, os, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            good = asked == b'{"max_tokens": 1}' and os.path.exists(os.environ["VIRTUAL_ENV"] + "/by-root")
            self.send_response(200 if good else 500)
            self.end_headers()
            print("asked", asked.decode(), good, flush=True)

    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_service_of_dstack_is_asked_by_post(tm):
    tm.write("chat.py", CHAT)
    tm.write("chat.dstack.yml", DSTACK)
    said = tm.call("convert", "chat.dstack.yml", "chat.yaml")
    assert "probes" not in said.out + said.err
    checked = tm.call("check", "chat.yaml", "--json").json["experiments"]["main"]
    assert checked["serve"]["health"]["body"] == '{"max_tokens": 1}'
    assert checked["hardware"] == {"cpus": 1, "shm_bytes": 10**6, "most": {"cpus": 64}}
    call = tm.start("run", "chat.yaml")
    run = call.run_id()
    call.until(lambda: 'asked {"max_tokens": 1} True' in tm.logs(run), "it is asked")
    call.until(lambda: "replica 0 is ready" in call.err + call.out, "it is ready")
    tm.call("cancel", run)
    call.wait(1)
