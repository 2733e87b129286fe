"""`first_recipe`: what is seen of scripts, without running them."""

from __future__ import annotations

import pytest

from trainmaster.service.first_recipe import first_recipe
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

ARGPARSE = """
import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("-l", "--lr", type=float, default=0.1)
p.add_argument("--checkpoint-dir", default="ckpt")
p.add_argument("--save", default="model.pt")
p.add_argument("--save-model", action="store_true")
p.add_argument("corpus")
print("epoch {} loss {:.3f}".format(1, 2.0))
open("words.txt")
"""
CLICK = """
import click
@click.command()
@click.option("--outdir", required=True)
@click.option("--data", required=True)
@click.option("--fast/--slow", is_flag=True)
def main(**_): print(f"accuracy: {1.0}")
"""
HYDRA = """
import hydra
@hydra.main(config_path="conf", config_name="config", version_base=None)
def main(cfg): torch.save({}, "weights.pt")
"""
CONSTANTS = """
out_dir = "out"
learning_rate = 6e-4
exec(open("configurator.py").read())
"""
ABSL = """
from absl import app, flags, logging
FLAGS = flags.FLAGS
flags.DEFINE_float("learning_rate", 0.1, "rate")
flags.DEFINE_string("model_dir", None, "where it saves")
flags.DEFINE_bool("fast", False, "no value")
flags.DEFINE_enum("set", None, ["a", "b"], "which", required=True)
flags.DEFINE_list("corpora", None, "which")
flags.mark_flags_as_required(["corpora"])
logging.info("step %d loss %.3f", 1, 2.0)
"""
LIGHTNING = "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n"


@pytest.mark.parametrize(
    ("source", "by", "command", "notes"),
    [
        (
            ARGPARSE,
            "argparse",
            'python train.py --lr {{lr}} --checkpoint-dir "$TRAINMASTER_CHECKPOINT_DIR" '
            '--save "$TRAINMASTER_OUTPUT_DIR/model.pt"',
            ["it needs corpus", "it names words.txt, which is not there"],
        ),
        (CLICK, "click", 'python train.py --outdir "$TRAINMASTER_OUTPUT_DIR"', ["it needs --data"]),
        (
            ABSL,
            "absl",
            'python train.py --learning_rate {{learning_rate}} --model_dir "$TRAINMASTER_OUTPUT_DIR"',
            ["it needs --set,", "it needs --corpora,"],
        ),
        (
            HYDRA,
            "Hydra",
            'python train.py hydra.run.dir="$TRAINMASTER_OUTPUT_DIR" model.lr={{model_lr}}',
            ["no loss or accuracy"],
        ),
        (
            CONSTANTS,
            "configurator.py",
            'python train.py --out_dir="$TRAINMASTER_OUTPUT_DIR" --learning_rate={{learning_rate}}',
            [],
        ),
        (
            LIGHTNING,
            "LightningCLI",
            'python train.py fit --trainer.default_root_dir "$TRAINMASTER_OUTPUT_DIR"',
            ["`python train.py fit --help` shows them", "no loss was found"],
        ),
        ("print('loss 1')", "", "python train.py", ["it takes no options", "no option says where it saves"]),
    ],
)
def test_each_kind_of_options(tmp_path, source, by, command, notes):
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("model: {lr: 0.1, name: x}\nhydra: {job: {}}\n")
    found = first_recipe(tmp_path, None, may_run=False)
    recipe = Recipe.from_text(found.recipe, directory=tmp_path)
    assert (found.by, recipe.experiments["train"].command) == (by, command)
    for note in notes:
        assert [each for each in found.notes if note in each], found.notes


def test_a_script_that_knows_where_models_are_kept_is_not_told(tmp_path):
    (tmp_path / "train.py").write_text("import os\nprint('loss 1', os.environ['TRAINMASTER_OUTPUT_DIR'])")
    assert not [each for each in first_recipe(tmp_path, None, may_run=False).notes if "kept" in each]


def test_the_likeliest_script_is_taken_and_data_beside_it(tmp_path):
    project = tmp_path / "project"
    (project / "tests").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    for name in ("eval.py", "tests/train.py", "setup.py"):
        (project / name).write_text("if __name__ == '__main__': pass")
    (project / "train_net.py").write_text("if __name__ == '__main__': load('../data')\nprint('loss: 1')")
    found = first_recipe(project, None, may_run=False)
    assert (found.script, found.others, found.metrics) == ("train_net.py", ["eval.py"], ["loss"])
    source = Recipe.from_text(found.recipe).experiments["train"].data["data"]
    assert (source.directory, source.at) == ("../data", "../data")


@pytest.mark.parametrize(
    ("files", "script", "says"),
    [
        ({}, None, "there is no script"),
        ({"a.awk": "BEGIN {}"}, "a.awk", "is no Python"),
        ({"a.py": "def"}, None, "is no Python"),
        ({}, "b.py", "No such file"),
    ],
)
def test_what_cannot_be_looked_at(tmp_path, files, script, says):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=says):
        first_recipe(tmp_path, script, may_run=False)


@pytest.mark.parametrize(
    ("files", "script", "command"),
    [
        (("prep.sh", "train.sh"), None, "bash train.sh"),
        (("fit.R",), None, "Rscript fit.R"),
        (("fit.jl", "fit.py"), "fit.jl", "julia fit.jl"),
        (("fit.awk",), "fit.awk", "./fit.awk"),
    ],
)
def test_scripts_of_other_languages_have_a_command(tmp_path, files, script, command):
    for name in files:
        (tmp_path / name).write_text("{ is no Python")
        (tmp_path / name).chmod(0o755)
    found = first_recipe(tmp_path, script, may_run=False)
    assert Recipe.from_text(found.recipe).experiments["train"].command == command
    assert any("kept" in note for note in found.notes)


def test_of_a_notebook_is_said_how_it_becomes_a_script(tmp_path):
    (tmp_path / "a b.ipynb").write_text("{}")
    with pytest.raises(UsageError) as error:
        first_recipe(tmp_path, None, may_run=False)
    assert "jupyter nbconvert --to script 'a b.ipynb'" in error.value.hint
    (tmp_path / "a.py").write_text("get_ipython().run_line_magic('matplotlib', 'inline')\nprint('loss 1')")
    found = first_recipe(tmp_path, None, may_run=False)
    assert Recipe.from_text(found.recipe).experiments["train"].command == "ipython a.py"


def test_what_a_script_saves_beside_itself_is_moved_to_where_models_are_kept(tmp_path):
    (tmp_path / "train.py").write_text("import torch\nprint('loss 1')\ntorch.save({}, 'best model.pt')")
    found = first_recipe(tmp_path, None, may_run=False)
    command = Recipe.from_text(found.recipe).experiments["train"].command
    assert command == "python train.py\nmv 'best model.pt' \"$TRAINMASTER_OUTPUT_DIR\" || true"
    assert any("it writes best model.pt" in note for note in found.notes)


def test_a_line_that_counts_epochs_shows_its_loss(tmp_path):
    (tmp_path / "train.py").write_text('for e in range(3): print(f"epoch {e} loss {1 / (e + 1):.4f}")\n')
    assert first_recipe(tmp_path, None, may_run=False).metrics == ["epoch", "loss"]
