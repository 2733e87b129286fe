"""What recipes leave open: the command line, the recipe, pyproject.toml, config.toml, what is built in."""

from __future__ import annotations

import pytest

from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.configuration import configured_rows, with_setting
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.recipe_source import configuration_files

HEAD = "experiments:\n  train: {command: echo hi}\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with files; its recipe below it, and the user's configuration beside it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(files):
        for name, text in files.items():
            path = tmp_path / {"config.toml": "config/trainmaster/config.toml"}.get(name, f"project/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "project"

    return write


class TestWhichComesFirst:
    @pytest.mark.parametrize(
        ("recipe", "pyproject", "config", "overrides", "provider", "says"),
        [
            (None, None, None, [], None, "local"),
            (None, None, "one", [], None, "one"),
            (None, "two", "one", [], None, "two"),
            ("three", "two", "one", [], None, "three"),
            ("three", "two", "one", ["provider=four"], None, "four"),
            ("three", "two", "one", ["provider=four"], "five", "five"),
            ("three", None, None, ["provider=null"], None, "local"),
            (None, "two", None, ["provider=null"], None, "local"),
        ],
    )
    def test_each(self, place, recipe, pyproject, config, overrides, provider, says):
        files = {"deep/below/recipe.yaml": (f"provider: {recipe}\n" if recipe else "") + HEAD}
        if pyproject:
            files["pyproject.toml"] = f'[tool.trainmaster]\nprovider = "{pyproject}"\n'
            files["deep/pyproject.toml"] = "[project]\nname = 'nearer, without our table'\n"
        if config:
            files["config.toml"] = f'provider = "{config}"\n'
        found = place(files) / "deep/below"
        assert read_recipe(found, overrides=overrides, provider=provider).provider == says
        made = Recipe.from_dict(
            {"experiments": {"a": {"command": "x"}}, **({"provider": recipe} if recipe else {})},
            directory=found,
            overrides=dict(
                each.split("=") if "null" not in each else ("provider", None) for each in overrides
            ),
            provider=provider,
        )
        assert made.provider == says

    def test_each_cap_by_itself(self, place):
        found = place(
            {
                "recipe.yaml": "budget: {total: $1}\nlabels: {a: own}\n" + HEAD,
                "pyproject.toml": "[tool.trainmaster.budget]\ntotal = '$2'\nper_hour = '$2'\n",
                "config.toml": "budget = {total = '$3', per_hour = '$3', deadline = '3h'}\n"
                "labels = {a = 'x', n = 3}\n",
            }
        )
        assert read_recipe(found).labels == {"a": "own", "n": "3"}
        budget = read_recipe(found).budget
        assert (budget.total_usd, budget.usd_per_hour, budget.deadline_s) == (1, 2, 3 * 3600)

    @pytest.mark.parametrize(
        ("provider", "region"), [(None, "there"), ("aws", "there"), ("lab", None), ("local", None)]
    )
    def test_a_region_is_one_of_its_provider(self, place, provider, region):
        found = place(
            {
                "recipe.yaml": HEAD + "  other.one: {command: x, hardware: {region: mine}}\n",
                "config.toml": "provider = 'aws'\nregion = 'there'\n",
            }
        )
        recipe = read_recipe(found, provider=provider)
        regions = {name: each.hardware.region for name, each in recipe.experiments.items()}
        assert regions == {"train": region, "other.one": "mine"}

    def test_a_text_that_was_sent_takes_only_what_its_reader_names(self, place):
        found = place({"config.toml": "provider = 'aws'\nnotify = [{to = 'cat'}]\n"})
        assert Recipe.from_text(HEAD, directory=found).provider == "local"
        import os

        files = configuration_files(found, os.environ)
        there = Recipe.from_text(HEAD, directory=found, defaults=files)
        assert (there.provider, there.notify) == ("aws", ())
        assert read_recipe(place({"recipe.yaml": HEAD})).notify[0].to == "cat"

    def test_it_travels_with_the_recipe_and_is_in_no_other_text(self, place):
        found = place({"recipe.yaml": HEAD, "config.toml": "provider = 'aws'\nregion = 'there'\n"})
        recipe = read_recipe(found)
        assert recipe.source_text == HEAD
        (found.parent / "config/trainmaster/config.toml").unlink()
        again = Recipe.from_text(recipe.as_yaml())
        assert (again.provider, again.experiments["train"].hardware.region) == ("aws", "there")


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (
                "\nprovder = 'x'\n",
                "config.toml:2:1: provder: unknown key 'provder'; did you mean 'provider'?",
            ),
            ("[budget]\ntotal = 3\n", "config.toml:2:1: budget.total: a budget without a currency: 3"),
            ("[budget]\n\ntotl = '$3'", "config.toml:3:1: budget.totl: unknown key 'totl'"),
            (
                "objective = 'cheapst'",
                "config.toml:1:1: objective: the text 'cheapst'; did you mean 'cheapest'?",
            ),
            ("provider = [1]", "config.toml:1:1: provider: a list; write a provider's name such as local"),
            ("x = \n", "config.toml:1:5: not TOML: Invalid value"),
            ("[[notify]]\nby = 'x'", "config.toml:1:1: notify.0: no `to`; write what tells you"),
        ],
    )
    def test_each_says_file_and_line(self, place, text, says):
        found = place({"recipe.yaml": HEAD, "config.toml": text})
        with pytest.raises(RecipeError) as caught:
            read_recipe(found)
        assert str(caught.value).replace(f"{found.parent}/config/trainmaster/", "").startswith(says)

    def test_of_a_project_the_table_is_named(self, place):
        found = place({"recipe.yaml": HEAD, "pyproject.toml": "[tool.trainmaster]\nregoin = 'x'"})
        with pytest.raises(RecipeError, match=r"pyproject.toml:2:1: tool.trainmaster.regoin: unknown key"):
            read_recipe(found)

    def test_what_is_found_later_names_the_place(self, place):
        found = place({"recipe.yaml": HEAD, "config.toml": "\nprovider = 'aws'"})
        recipe = read_recipe(found)
        refused = recipe.refused([(("provider",), UsageError("no credentials"))])
        assert str(refused).endswith("config.toml:2)")
        assert "(given by " in str(refused)


