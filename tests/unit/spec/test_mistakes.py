"""Every mistake has its own message, with its place: line and column are part of the contract."""

import pytest

from trainmaster.spec import read_recipe
from trainmaster.spec.errors import RecipeError

HEAD = "experiments:\n  train:\n    command: echo hi\n"
PLACE = "experiments:\n  train:\n    command: echo {{x}}\n"


def test_no_file(tmp_path):
    with pytest.raises(RecipeError, match=r"nothing\.yaml:1:1: no such file; give the path of a recipe"):
        read_recipe(tmp_path / "nothing.yaml")


def test_a_directory(tmp_path):
    with pytest.raises(RecipeError, match=r":1:1: a directory without recipe.yaml; give the path"):
        read_recipe(tmp_path)
    (tmp_path / "recipe.yaml").write_text("name: found\n" + HEAD)
    found = read_recipe(tmp_path)
    assert (found.name, found.directory) == ("found", tmp_path)


def test_a_path_that_cannot_be(tmp_path):
    with pytest.raises(RecipeError, match=r":1:1: cannot be read"):
        read_recipe("a\0b")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match=r":1:1: cannot be read \(Not a directory\)"):
        read_recipe(tmp_path / "file" / "recipe.yaml")


WHOLE_FILE = {
    "empty": ("", "1:1: an empty file; a recipe is a mapping with the key `experiments`"),
    "only a comment": ("# nothing\n", "1:1: an empty file"),
    "a list": ("- a\n", "1:1: a list; a recipe is a mapping"),
    "a text": ("hello", "1:1: the text 'hello'; a recipe is a mapping"),
    "not YAML": ("a: [1, 2\nb: }\n", "2:2: not YAML: "),
    "an open quote": (
        "a: 'x\nb: y\n",
        "1:4: not YAML: a quote or bracket that is opened here and not closed",
    ),
    "a colon in a value": ("a: b: c\n", "1:5: not YAML: a ':' where no key can be; quote a value with ': '"),
    "indented too far": ("a: b\n  c: d\n", "2:4: not YAML: a ':' where no key can be; "),
    "indented too little": ("a:\n    b: c\n  d: e\n", "3:3: not YAML: indented unlike the lines above; "),
    "behind a quote": ('a: "b" c\n', "1:8: not YAML: something behind the end of a value; put quotes"),
    "no colon": ("a: b\nc\nd: e\n", "2:1: not YAML: a key without ': '; write KEY: VALUE"),
    "an at sign": ("a: @b\n", "1:4: not YAML: a value that begins with a sign of YAML's own; put quotes"),
    "braces without quotes": ("a: {{b}}\n", "1:5: a mapping as a key; put quotes around a value that begins"),
    "a tab": ("experiments:\n\ttrain: 1\n", "2:1: a tab was found; indent with spaces"),
    "a tab behind spaces": ("experiments:\n  a:\n  \tb: 1\n", "3:3: a tab was found; indent with spaces"),
    "a tag": ("a: 1\nb: !!python/object:os.system ls\n", "2:4: a YAML tag '!!python/object:os.system'"),
    "an own tag": ("a: !x {}\n", "1:4: a YAML tag '!x'"),
    "a NUL byte": ("a: b\0", "1:5: a NUL byte; a recipe is a text file"),
    "an escaped NUL byte": ('a: "b\\0"', "1:4: an escaped NUL"),
    "half a surrogate pair": ('a: "b\\uD800"', "1:4: an escaped NUL or half a surrogate"),
    "a bell": ("a: \a", "1:4: the control character '\\x07'"),
    "not UTF-8": (b"a: b\nc: \xff\n", "2:4: the byte 0xff is not UTF-8; save the recipe as UTF-8"),
    "a second document": (HEAD + "---\na: 1\n", "4:1: a second document"),
    "a duplicate key": (
        HEAD + "    command: b\n",
        "4:5: a second key 'command'; it was given before, at line 3, column 5",
    ),
    "a merge key": ("a: &a {b: c}\nd: {<<: *a}\n", "2:5: a merge key '<<'"),
    "an unknown alias": ("a: *b\n", "1:4: an alias '*b' without an anchor"),
    "an alias of itself": ("a: &a [*a]\n", "1:8: an alias '*a' without an anchor"),
    "too deep": ("a: " + "[" * 100_000, "1:36: nested more than 32 levels deep"),
    "too deep in blocks": ("".join(" " * n + "a:\n" for n in range(1000)), "33:33: nested more than 32"),
    "too large": ("#" * (1 << 20) + "\n", "1:1: more than 1 MiB"),
    "a list as a key": ("? [a]\n: b\n", "1:3: a list as a key; a key is a text"),
}


