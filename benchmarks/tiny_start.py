"""Make the stored imitation start of recipes/tiny.toml: a model that imitates careless clerks.

They look into the right box and take any item, so their imitator succeeds about one time in five. Before that the
model learns to copy, on random text that is written twice: a million random parameters know nothing of quoting.
Run: python benchmarks/tiny_start.py   (about six minutes on two cores)
"""

import asyncio
import random
from pathlib import Path

from practicum import build, config
from practicum.environments.tiny import careless
from practicum.learning.batches import Row
from practicum.learning.imitation import imitate
from practicum.learning.losses import imitation
from practicum.learning.policy import Policy
from practicum.learning.trainer import Updater, UpdateSettings
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


def copied(draw: random.Random) -> Row:
    """Words in random order, twice; only the second time can be foreseen."""
    text = " ".join(
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=draw.randint(1, 4))) for _ in range(8)
    )
    tokens = (*text.encode(), 10, *text.encode())
    half = len(text) + 1
    return Row(tokens, tuple(range(half, len(tokens))), (0.0,) * (len(tokens) - half), 1.0, 1.0)


def learn_to_copy(policy: Policy, updates: int) -> None:
    """Until the second writing costs next to nothing."""
    draw = random.Random(0)
    updater = Updater(policy, UpdateSettings(2e-3, 50, 0.01, 1.0, 16_384))
    for number in range(updates):
        rows = [copied(draw) for _ in range(32)]
        loss = updater.update(rows, lambda scores, _: imitation(scores.logprobs_P))["loss"]
        if number % 50 == 0:
            print(f"copying, update {number}: {loss:.3f}", flush=True)
        if loss < 0.05:
            break


def main() -> None:
    """Careless demonstrations of 1,500 boxes of the training split, imitated until dev stops improving."""
    recipe = config.load(HOME / "recipes/tiny.toml", ["tasks.train=1500"])
    splits = build.tasks_of(recipe)
    stage = build.scripted_stage(recipe)

    async def shown(tasks, attempt):
        return [
            await demonstrate(stage, lambda _, task, n: careless(task.data["box"], n), task, attempt) for task in tasks
        ]

    model = new_model(SHAPE, seed=0)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    policy = Policy(model, False)
    learn_to_copy(policy, 2000)
    settings = UpdateSettings(1e-3, 20, 0.01, 1.0, 16_384)
    demonstrations, dev = asyncio.run(shown(splits["train"], 0)), asyncio.run(shown(splits["dev"], 0))
    for epoch in imitate(policy, demonstrations, dev, settings, rows_per_update=32, epochs=12, plateau=0.005, seed=0):
        print({name: round(value, 4) for name, value in epoch.items()}, flush=True)
    save_model(model, HOME / "src/practicum/models/shipped/tiny-start")


if __name__ == "__main__":
    main()
