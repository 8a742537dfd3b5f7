"""Make the stored imitation start of recipes/tiny.toml: a model that imitates careless clerks.

They look at the lamp and follow last year's code or none, so that their imitator succeeds less than one time in five.
Run: python benchmarks/tiny_start.py   (about two minutes on two cores)
"""

import asyncio
from pathlib import Path

from practicum import build, config
from practicum.environments.tiny import careless
from practicum.learning.imitation import imitate
from practicum.learning.policy import Policy
from practicum.learning.trainer import UpdateSettings
from practicum.models.load import new_model, save_model
from practicum.simulator.demonstrate import demonstrate

HOME = Path(__file__).parents[1]
SHAPE = {
    "vocab_size": 259,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def main() -> None:
    """Careless demonstrations of 1,500 lamps, eight times over: what depends on the colour is learned last."""
    recipe = config.load(HOME / "recipes/tiny.toml", ["tasks.train=1500"])
    splits = build.tasks_of(recipe)
    stage = build.scripted_stage(recipe)

    async def shown(tasks):
        return [await demonstrate(stage, lambda _, t, n: careless(t.data["lamp"], n), task, 0) for task in tasks]

    demonstrations, dev = asyncio.run(shown(splits["train"])), asyncio.run(shown(splits["dev"]))
    model = new_model(SHAPE, seed=0)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    policy = Policy(model, autocast=False)
    for rate, epochs in ((1e-3, 4), (3e-4, 4)):
        settings = UpdateSettings(rate, 20, 0.01, 1.0, 16_384)
        for epoch in imitate(
            policy, demonstrations, dev, settings, rows_per_update=16, epochs=epochs, plateau=-1.0, seed=epochs
        ):
            print({name: round(value, 4) for name, value in epoch.items()}, flush=True)
    save_model(model, HOME / "src/practicum/models/shipped/tiny-start")


if __name__ == "__main__":
    main()
