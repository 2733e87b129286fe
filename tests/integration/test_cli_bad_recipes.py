"""Recipes that are wrong: exit 2, `FILE:LINE:COL:`, what was found, what would be right; nothing starts."""

from __future__ import annotations

import re

import pytest

GOOD = """\
name: cifar
experiments:
  prepare:
    command: echo prepare
  train:
    after: [prepare]
    parameters: {lr: {range: 0.1-0.3, sampling: uniform}, depth: [18, 34]}
    samples: 4
    command: echo {{lr}} {{depth}}
"""

LAST = "    samples: 4"
MORE = "    samples: 4\n    "

#: (what is replaced in the good recipe, by what, line, words of the message)
MISTAKES = {
    "unknown key": (LAST, MORE + "retires: 2", 9, ["retires", "retries"]),
    "unknown top key": ("name: cifar", "nam: cifar", 1, ["nam", "name"]),
    "wrong type": (LAST, "    samples: many", 8, ["samples", "many"]),
    "a list where a map belongs": ("parameters: {lr: {range: 0.1-0.3, sampling: uniform}, depth: [18, 34]}",
                                   "parameters: [1, 2]", 7, ["parameters"]),
    "a cycle": ("  prepare:\n", "  prepare:\n    after: [train]\n", None, ["prepare", "train"]),
    "after itself": ("after: [prepare]", "after: [train]", 6, ["train"]),
    "unknown after": ("after: [prepare]", "after: [prepair]", 6, ["prepair", "prepare"]),
    "undefined name": ("{{depth}}", "{{dept}}", 9, ["dept", "depth"]),
    "name inside quotes": ("echo {{lr}}", "echo '{{lr}}'", 9, ["quoted for you"]),
    "name inside double quotes": ("echo {{lr}}", 'echo "x {{lr}}"', 9, ["quoted for you"]),
    "a reversed range": ("0.1-0.3", "0.3-0.1", 7, ["reversed", "0.1-0.3"]),
    "an empty range": ("range: 0.1-0.3", "range: ''", 7, ["range"]),
    "an empty list of values": ("[18, 34]", "[]", 7, ["depth"]),
    "samples: 0": ("samples: 4", "samples: 0", 8, ["samples"]),
    "continuous without samples": ("    samples: 4\n", "", 7, ["lr", "samples"]),
    "a budget without a currency": ("name: cifar", "budget: {total: 20}", 1, ["budget", "20"]),
    "no command": ("    command: echo prepare\n", "    retries: 1\n", None, ["prepare", "command"]),
    "an empty command": ("command: echo prepare", "command: ''", 4, ["command"]),
    "a duplicate key": ("name: cifar", "name: cifar\nname: other", 2, ["name"]),
    "a tag": ("name: cifar", "name: !!python/object/apply:os.system ['touch pwned']", 1, ["tag"]),
    "a tab": (LAST, "\tsamples: 4", 8, ["tab"]),
    "not YAML": ("name: cifar", "name: [cifar", None, []),
    "an unclosed placeholder name": ("{{depth}}", "{{ dep th }}", 9, ["dep th"]),
    "negative retries": (LAST, MORE + "retries: -1", 9, ["retries"]),
    "a timeout without a unit": (LAST, MORE + "timeout: soon", 9, ["timeout", "soon"]),
    "a data source of nothing": (LAST, MORE + "data: {x: {from: nothing}}", 9, ["nothing"]),
    "a bad pattern": (LAST, MORE + "metrics: {pattern: '(?P<loss'}", 9, ["pattern"]),
    "an unknown framework": (LAST, MORE + "framework: pytroch", 9, ["pytroch", "pytorch"]),
    "an unknown strategy": (LAST, MORE + "distributed: {strategy: allreduse, workers: 2}", 9, ["allreduce"]),
    "no workers": (LAST, MORE + "distributed: {strategy: allreduce, workers: 0}", 9, ["workers"]),
    "a name that leaves the folder": ("  prepare:", "  ../prepare:", 3, ["../prepare"]),
}  # fmt: skip


def assert_refused(tm, recipe, line, words, verb="run"):
    result = tm.call(verb, recipe, code=2)
    assert result.out == ""
    where = re.search(rf"^error: {re.escape(str(recipe))}:(\d+):(\d+): (.*)", result.err)
    assert where, result.err
    if line is not None:
        assert int(where[1]) == line, result.err
    for word in words:
        assert word in result.err, result.err
    assert not (tm.home / "runs").exists()
    assert not list(tm.root.rglob("pwned"))


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_have_a_place_and_a_way_out(tm, name):
    old, new, line, words = MISTAKES[name]
    assert old in GOOD
    assert_refused(tm, tm.write("recipe.yaml", GOOD.replace(old, new, 1)), line, words)


def test_the_good_one_is_good_and_check_refuses_the_same(tm):
    recipe = tm.write("recipe.yaml", GOOD)
    assert tm.call("check", recipe, "--json").json["experiments"]["train"]["tasks"] == 4
    recipe.write_text(GOOD.replace("samples: 4", "samples: 4.5"))
    assert_refused(tm, recipe, 8, ["samples", "4.5"], verb="check")


