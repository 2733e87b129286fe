"""`--set PATH=VALUE`: keys of a recipe from the command line."""

import pytest

from trainmaster.spec.errors import UsageError

HEAD = "experiments:\n  train:\n    command: echo hi\n"


class TestOverrides:
    def test_values(self, read):
        recipe = read(
            HEAD,
            overrides=[
                "experiments.train.retries=5",
                "budget.total=$5",
                "experiments.train.command=echo =",
                "experiments.train.parameters={x: [1, 2]}",
                "experiments.train.hardware.gpu=k80",
                "seed=7",
            ],
        )
        train = recipe.experiments["train"]
        assert (train.retries, recipe.budget.total_usd, recipe.seed) == (5, 5.0, 7)
        assert (train.command, train.hardware.gpu, len(train.tasks(0))) == ("echo =", "k80", 2)
        assert recipe.source_text == HEAD

    @pytest.mark.parametrize("nothing", ["", "null", "~"])
    def test_taking_away(self, read, nothing):
        recipe = read(HEAD + "    retries: 3\n", overrides=[f"experiments.train.retries={nothing}"])
        assert recipe.experiments["train"].retries == 0

    def test_names_with_dots(self, read):
        recipe = read(
            "experiments: {a.b: {command: x}, a: {command: y}}", overrides=["experiments.a.b.retries=2"]
        )
        assert recipe.experiments["a.b"].retries == 2

    def test_provider(self, read):
        assert read("provider: aws\n" + HEAD, provider="lab").provider == "lab"
        assert read(HEAD).provider == "local"
        set_too = read(HEAD, overrides=["experiments.train.provider=aws"], provider="lab")
        assert (set_too.provider, set_too.experiments["train"].provider) == ("lab", ())

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            ("retries", "--set retries: no path=value"),
            ("=3", "--set =3: no path=value"),
            ("experiments.trian.retries=3", "there is no experiment 'trian'\nDid you mean 'train'?"),
            (
                "experiments.train.command.0=x",
                "experiments.train.command is the text 'echo hi', there is nothing below",
            ),
            ("a..b=3", "an empty key in 'a..b'"),
            ("seed=[", "--set seed=[: not YAML"),
            ("seed=!x 3", "--set seed=!x 3: a YAML tag '!x'"),
        ],
    )
    def test_calls_that_are_wrong(self, read, override, expected):
        with pytest.raises(UsageError) as caught:
            read(HEAD, overrides=[override])
        assert expected in str(caught.value)

    @pytest.mark.parametrize("override", ["lr=3", "parameters.lr=3"])
    def test_a_parameter_that_is_named_alone_is_told_with_its_path(self, read, override):
        with pytest.raises(UsageError) as caught:
            read(HEAD + "    parameters: {lr: [1, 2]}\n", overrides=[override])
        assert caught.value.hint == "Did you mean --set experiments.train.parameters.lr=VALUE?"

    def test_values_that_are_wrong_are_told_from_the_file(self, mistakes):
        [line] = mistakes(HEAD, overrides=["experiments.train.retires=5"])
        assert line == (
            "recipe.yaml:3:5: experiments.train.retires: unknown key 'retires'; did you mean 'retries'? "
            "(given by --set experiments.train.retires=5)"
        )
        [line] = mistakes(HEAD + "    retries: 1\n", overrides=["experiments.train.retries=x"])
        assert line.startswith(
            "recipe.yaml:4:14: experiments.train.retries: the text 'x'; write a whole number"
        )
