"""What learns: the algorithm, the model under its adapter, the trainer, the warm-up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from practicum.build.stages import torch_needed
from practicum.config import CriticConfig, LoraConfig, RunConfig, TrainerConfig
from practicum.errors import UserError
from practicum.types import stream_seed

if TYPE_CHECKING:
    from practicum.learning.algorithms import Algorithm
    from practicum.learning.trainer import Trainer


def adapt(config: RunConfig, model: Any) -> None:
    """Freeze the model under a new adapter where the recipe asks for one."""
    from practicum.models.adapter import add_adapter, has_adapter

    if not config.lora.rank:
        return
    if has_adapter(model):
        raise UserError(
            f"{config.model.name} is an adapter already, and is trained on as it is; leave [lora] out, or name its base"
        )
    add_adapter(model, config.model.name, config.lora.rank, config.lora.alpha, stream_seed(config.seed, "lora"))


def learned_by(model: Any) -> dict[str, Any]:
    """The parameters of a model that learn, by name: all, or its adapter's."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def algorithm_of(config: RunConfig) -> Algorithm:
    """The recipe's algorithm. Raises UserError for settings that it would not read."""
    from practicum.learning.algorithms import Knobs, algorithm

    trainer = config.trainer
    with torch_needed():
        chosen = algorithm(trainer.algorithm, Knobs(trainer.clip, trainer.gamma, trainer.gae_lambda))
    default, names = TrainerConfig(), {"clip": "clip", "gamma": "gamma", "lam": "gae_lambda"}
    ignored = [
        f"trainer.{key}"
        for knob, key in names.items()
        if knob not in chosen.knobs and getattr(trainer, key) != getattr(default, key)
    ]
    if config.lora.alpha != LoraConfig().alpha and not config.lora.rank:
        ignored.append("lora.alpha (lora.rank is 0)")
    if config.critic != CriticConfig() and not chosen.needs_critic:
        ignored.append("[critic]")
    if not trainer.kl:
        of_leash = ("kl_in", "reference")
        ignored += [f"trainer.{key}" for key in of_leash if getattr(trainer, key) != getattr(default, key)]
    if ignored:
        raise UserError(
            f"{', '.join(ignored)} would have no effect: trainer.algorithm is {chosen.name!r} and trainer.kl "
            f"{trainer.kl:g}; leave it out, or choose what uses it"
        )
    return chosen


def trainer_of(config: RunConfig, model: Any, chosen: Algorithm) -> Trainer:
    """Actor, critic, reference and their optimizers; 'auto' precision is measured on this machine."""
    from practicum.learning.critic import Critic
    from practicum.learning.policy import Policy, faster_with_autocast
    from practicum.learning.trainer import CriticSettings, Leash, Trainer
    from practicum.models.load import load_tokenizer

    trainer, critic = config.trainer, config.critic
    autocast = faster_with_autocast(model) if trainer.precision == "auto" else trainer.precision == "autocast"
    built = Trainer(
        Policy(model, autocast),
        chosen,
        update_settings(config, model, trainer.learning_rate, trainer.warmup_updates),
        epochs=trainer.epochs,
        minibatches=trainer.minibatches,
        shuffled_rewards=trainer.shuffled_rewards,
        seed=stream_seed(config.seed, "trainer"),
        tokenizer=load_tokenizer(config.model.name),
        leash=Leash(trainer.kl, in_reward=trainer.kl_in == "reward"),
        critic=CriticSettings(
            Critic(model, autocast),
            update_settings(config, model, critic.learning_rate, critic.warmup_updates),
            critic.clip,
            critic.warmup_steps,
        )
        if chosen.needs_critic
        else None,
    )
    if trainer.reference == "base":
        built.refer()
    return built


def update_settings(config: RunConfig, model: Any, learning_rate: float, warmup_updates: int) -> Any:
    """How gradients become steps, for warm-up or reinforcement."""
    from practicum.learning.budget import tokens_at_once
    from practicum.learning.updater import UpdateSettings

    trainer = config.trainer
    tokens = tokens_at_once(model, trainer.tokens_per_microbatch)
    return UpdateSettings(learning_rate, warmup_updates, trainer.weight_decay, trainer.max_grad_norm, *tokens)


def warm_up_of(config: RunConfig, policy: Any) -> Any:
    """Imitation with the recipe's settings."""
    from practicum.learning.imitation import imitate

    imitation = config.imitation
    return partial(
        imitate,
        policy,
        settings=update_settings(config, policy.model, imitation.learning_rate, imitation.warmup_updates),
        rows_per_update=imitation.rows_per_update,
        epochs=imitation.epochs,
        plateau=imitation.plateau,
        seed=stream_seed(config.seed, "imitation"),
    )
