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
