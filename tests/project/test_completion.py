"""``needle completion``: what shells offer; ``--set``: a recipe's own settings."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from needle import cli, recipes
from needle.errors import OptionError
from needle.recipes import Recipe, Settings


def offered(script, *words):
    """Return what bash offers for the last word."""
    line = " ".join(words)
    run = f'{script}\nCOMP_WORDS=({line} "")\nCOMP_CWORD={len(words) - 1}\n'
    run += '[ -n "$LAST" ] && COMP_WORDS[COMP_CWORD]=$LAST\n_needle\necho "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, timeout=60)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_offers_commands_options_and_recipes(capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert offered(script, "needle", "tr") == ["train"]
    assert offered(script, "needle", "train", "mlp-") == ["mlp-mnist"]
    assert {"--resume", "--record"} <= set(offered(script, "needle", "train", "--re"))
    assert offered(script, "needle", "sample", "--top") == ["--top-k", "--top-p"]


def test_the_other_shells_know_the_same(capsys):
    assert cli.main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert "bashcompinit" in text and all(name in text for name in recipes.names())
    assert cli.main(["completion", "fish"]) == 0
    text = capsys.readouterr().out
    assert "complete -c needle -n '__fish_seen_subcommand_from train' -l batch-size" in text
    assert "__fish_seen_subcommand_from train' -f -a mlp-mnist" in text
    assert cli.main(["completion", "tcsh"]) == 2


class Tiny(Recipe):
    name = "tiny"
    hidden = 4
    dropout = 0.5
    level = "bytes"
    tied = False
    batch_size = 2
    lr = 0.1

    def load(self, report):
        self.width = 2 * self.hidden


def test_settings_of_a_recipe_are_read_with_their_types():
    own = {"hidden": 4, "dropout": 0.5, "level": "bytes", "tied": False, "clip": None}
    assert recipes.choices(Tiny) == own
    texts = ["hidden=8", "dropout=1", "level=a=b", "tied=TRUE", "clip=2"]
    values = recipes.read_choices(Tiny, texts)
    assert values == {"hidden": 8, "dropout": 1.0, "level": "a=b", "tied": True, "clip": 2.0}
    recipe = Tiny(Settings(own=values), print)
    assert (recipe.width, recipe.level, recipe.clip, Tiny.hidden) == (16, "a=b", 2.0, 4)
    for text, message in (
        ("hidden", "expected NAME=VALUE"), ("hiden=3", "did you mean 'hidden'"),
        ("hidden=2.5", "an integer"), ("tied=1", "true or false"), ("dropout=x", "a number"),
        ("lr=1", "unknown setting 'lr'"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            recipes.read_choices(Tiny, [text])
    for own in ({"hidden": "8"}, {"hiden": 8}):
        with pytest.raises(OptionError):
            Tiny(Settings(own=own), print)


def test_the_command_line_names_wrong_settings(capsys):
    assert cli.main(["train", "mlp-mnist", "--set", "hiden=3"]) == 2
    assert "did you mean 'hidden'" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "nowhere", "--set", "hidden=3"]) == 2
    assert "remove --set" in capsys.readouterr().err
