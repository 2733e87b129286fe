"""`include` and `env_file`: what stands in other files is part of the recipe, with its places."""

from __future__ import annotations

import pytest

from trainmaster.spec import Recipe, read_recipe
from trainmaster.spec.errors import RecipeError

TOKEN = "hf_0123456789abcdef"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_yaml", ".yaml")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    return write


def refused(path="recipe.yaml"):
    with pytest.raises(RecipeError) as caught:
        read_recipe(path)
    return str(caught.value).split("\n")


class TestInclude:
    @pytest.mark.parametrize(
        ("base", "own", "becomes"),
        [
            ("{a: 1}", "{b: 2}", {"a": "1", "b": "2"}),
            ("{a: 1}", "{a: 2}", {"a": "2"}),
            ("{a: 1, b: 1}", "{a: null}", {"b": "1"}),
            ("{a: 1}", "null", {}),
        ],
    )
    def test_mappings_are_put_together_key_by_key(self, folder, base, own, becomes):
        folder(
            base_yaml=f"env: {base}\n",
            recipe_yaml=f"include: base.yaml\nenv: {own}\nexperiments: {{a: {{command: x}}}}",
        )
        assert read_recipe("recipe.yaml").env == becomes

    def test_lists_and_texts_are_taken_whole_and_secrets_added(self, folder):
        folder(
            base_yaml="secrets: [A, B]\nexperiments: {a: {command: [one, two], after: b}, b: {command: y}}",
            recipe_yaml="include: base.yaml\nsecrets: [B, C]\nexperiments: {a: {command: three}}",
        )
        recipe = read_recipe("recipe.yaml")
        assert recipe.secrets == ("A", "B", "C")
        assert [each.command for each in recipe.experiments.values()] == ["three", "y"]
        assert recipe.experiments["a"].after == ("b",)

    def test_a_later_file_comes_before_an_earlier_one_and_files_include_others(self, folder):
        folder(
            recipe_yaml="include: [one.yaml, below/two.yaml]\nexperiments: {a: {command: x}}",
            one_yaml="env: {A: one, B: one}",
            below__two_yaml="include: three.yaml\nenv: {A: two}",
            below__three_yaml="env: {A: three, C: three}",
        )
        assert read_recipe("recipe.yaml").env == {"A": "two", "B": "one", "C": "three"}

    def test_mistakes_name_the_file_that_they_are_in(self, folder):
        folder(
            recipe_yaml="include: base.yaml\nseed: x\nexperiments: {a: {command: x}}",
            base_yaml="env:\n  A: [1]\nexperiments: {a: {retires: 3}}\n",
        )
        assert sorted(refused()) == [
            "base.yaml:2:6: env.A: a list; write a text, a number, true or false ('' is an empty text)",
            "base.yaml:3:19: experiments.a.retires: unknown key 'retires'; did you mean 'retries'?",
            "recipe.yaml:2:7: seed: the text 'x'; write a whole number",
        ]

    def test_what_is_found_later_names_it_too(self, folder):
        folder(recipe_yaml="include: base.yaml\nexperiments: {a: {command: x}}", base_yaml="\nprovider: aws")
        recipe = read_recipe("recipe.yaml")
        error = recipe.refused([(("provider",), RecipeError("x", []))])
        assert str(error).startswith("base.yaml:2:11: provider")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (
                "include: no.yaml",
                "recipe.yaml:1:10: include: there is no file no.yaml; a path begins at the folder",
            ),
            ("include: recipe.yaml", "recipe.yaml:1:10: include: recipe.yaml includes itself"),
            (
                "include: {a: b}",
                "recipe.yaml:1:10: include: a mapping; write a file's path, or a list of them",
            ),
            (
                "include: list.yaml",
                "recipe.yaml:1:10: include: list.yaml is a list; a part of a recipe is a mapping",
            ),
            ("include: bad.yaml", "bad.yaml:1:5: not YAML"),
        ],
    )
    def test_files_that_cannot_be_included(self, folder, text, says):
        folder(recipe_yaml=text, list_yaml="[1]", bad_yaml="a: [")
        assert refused()[0].startswith(says)

    def test_it_travels_as_one_text(self, folder, tmp_path):
        folder(recipe_yaml="include: base.yaml\nexperiments: {a: {command: x}}", base_yaml="env: {A: 1}")
        recipe = Recipe.model_validate_json(read_recipe("recipe.yaml").model_dump_json())
        (tmp_path / "base.yaml").unlink()
        again = Recipe.from_text(recipe.as_yaml())
        assert (again.env, again.included) == ({"A": "1"}, ())

    def test_a_text_by_itself_includes_nothing(self):
        for key in ("include", "env_file"):
            with pytest.raises(
                RecipeError, match=f"{key}: names a file, and this recipe is a text by itself"
            ):
                Recipe.from_text(f"{key}: /etc/passwd\nexperiments: {{a: {{command: x}}}}")


class TestEnvFile:
    def test_variables_come_after_what_the_recipe_says(self, folder):
        folder(
            recipe_yaml="env_file: .env\nenv: {A: recipe}\n"
            "experiments: {a: {command: x, env_file: [.env, b.env]}}",
            **{".env": "A=file\nB=file\nexport C='x # y'", "b.env": "B=later\n"},
        )
        recipe = read_recipe("recipe.yaml")
        assert recipe.env == {"A": "recipe", "B": "file", "C": "x # y"}
        assert recipe.experiments["a"].env == {"A": "file", "B": "later", "C": "x # y"}

    @pytest.mark.parametrize("line", [f"HF_TOKEN={TOKEN}", f"X={TOKEN}", f"URL=postgres://me:{TOKEN}@db/x"])
    def test_what_looks_secret_is_one_and_its_value_nowhere(self, folder, line):
        name = line.partition("=")[0]
        folder(
            recipe_yaml="env_file: .env\nexperiments: {a: {command: x}}",
            **{".env": f"# {TOKEN}\nA=1\n{line}\n"},
        )
        recipe = read_recipe("recipe.yaml")
        assert (recipe.secrets, recipe.env) == ((name,), {"A": "1"})
        assert TOKEN not in recipe.model_dump_json()
        assert f".env: {name} looks like a secret" in recipe.notes[0]
        again = Recipe.from_text(recipe.as_yaml())
        assert (again.secrets, again.env) == ((name,), {"A": "1"})

    def test_a_named_secret_takes_its_value_from_there(self, folder):
        folder(
            recipe_yaml="env_file: .env\nsecrets: [PIN]\nexperiments: {a: {command: x}}",
            **{".env": "PIN=1234567\n"},
        )
        recipe = read_recipe("recipe.yaml")
        assert (recipe.env, recipe.secrets, recipe.notes) == ({}, ("PIN",), ())
        assert "1234567" not in recipe.model_dump_json()
        assert [each.name for each in recipe.secret_files] == [".env"]

    @pytest.mark.parametrize(
        ("line", "why"), [("hidden value", "no line NAME=VALUE"), ('A="open', "the quote of A")]
    )
    def test_lines_that_are_wrong_are_not_repeated(self, folder, line, why):
        folder(recipe_yaml="env_file: .env\nexperiments: {a: {command: x}}", **{".env": f"B=1\n{line}\n"})
        [told] = refused()
        assert told.startswith(f"recipe.yaml:1:11: env_file: .env:2: {why}")
        assert "hidden" not in told
        assert "open" not in told
