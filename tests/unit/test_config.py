"""Recipes: what is read, and what a mistake is answered with."""

import pytest

from practicum.config import RunConfig, as_toml, load
from practicum.errors import UserError


def recipe(tmp_path, text=""):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_an_empty_recipe_is_all_defaults_and_a_written_one_reads_back_equal(tmp_path):
    config = load(recipe(tmp_path))
    assert config == RunConfig()
    changed = load(recipe(tmp_path, "[environment]\nkind = 'retail'\nlevels = [1, 2]\n[trainer]\nsteps = 3\n"))
    assert changed.environment.options == {"levels": [1, 2]}
    assert load(recipe(tmp_path, as_toml(changed))) == changed


def test_settings_change_a_recipe(tmp_path):
    config = load(recipe(tmp_path), ["trainer.steps=30", "model.name=mine", "evaluation.dev_steps=[0, 1]", "seed=4"])
    assert (config.trainer.steps, config.model.name, config.evaluation.dev_steps, config.seed) == (
        30,
        "mine",
        (0, 1),
        4,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainer]\nlearning_rat = 1e-5", r"unknown key trainer\.learning_rat; did you mean learning_rate\?"),
        ("[trianer]\nsteps = 1", r"unknown key trianer; did you mean trainer\?"),
        ("trainer = 3", r"trainer is a section, found 3"),
        ("[trainer]\nsteps = 'ten'", r"trainer\.steps needs int, found 'ten'"),
        ("[trainer]\nsteps = true", r"trainer\.steps needs int, found True"),
        ("[trainer]\nsteps = 1.5", r"trainer\.steps needs int, found 1\.5"),
        ("[simulator]\ngroup_size = 1", "group_size must be at least 2"),
        ("[simulator]\ntemperature = 0.0", "temperature must be above 0 in training"),
        ("[simulator]\nturn_discount = 1.01", "turn_discount must lie between 0 and 1, found 1.01"),
        ("[simulator]\ntruncated_reward = 1.5", "truncated_reward must lie between 0 and 1, found 1.5"),
        ("[imitation]\ndemonstrations = 100", "only 72 training tasks can be demonstrated"),
        ("[sampler]\nkind = 'magic'", "sampler.kind 'magic' is unknown; known: local"),
        ("[trainer\nsteps = 1", "is not TOML"),
        ("[simulator]\nrewards = {success = 'much'}", r"simulator\.rewards\.success needs float"),
    ],
)
def test_a_mistake_names_the_key_what_was_found_and_what_is_known(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load(recipe(tmp_path, text))


def test_a_missing_recipe_and_a_setting_without_value_are_mistakes(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"--set needs section\.key=value, found 'trainer\.steps'"):
        load(recipe(tmp_path), ["trainer.steps"])
    with pytest.raises(UserError, match="seed is not a section"):
        load(recipe(tmp_path, "seed = 1"), ["seed.x=1"])
