"""A model for another engine: every parameter under each of its names, an adapter apart; a recipe without its engine."""

from __future__ import annotations

import importlib.util
import json

import pytest

from practicum import build, config
from practicum.errors import MissingExtra, UserError
from practicum.types import Weights
from practicum.verbs import training

torch = pytest.importorskip("torch", reason="needs the extra [train]")

from practicum.models.adapter import add_adapter  # noqa: E402
from practicum.models.load import load_tensors, new_model  # noqa: E402
from practicum.sampling.model_folder import ModelFolder  # noqa: E402


def tiny(seed: int = 0, tied: bool = True):
    shape = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    return new_model(shape | {"num_attention_heads": 2, "tie_word_embeddings": tied}, seed)


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_holds_an_untied_model_of_the_same_weights_and_so_does_every_publication(tied: bool) -> None:
    old, new = tiny(0, tied), tiny(1, tied)
    folder = ModelFolder(old, "bfloat16")
    table = json.loads((folder.path / "config.json").read_text())
    assert (table["tie_word_embeddings"], table["architectures"]) == (False, ["LlamaForCausalLM"])
    for model in (old, new):
        if model is new:
            folder.check(Weights(1, "", dict(new.named_parameters())))
            folder.write(dict(new.named_parameters()))
        found = load_tensors(folder.path / "model.safetensors")
        assert set(found) == set(model.state_dict())
        assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in model.state_dict().items())
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_of_an_adapter_the_base_stays_and_the_adapter_lies_apart_in_pefts_format() -> None:
    model = tiny()
    plain = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    add_adapter(model, "tiny", rank=4, alpha=8.0, seed=0)
    folder = ModelFolder(model, "float32")
    base, adapter = (
        load_tensors(folder.path / "model.safetensors"),
        load_tensors(folder.adapter / "adapter_model.safetensors"),
    )
    assert set(base) == set(plain) and all(torch.equal(base[name], plain[name]) for name in plain)
    assert adapter["model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (4, 32)
    described = json.loads((folder.adapter / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"]) == (4, 8.0)
    with pytest.raises(UserError, match=r"12 tensors are unknown, such as lm_head\.weight"):
        folder.check(Weights(1, "", plain))
    folder.remove()


def test_weights_that_do_not_fit_are_named() -> None:
    model = tiny()
    folder = ModelFolder(model, "float32")
    good = dict(model.named_parameters())
    for broken, problem in [
        (good | {"model.layers.9.bias": torch.zeros(1)}, "1 tensors are unknown, such as model.layers.9.bias"),
        ({name: good[name] for name in list(good)[1:]}, "1 tensors are missing, such as "),
        (
            good | {"model.norm.weight": torch.zeros(3)},
            r"of another shape, such as model.norm.weight \(3,\) for \(32,\)",
        ),
    ]:
        with pytest.raises(UserError, match=problem):
            folder.check(Weights(1, "broken", broken))
    folder.check(
        Weights(
            1, "by its other name", {**{n: good[n] for n in list(good)[1:]}, "lm_head.weight": good[next(iter(good))]}
        )
    )
    folder.remove()
    with pytest.raises(UserError, match="dtype must be one of auto, float32, bfloat16, found 'int8'"):
        ModelFolder(model, "int8")


def test_how_weights_reach_vllm_is_a_setting_of_vllm_only() -> None:
    with pytest.raises(UserError, match=r"sampler\.weights would have no effect"):
        config.load("recipes/tiny.toml", ["sampler.weights=folder"])
    assert config.load("recipes/tiny.toml", ["sampler.kind=vllm", "sampler.weights=folder"]).sampler.slots == 128


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_a_recipe_that_asks_for_it_is_told_the_commands_before_any_work(tmp_path) -> None:
    recipe = config.load("recipes/tiny.toml", ["sampler.kind=vllm"])
    with pytest.raises(MissingExtra, match=r'pip install "practicum\[vllm\]"; without a GPU say "make vllm"'):
        training.train(recipe, tmp_path / "run")
    with pytest.raises(MissingExtra, match="this needs vllm, which is not installed"):
        build.model_stage(recipe, "no-such-model")
    assert not (tmp_path / "run").exists()
