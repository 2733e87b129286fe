"""What logs say of the failures that they end with, as programs and launchers write them."""
# ruff: noqa: E501 - logs are quoted as they are

from __future__ import annotations

import pytest

from trainmaster.control.task.attempt_end import last_error

TRACEBACK = """\
Traceback (most recent call last):
  File "/code/train.py", line 7, in <module>
    main()
  File "/code/train.py", line 4, in main
    raise ValueError("bad learning rate")
ValueError: bad learning rate
"""
HYDRA_ADVICE = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
ELASTIC = """\
E0101 12:00:00.000000 17 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 17)
============================================================
"""
MPIRUN = """\
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[1,1],0]
  Exit code:    3
--------------------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (TRACEBACK, "ValueError: bad learning rate"),
        (TRACEBACK + "saving the plot\nwandb: run finished\nbye\n", "ValueError: bad learning rate"),
        (TRACEBACK + HYDRA_ADVICE, "ValueError: bad learning rate"),
        (TRACEBACK + ELASTIC, "ValueError: bad learning rate"),
        ("".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()), "ValueError: bad learning rate"),
        ("".join(f"[1,0]<stderr>: {line}\n" for line in TRACEBACK.splitlines()) + MPIRUN,
         "ValueError: bad learning rate"),
        ("".join(f"0: {line}\n" for line in TRACEBACK.splitlines())
         + "srun: error: node1: task 0: Exited with exit code 1\n", "ValueError: bad learning rate"),
        (TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n"
         + TRACEBACK.replace("ValueError: bad", "app.Stop: worse"), "app.Stop: worse learning rate"),
        (TRACEBACK + "Exception ignored in: <function Loader.__del__ at 0x7f>\nTraceback (most recent call last):\n"
         '  File "loader.py", line 1, in __del__\nAssertionError: can only test a child process\n',
         "ValueError: bad learning rate"),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    assert n > 0\n'
         "           ^^^^^\nAssertionError\n", "AssertionError: assert n > 0"),
        ("Traceback (most recent call last):\n  ...\nRuntimeError: Error(s) in loading state_dict for Net:\n"
         '\tMissing key(s) in state_dict: "a"\n',
         'RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "a"'),
        ("Traceback (most recent call last):\n  ...\n_pickle.UnpicklingError: Weights only load failed.\n"
         "\t(1) In PyTorch 2.6, we changed the default value\n\nCheck the documentation of torch.load.\n",
         "_pickle.UnpicklingError: Weights only load failed."),
        ("  + Exception Group Traceback (most recent call last):\n  |   File ...\n"
         "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
         "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
         '    |   File "a.py", line 3, in f\n    | KeyError: 7\n    +------------------------------------\n',
         "KeyError: 7"),
        ("Traceback (most recent call last):\n  ...\nsubprocess.CalledProcessError: Command '['x']' returned "
         "non-zero exit status 2.\n", "subprocess.CalledProcessError: Command '['x']' returned non-zero exit status 2."),
        ("Could not override 'hydra/sweeper/sampler'.\nNo match in the defaults list.\n" + HYDRA_ADVICE,
         "Could not override 'hydra/sweeper/sampler'. No match in the defaults list."),
        ("step 1\nIn 'config': Could not find 'db/sqlite'\n\nAvailable options in 'db':\n\tmysql\n" + HYDRA_ADVICE,
         "In 'config': Could not find 'db/sqlite'"),
        ("terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such mesh\n"
         "Aborted (core dumped)\n", "std::runtime_error: no such mesh"),
        ("terminate called after throwing an instance of 'int'\nAborted\n", "int"),
        (TRACEBACK + "terminate called without an active exception\n", "ValueError: bad learning rate"),
        ("thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds\nnote: run with `RUST_BACKTRACE=1`\n",
         "panicked at src/main.rs:2:5: index out of bounds"),
        ("thread 'main' (17) panicked at 'no', src/main.rs:2\nnote: run with `RUST_BACKTRACE=1` environment\n",
         "panicked at 'no', src/main.rs:2"),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f:\n  File \"a.py\", line 1\n",
         "Fatal Python error: Segmentation fault"),
        ('Exception in thread "main" java.lang.IllegalStateException: no\n\tat Main.main(Main.java:3)\n',
         "java.lang.IllegalStateException: no"),
        ("a.out: mesh.c:3: main: Assertion `n > 0' failed.\nAborted\n", "a.out: mesh.c:3: main: Assertion `n > 0' failed."),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo\n",
         "train.py: error: unrecognized arguments: --foo"),
        ("Usage: train [OPTIONS]\nTry 'train --help' for help.\n\nError: No such option: --foo\n",
         "Error: No such option: --foo"),
        ("a.c:1:10: fatal error: x.h: No such file or directory\n    1 | #include <x.h>\ncompilation terminated.\n"
         "make: *** [Makefile:2: a] Error 1\n", "a.c:1:10: fatal error: x.h: No such file or directory"),
        ("epoch 1\nerror: 0.25\nno space left\n", "no space left"),
        ("epoch 1\r 50%\rlast words\r\n\n", "last words"),
        ("\x1b[31mTraceback (most recent call last):\x1b[0m\n  ...\n\x1b[1;35mKeyError\x1b[0m: \x1b[35m7\x1b[0m\x07\n", "KeyError: 7"),
        ("", ""),
        ("\n\n", ""),
        ("make: *** [all] Error 1\n", "make: *** [all] Error 1"),
        ("x" * 500, "x" * 200),
    ],
)  # fmt: skip
def test_what_a_log_says_of_its_end(log, told):
    assert last_error(log) == told


def test_who_writes_where_he_may_not_is_told_how_to_write_where_he_may():
    said = last_error("OSError: [Errno 30] Read-only file system: 'out.pt'\n")
    assert said.startswith(
        "OSError: [Errno 30] Read-only file system: 'out.pt'; if that is in the code, begin"
    )