@pytest.mark.parametrize(("text", "expected"), WHOLE_FILE.values(), ids=WHOLE_FILE.keys())
def test_the_whole_file(mistakes, text, expected):
    assert any(line.startswith(f"recipe.yaml:{expected}") for line in mistakes(text))


def test_an_alias_bomb(mistakes):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    [line] = mistakes(bomb)
    assert line.startswith("recipe.yaml:4:")
    assert "aliases that stand for more than 10000 values" in line


T = "experiments.train"
KEYS = {
    "an unknown key": (
        HEAD + "    sampels: 3\n",
        f"4:5: {T}.sampels: unknown key 'sampels'; did you mean 'samples'?",
    ),
    "a key that other tools have": (
        HEAD + "    needs: []\n",
        f"4:5: {T}.needs: unknown key 'needs'; it is called 'after' here",
    ),
    "a key that other tools have elsewhere": (
        "image: python\n" + HEAD,
        "1:1: image: unknown key 'image'; known here: ",
    ),
    "a key of an experiment above": (
        "hardware: {cpus: 1}\n" + HEAD,
        "1:1: hardware: unknown key 'hardware'; it is a key of an experiment: `experiments: ",
    ),
    "an unknown key above": (
        HEAD + "bugdet: {}\n",
        "4:1: bugdet: unknown key 'bugdet'; did you mean 'budget'?",
    ),
    "an unknown key below": (
        HEAD + "    checkpoint: {evry: 3}\n",
        f"4:18: {T}.checkpoint.evry: unknown key 'evry'; did you mean 'every'?",
    ),
    "wrong type": (
        HEAD + "    retries: many\n",
        f"4:14: {T}.retries: the text 'many'; write a whole number of at least 0",
    ),
    "a list for a number": (HEAD + "    retries: [1]\n", f"4:14: {T}.retries: a list; write a whole number"),
    "a mapping for a list": (
        HEAD + "    after: {a: b}\n",
        f"4:12: {T}.after: a mapping; write a list of experiments",
    ),
    "a text for a mapping": (
        HEAD + "    hardware: gpu\n",
        f"4:15: {T}.hardware: the text 'gpu'; write a mapping with",
    ),
    "nothing": (HEAD + "    retries:\n\n\nseed: 1\n", f"4:5: {T}.retries: nothing; write a whole number"),
    "true for a number": (HEAD + "    retries: true\n", f"4:14: {T}.retries: true; write a whole number"),
    "yes is a text": (
        HEAD + "    hardware: {spot: yes}\n",
        f"4:22: {T}.hardware.spot: the text 'yes'; write true or false",
    ),
    "negative retries": (
        HEAD + "    retries: -1\n",
        f"4:14: {T}.retries: the number -1; write a whole number of at least 0",
    ),
    "workers: 0": (
        HEAD + "    workers: 0\n",
        f"4:14: {T}.workers: the number 0; write a whole number of at least 1",
    ),
    "keep: 0": (
        HEAD + "    checkpoint: {keep: 0}\n",
        f"4:24: {T}.checkpoint.keep: the number 0; write a whole",
    ),
    "no experiments": (
        "name: a\n",
        "1:1: no `experiments`; write a mapping of experiments, each with a `command`",
    ),
    "empty experiments": (
        "experiments: {}\n",
        "1:14: experiments: an empty mapping; write a mapping of experiments",
    ),
    "an empty experiment": ("experiments:\n  train:\n", f"2:3: {T}: nothing; write a mapping with at least"),
    "no command": (
        "experiments:\n  train: {retries: 1}\n",
        f"2:3: {T}.command: no `command`; write the script",
    ),
    "a misspelt command": (
        "experiments:\n  train:\n    comand: python train.py\n",
        f"3:5: {T}.comand: unknown key 'comand'; did you mean 'command'?",
    ),
    "a command of another tool": (
        "experiments:\n  train:\n    script: python train.py\n",
        f"3:5: {T}.script: unknown key 'script'; it is called 'command' here",
    ),
    "a misspelt key that must be there": (
        "experimets: {train: {command: x}}\n",
        "1:1: experimets: unknown key 'experimets'; did you mean 'experiments'?",
    ),
    "an empty command": ("experiments:\n  train: {command: ' '}\n", f"2:20: {T}.command: an empty script"),
    "a colon in a command": (
        "experiments:\n  train:\n    command:\n      - echo a: b\n",
        f"4:9: {T}.command.0: a mapping; put the line in quotes, it contains a colon and a space",
    ),
    "an experiment's name": (
        "experiments:\n  a/b: {command: x}\n",
        "2:3: experiments.a/b: the name 'a/b'; write a name of",
    ),
    "a long name": (f"experiments:\n  {'a' * 101}: {{command: x}}\n", "2:3: experiments." + "a" * 101),
    "a variable's name": (
        HEAD + "    env: {A-B: 1}\n",
        f"4:11: {T}.env.A-B: the name 'A-B'; write a name of letters",
    ),
    "a secret's name": (
        HEAD + "    secrets: [1A]\n",
        f"4:15: {T}.secrets.0: the text '1A'; write a name of letters",
    ),
    "a datum's name": (
        HEAD + "    data: {a.b: {volume: v}}\n",
        f"4:12: {T}.data.a.b: the name 'a.b'; write a name",
    ),
    "a secret twice": (
        HEAD + "    secrets: [A, A]\n",
        f"4:18: {T}.secrets.1: the text 'A' a second time; name it once",
    ),
    "a secret variable": (
        HEAD + "    secrets: [A]\n    env: {A: 1}\n",
        f"5:11: {T}.env.A: 'A' is in `secrets` too",
    ),
    # the workflow
    "an unknown after": (
        HEAD + "  test:\n    after: [trian]\n    command: x\n",
        "5:13: experiments.test.after.0: unknown experiment 'trian'; did you mean 'train'?",
    ),
    "an unknown after of the only experiment": (
        HEAD + "    after: typo\n",
        f"4:12: {T}.after: unknown experiment 'typo'; there is no other experiment",
    ),
    "an unknown from": (
        HEAD + "  test:\n    data: {m: {from: trian}}\n    command: x\n",
        "5:22: experiments.test.data.m.from: unknown experiment 'trian'; did you mean 'train'?",
    ),
    "a cycle": (
        "experiments:\n  a: {after: [b], command: x}\n"
        "  b: {after: [c], command: x}\n  c: {after: a, command: x}\n",
        "2:15: experiments.a.after.0: a cycle: a -> b -> c -> a; leave out one of these",
    ),
    "a cycle through data": (
        "experiments:\n  a: {after: [b], command: x}\n  b: {data: {m: {from: a}}, command: x}\n",
        "2:15: experiments.a.after.0: a cycle: a -> b -> a; leave out one of these",
    ),
    "after itself": (
        HEAD + "    after: [train]\n",
        f"4:13: {T}.after.0: 'train' waits for itself; leave it out",
    ),
    "from for all": (
        HEAD + "data: {m: {from: train}}\n",
        "4:11: data.m.from: `from` for all experiments; put it under",
    ),
    # money, time, size
    "no currency": (
        HEAD + "budget: {total: 20}\n",
        "4:17: budget.total: a budget without a currency: 20; write $20 or 20 USD",
    ),
    "euros": (
        HEAD + "budget: {per_hour: 2 EUR}\n",
        "4:20: budget.per_hour: '2 EUR' is not in US dollars; all prices are in USD",
    ),
    "free": (HEAD + "budget: {total: $0}\n", "4:17: budget.total: the text '$0' is zero; write an amount"),
    "a bare budget": (
        HEAD + "budget: $20\n",
        "4:9: budget: the text '$20'; write a mapping with the keys total",
    ),
    "no duration": (HEAD + "    timeout: 3x\n", f"4:14: {T}.timeout: '3x' is no duration; write 60s"),
    "no time": (HEAD + "    timeout: 0\n", f"4:14: {T}.timeout: the number 0 is zero; write a duration"),
    "negative time": (
        HEAD + "    grace: -1s\n",
        f"4:12: {T}.grace: the text '-1s' is negative; write a duration",
    ),
    "no unit": (
        HEAD + "    hardware: {memory: 16}\n",
        f"4:24: {T}.hardware.memory: '16' has no unit; write 16GB",
    ),
    # promote
    "promote without alias": (
        HEAD + "    promote: digits@3\n",
        f"4:14: {T}.promote: the text 'digits@3'; write a name and an alias such as digits@production",
    ),
    "promote of many": (
        PLACE + "    parameters: {x: [1, 2]}\n    promote: digits@production\n",
        f"5:14: {T}.promote: `promote` of many tasks without `search`",
    ),
    # require
    "require without metric": (
        HEAD + "    require: {at_least: 1}\n",
        f"4:14: {T}.require: no `metric`; name the metric to look at",
    ),
    "require of nothing": (
        HEAD + "    require: {metric: f1}\n",
        f"4:14: {T}.require: no bound of the metric; add at_least, at_most or better_than",
    ),
    "require what cannot be": (
        HEAD + "    require: {metric: f1, at_least: 2, at_most: 1, goal: max}\n",
        f"4:37: {T}.require.at_least: at_least 2.0 is more than at_most 1.0; no value is both",
    ),
    "require a word": (
        HEAD + "    require: {metric: f1, at_least: high}\n",
        f"4:37: {T}.require.at_least: the text 'high'; write a number",
    ),
    "require better than a version": (
        HEAD + "    require: {metric: f1, better_than: digits, goal: max}\n",
        f"4:40: {T}.require.better_than: the text 'digits'; write a name and an alias such as",
    ),
    "require better without a goal": (
        HEAD + "    require: {metric: f1, better_than: digits@production}\n",
        f"4:14: {T}.require: whether more f1 is better is not known; add goal: max or goal: min",
    ),
    "require another goal": (
        PLACE + "    parameters: {x: [1, 2]}\n    search: {metric: f1, goal: max}\n"
        "    require: {metric: f1, at_most: 1, goal: min}\n",
        f"6:45: {T}.require.goal: goal: min, but the search has goal: max of that metric; leave it out",
    ),
    "model of no name": (
        HEAD + "    data: {w: {model: a/b}}\n",
        f"4:23: {T}.data.w.model: the text 'a/b'; write a registered model such as digits@production",
    ),
    # parameters
    "reversed range": (
        PLACE + "    parameters: {x: {range: 0.3-0.1}}\n    samples: 3\n",
        f"4:29: {T}.parameters.x.range: a reversed range, 0.3 is more than 0.1; write 0.1-0.3",
    ),
    "empty range": (
        PLACE + "    parameters: {x: {range: [1, 1.0]}}\n    samples: 3\n",
        f"4:29: {T}.parameters.x.range: an empty range, both ends are 1; write range: a-b",
    ),
    "no range": (
        PLACE + "    parameters: {x: {range: }}\n",
        f"4:22: {T}.parameters.x.range: nothing; write range: a-b",
    ),
    "a number as range": (
        PLACE + "    parameters: {x: {range: 5}}\n",
        f"4:29: {T}.parameters.x.range: the number 5; write",
    ),
    "three ends": (
        PLACE + "    parameters: {x: {range: [1, 2, 3]}}\n",
        f"4:29: {T}.parameters.x.range: a list of 3 values",
    ),
    "a text as end": (
        PLACE + "    parameters: {x: {range: [1, b]}}\n",
        f"4:33: {T}.parameters.x.range.1: the text 'b'",
    ),
    "an endless range": (
        PLACE + "    parameters: {x: {range: 0-1e999}}\n",
        f"4:29: {T}.parameters.x.range: the text '0-1e999' is out",
    ),
    "no values": (
        PLACE + "    parameters: {x: []}\n",
        f"4:21: {T}.parameters.x: an empty list; write at least one value",
    ),
    "null": (
        PLACE + "    parameters: {x: [1, null]}\n",
        f"4:25: {T}.parameters.x.1: nothing; write a text, a number",
    ),
    "not a number": (
        PLACE + "    parameters: {x: .nan}\n",
        f"4:21: {T}.parameters.x: the number .nan; write a finite number",
    ),
    "twice the same": (
        PLACE + "    parameters: {x: [3.1, 3.10]}\n",
        f"4:27: {T}.parameters.x.1: the number 3.10 is the same",
    ),
    "a step of 0": (
        PLACE + "    parameters: {x: {range: 0-1, step: 0}}\n",
        f"4:40: {T}.parameters.x.step: the number 0; write a step above 0",
    ),
    "a long step": (
        PLACE + "    parameters: {x: {range: 0-1, step: 2}}\n",
        f"4:40: {T}.parameters.x.step: a step of 2 in 0-1",
    ),
    "log of 0": (
        PLACE + "    parameters: {x: {range: 0-1, sampling: log}}\n    samples: 1\n",
        f"4:44: {T}.parameters.x.sampling: log sampling from 0; a logarithm needs a range above 0",
    ),
    "log steps": (
        PLACE + "    parameters: {x: {range: 1-9, step: 1, sampling: log}}\n",
        f"4:53: {T}.parameters.x.sampling: log sampling of a range with `step`",
    ),
    "unknown sampling": (
        PLACE + "    parameters: {x: {range: 1-9, sampling: unifrom}}\n    samples: 1\n",
        f"4:44: {T}.parameters.x.sampling: the text 'unifrom'; did you mean 'uniform'?",
    ),
    "samples: 0": (
        PLACE + "    parameters: {x: 1}\n    samples: 0\n",
        f"5:14: {T}.samples: the number 0; write a whole number of at least 1",
    ),
    "two samples": (
        PLACE + "    parameters: {x: 1, samples: 3}\n    samples: 4\n",
        f"4:33: {T}.parameters.samples: the number 3, but the number 4 beside `parameters`",
    ),
    "a parameter named samples": (
        PLACE + "    parameters: {x: 1, samples: [3, 4]}\n",
        f"4:33: {T}.parameters.samples: a list; write a whole number",
    ),
    "no samples": (
        PLACE + "    parameters: {x: {range: 0.1-0.3}}\n",
        f"4:21: {T}.parameters.x: a continuous range without samples; add `samples: n`",
    ),
    "too many tasks": (
        PLACE + "    parameters: {x: {range: 0-1e6, step: 1}, y: {range: 0-1e6, step: 1}}\n",
        f"4:17: {T}.parameters: a product of 1,000,002,000,001 tasks; add `samples: n`",
    ),
    "names that collide": (
        PLACE + "    parameters: {x: 1, X: 2}\n",
        f"4:24: {T}.parameters.X: 'X' and 'x' would share the variable TRAINMASTER_PARAM_X; rename one",
    ),
    "data that collide": (
        HEAD + "    data: {a: {volume: v}, A: {volume: w}}\n",
        f"4:28: {T}.data.A: 'A' and 'a' would share the variable TRAINMASTER_DATA_A; rename one",
    ),
    "a name that is taken": (
        HEAD + "    steps: 3\n    parameters: {steps: 2}\n",
        f"5:18: {T}.parameters.steps: the name 'steps' is taken by a key of the experiment",
    ),
    "a parameter's name": (
        HEAD + "    parameters: {a-b: 2}\n",
        f"4:18: {T}.parameters.a-b: the name 'a-b'; write a name of",
    ),
    # the command
    "undefined": (
        PLACE + "    parameters: {y: 1}\n",
        f"3:19: {T}.command: undefined {{{{x}}}}; known here: y",
    ),
    "misspelt": (
        "experiments:\n  train:\n    command:\n      - a\n      - b {{depht}}\n    parameters: {depth: 1}\n",
        f"5:11: {T}.command.1: undefined {{{{depht}}}}; did you mean 'depth'?",
    ),
    "steps without a key": (
        HEAD.replace("hi", "{{steps}}"),
        f"3:19: {T}.command: undefined {{{{steps}}}}; it is known where the experiment has the key `steps`",
    ),
    "inside single quotes": (
        "experiments:\n  train:\n    parameters: {x: 1}\n    command: |\n      true\n      echo 'a {{x}}'\n",
        f"6:15: {T}.command: {{{{x}}}} inside quotes; it is quoted for you: leave the quotes out",
    ),
    "inside double quotes": (
        "experiments:\n  train:\n    parameters: {x: 1}\n    command: 'true; echo \"{{x}}\"'\n",
        f"4:27: {T}.command: {{{{x}}}} inside quotes; it is quoted for you: leave the quotes out",
    ),
    "in setup": (
        PLACE + "    parameters: {x: 1}\n    setup: pip install {{x}}\n",
        f"5:24: {T}.setup: {{{{x}}}} in `setup`; it runs once per node",
    ),
    # gangs
    "auto": (
        HEAD + "    distributed: {workers: auto}\n",
        f"4:28: {T}.distributed.workers: workers: auto without `batch` and a length",
    ),
    "auto by default": (
        HEAD + "    distributed: {strategy: allreduce}\n    epochs: 3\n",
        f"4:18: {T}.distributed.workers: workers: auto without `batch`; add it",
    ),
    "a span": (
        HEAD + "    distributed: {workers: 1..8}\n    batch: {global: 8}\n",
        f"4:28: {T}.distributed.workers: workers: 1..8 without a length",
    ),
    "a reversed span": (
        HEAD + "    distributed: {workers: 8..1}\n",
        f"4:28: {T}.distributed.workers: the text '8..1'; write a whole",
    ),
    "no workers": (
        HEAD + "    distributed: {workers: 0}\n",
        f"4:28: {T}.distributed.workers: the number 0; write a whole number",
    ),
    "no servers": (
        HEAD + "    distributed: {strategy: ps-sync, workers: 2, parameter_servers: 0}\n",
        f"4:69: {T}.distributed.parameter_servers: 0 with a ps strategy; write at least 1",
    ),
    "servers": (
        HEAD + "    distributed: {workers: 2, parameter_servers: 1}\n",
        f"4:50: {T}.distributed.parameter_servers: 1 with strategy allreduce; leave it out",
    ),
    "a role": (
        HEAD + "    distributed: {workers: 2, hardware: {server: {cpus: 1}}}\n",
        f"4:42: {T}.distributed.hardware.server: the name 'server'; a role is chief, worker or ps",
    ),
    "an uneven batch": (
        HEAD + "    distributed: {workers: 3}\n    batch: {global: 256}\n",
        f"5:21: {T}.batch.global: 256 cannot be shared evenly by 3 workers; write a multiple of 3",
    ),
    "two batches": (
        HEAD + "    batch: {global: 2, per_worker: 1}\n",
        f"4:12: {T}.batch: both of `global` and `per_worker`",
    ),
    "a bare batch": (
        HEAD + "    batch: 2\n",
        f"4:12: {T}.batch: the number 2; write {{global: N}} or {{per_worker: N}}",
    ),
    # the rest
    "a framework": (
        HEAD + "    framework: pytroch\n",
        f"4:16: {T}.framework: unknown framework 'pytroch'; did you mean 'pytorch'?",
    ),
    "an image": (
        HEAD + "    framework: a/b:1\n",
        f"4:16: {T}.framework: the text 'a/b:1'; an image goes beside it",
    ),
    "a search for nothing": (
        HEAD + "    search: {metric: a, goal: max}\n",
        f"4:13: {T}.search: a search without `parameters`",
    ),
    "a search for the best value by the other goal": (
        PLACE + "    parameters: {x: [1, 2]}\n    search: {metric: a, goal: max, best: min}\n",
        f"5:42: {T}.search.best: best: min, but goal: max; write best: max for the best value of a task",
    ),
    "a search without goal": (
        HEAD + "    search: {metric: a}\n",
        f"4:13: {T}.search: no `goal`; write goal: max or goal: min",
    ),
    "a search without end": (
        PLACE + "    parameters: {x: [1, 2]}\n    search: {metric: a, goal: max, sampler: tpe}\n",
        f"5:13: {T}.search: sampler tpe without `samples`; write how many tasks to try",
    ),
    "two sources": (
        HEAD + "    data: {x: {volume: u, url: b}}\n",
        f"4:15: {T}.data.x: volume and url together; give exactly one of volume, url, dir, from, model",
    ),
    "staged files": (
        HEAD + "    data: {x: {volume: v, stage: hdfs}}\n",
        f"4:34: {T}.data.x.stage: `stage` without the `url` of an object store (s3://BUCKET/PREFIX); "
        "only that is staged",
    ),
    "staged file": (
        HEAD + "    data: {x: {url: file:///x, stage: hdfs}}\n",
        f"4:39: {T}.data.x.stage: `stage` with file://, which names one file; write s3://BUCKET/PREFIX, "
        "or without file:// a directory of this machine",
    ),
    "staged somewhere": (
        HEAD + "    data: {x: {url: s3://b/x, stage: hdfs, at: x}}\n",
        f"4:48: {T}.data.x.at: `at` with `stage: hdfs`; such data are no files of the node",
    ),
    "staged elsewhere": (
        HEAD + "    data: {x: {url: s3://b/x, stage: hfds}}\n",
        f"4:38: {T}.data.x.stage: the text 'hfds'; did you mean 'hdfs'?",
    ),
    "Hadoop for nothing": (
        HEAD + "    data: {x: {url: s3://b/x, hadoop: /opt/hadoop}}\n",
        f"4:39: {T}.data.x.hadoop: `hadoop` without `stage: hdfs`",
    ),
    "no source": (
        HEAD + "    data: {x: {}}\n",
        f"4:15: {T}.data.x: no source; give exactly one of volume, url, dir, from, model",
    ),
    "best of nothing": (
        HEAD + "    data: {x: {volume: v, best: a}}\n",
        f"4:33: {T}.data.x.best: `best` without `from`",
    ),
    "a way out": (
        HEAD + "    data: {x: {volume: v, at: a/../..}}\n",
        f"4:31: {T}.data.x.at: a path with '..'",
    ),
    "a pattern": (
        HEAD + "    metrics: {pattern: '('}\n",
        f"4:24: {T}.metrics.pattern: no regular expression (missing )",
    ),
    "a pattern without groups": (
        HEAD + "    metrics: {pattern: 'x'}\n",
        f"4:24: {T}.metrics.pattern: no named group",
    ),
    "an objective": (
        HEAD + "objective: cheap\n",
        "4:12: objective: the text 'cheap'; did you mean 'cheapest'?",
    ),
    "half an objective": (
        HEAD + "objective: {time: 1}\n",
        "4:12: objective: not two weights above 0; write cheapest",
    ),
    "a policy's share": (
        HEAD + "objective: {policy: scala-opt, p: 2}\n",
        "4:35: objective.p: 2; write more than 0 and at most 1, such as 0.8",
    ),
    "a share without a policy": (
        HEAD + "objective: {p: 0.8}\n",
        "4:12: objective: not two weights above 0; write cheapest",
    ),
    "a main": (HEAD + "main: a.py\n", "4:1: main: `main` without a wheel as `code`; leave it out"),
    "adapt without an end": (
        HEAD + "    adapt: true\n",
        f"4:12: {T}.adapt: whether a change pays is known only of what has an end; write `steps`",
    ),
    "shapes": (
        HEAD + "    profile: {shapes: many}\n",
        f"4:23: {T}.profile.shapes: the text 'many'; write auto or a list",
    ),
}


@pytest.mark.parametrize(("text", "expected"), KEYS.values(), ids=KEYS.keys())
def test_a_mistake_is_found_at_its_place(mistakes, text, expected):
    [line] = mistakes(text)
    assert line.startswith(f"recipe.yaml:{expected}")


def test_all_mistakes_are_reported_in_order(mistakes):
    lines = mistakes(
        "budget: {total: 20}\n"
        "experiments:\n"
        "  a: {command: x, retires: 1, workers: 0}\n"
        "  b: {after: [c], command: 'echo {{x}}', timeout: soon}\n"
    )
    assert [line.split(": ")[0] for line in lines] == [
        f"recipe.yaml:{place}" for place in ("1:17", "3:19", "3:40", "4:15", "4:34", "4:51")
    ]


def test_figure_1_as_printed_says_what_is_lost(mistakes):
    [line] = mistakes("experiments:\nmnist:\nframework: pytorch\nparameters:\nlr:\nrange: 0.1-0.3\n")
    assert line.startswith(
        "recipe.yaml:1:1: experiments: nothing below `experiments`, and 'mnist' at line 2 is not indented"
    )