def test_rows_say_where_each_is_from(place):
    found = place({"config.toml": "provider = 'aws'\n[budget]\ntotal = '$3'\n"})
    import os

    rows = {each["key"]: each for each in configured_rows(configuration_files(found, os.environ))}
    assert (rows["provider"]["value"], rows["provider"]["line"]) == ("aws", 1)
    assert (rows["budget.total"]["value"], rows["budget.total"]["line"]) == ("$3", 3)
    assert rows["objective"] == {"key": "objective", "value": "cheapest", "file": None, "line": None}


@pytest.mark.parametrize(
    ("source", "key", "value", "becomes"),
    [
        ("", "provider", "aws", 'provider = "aws"\n'),
        ("# mine\nprovider = 'x' # why\n", "provider", "aws", '# mine\nprovider = "aws"\n'),
        ("[budget]\ntotal = '$1'\n", "provider", "aws", "provider = \"aws\"\n[budget]\ntotal = '$1'\n"),
        ("[budget]\ntotal = '$1'\n", "budget.total", "$2", '[budget]\ntotal = "$2"\n'),
        ("[budget]\ntotal = '$1'\n", "budget.deadline", "2h", "[budget]\ndeadline = \"2h\"\ntotal = '$1'\n"),
        ("", "notify", "[{to = 'cat'}]", "notify = [{to = 'cat'}]\n"),
        ("", "notify", "[{to: 'cat'}]", 'notify = [{"to" = "cat"}]\n'),
        ("", "labels.a", "{x", 'labels.a = "{x"\n'),
    ],
)
def test_a_value_is_set_and_all_else_stays(source, key, value, becomes):
    assert with_setting(source, key, value) == becomes


@pytest.mark.parametrize(
    ("source", "key"), [("budget = {total = '$1'}\n", "budget.total"), ("notify = [\n]\n", "notify")]
)
def test_what_cannot_be_set_by_line_is_left_alone(source, key):
    with pytest.raises(UsageError, match="line 1"):
        with_setting(source, key, "1")