def test_several_mistakes_are_told_at_once(tm):
    recipe = tm.write("recipe.yaml", GOOD.replace("name:", "nam:").replace("[prepare]", "[prepair]"))
    error = tm.call("run", recipe, code=2).err
    assert error.count(str(recipe)) == 2, error


def test_a_file_that_is_no_recipe(tm):
    cases = {
        "empty.yaml": b"",
        "comment.yaml": b"# nothing\n",
        "list.yaml": b"- a\n- b\n",
        "text.yaml": b"just words\n",
        "binary.yaml": bytes(range(256)),
        "latin1.yaml": "name: caf\u00e9\n".encode("latin-1"),
        "no_experiments.yaml": b"name: x\n",
        "empty_experiments.yaml": b"experiments: {}\n",
        "two_documents.yaml": b"experiments: {a: {command: 'true'}}\n---\nexperiments: {}\n",
    }
    for name, content in cases.items():
        path = tm.work / name
        path.write_bytes(content)
        result = tm.call("run", path, code=2)
        assert re.match(rf"error: {re.escape(str(path))}:\d+:\d+: ", result.err), (name, result.err)
    assert not (tm.home / "runs").exists()


def test_no_such_file(tm):
    for path in (tm.work / "missing.yaml", tm.work, "/dev/null/x"):
        result = tm.call("run", path, code=2)
        assert str(path) in result.err
        assert result.err.startswith("error: "), result.err


def test_alias_bombs_and_giants(tm):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
    )
    deep = "experiments: " + "[" * 5000 + "]" * 5000
    giant = "name: x\nexperiments:\n  a:\n    command: " + "y" * (20 << 20) + "\n"
    recursive = "experiments: &x {a: *x}\n"
    for text in (bomb, deep, giant, recursive):
        path = tm.work / "recipe.yaml"
        path.write_text(text)
        result = tm.call("run", path, code=2, timeout_s=30, prefix="ulimit -v 4000000;")
        assert result.err.startswith(f"error: {path}"), result.err[:300]
        assert len(result.err) < 5000


def test_calls_that_are_wrong(tm):
    recipe = tm.task("true")
    cases = [
        ["run"], ["run", recipe, "--nonsense"], ["frobnicate"], ["resume"], ["models", "get", "file:///x"],
        ["run", recipe, "--keep", "soon"], ["logs", "x", "--task", "one"], ["run", recipe, "extra"],
    ]  # fmt: skip
    for arguments in cases:
        result = tm.call(*arguments, code=2)
        assert result.err or result.out, arguments
    assert not (tm.home / "runs").exists()


def test_task_count_is_lazy(tm):
    recipe = tm.recipe("""
        experiments:
          huge:
            parameters: {x: {range: 1-1000, step: 1}, y: {range: 1-1000, step: 1}, lr: {range: 0-1}}
            samples: 1000000
            command: echo {{x}} {{y}} {{lr}}
    """)
    result = tm.call("check", recipe, "--json", prefix="ulimit -v 2000000;")
    assert result.json["experiments"]["huge"]["tasks"] == 1_000_000


#: What only a look at the installed parts can tell: (more keys of `train`, of the recipe, place, words)
UNKNOWN_NAMES = {
    "provider": ("", "provider: awz", "10:11: provider: ", ["there is no provider 'awz'", "aws"]),
    "sampler": (
        "search: {metric: m, goal: max, sampler: tpf}", "",
        "9:45: experiments.train.search.sampler: ", ["there is no sampler 'tpf'", "did you mean 'tpe'?"],
    ),
    "pruner": (
        "search: {metric: m, goal: max, pruner: asho}", "",
        "9:44: experiments.train.search.pruner: ", ["'asho'", "asha"],
    ),
    "option": (
        "search: {metric: m, goal: max, sampler: tpe, options: {gamma: 1}}", "",
        "9:67: experiments.train.search.options.gamma: ", ["'gamma'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN_NAMES)
def test_check_refuses_the_names_that_run_refuses(tm, name):
    of_train, of_recipe, where, words = UNKNOWN_NAMES[name]
    text = GOOD.replace(LAST, f"{MORE}{of_train}" if of_train else LAST)
    recipe = tm.write("recipe.yaml", f"{text}{of_recipe}\n")
    for verb in ("check", "run"):
        result = tm.call(verb, recipe, code=2)
        assert result.err.startswith(f"error: {recipe}:{where}"), result.err
        for word in words:
            assert word in result.err, result.err
    assert not (tm.home / "runs").exists()


def test_a_name_that_is_set_has_the_place_that_it_replaces(tm):
    recipe = tm.write(
        "recipe.yaml", GOOD.replace(LAST, f"{MORE}search: {{metric: m, goal: max, sampler: tpe}}")
    )
    setting = "experiments.train.search.sampler=tpf"
    result = tm.call("check", recipe, "--set", setting, code=2)
    assert f"{recipe}:9:45: experiments.train.search.sampler: there is no sampler 'tpf'" in result.err
    assert f"(given by --set {setting})" in result.err
