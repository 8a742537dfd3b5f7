"""Make the stored imitation start of recipes/tiny.toml: a model that imitates careless clerks.

They look into the right box and take any item, so their imitator succeeds about one time in five. Half of each update is
random text written twice, from which a million random parameters learn what quoting is.
Run: python benchmarks/tiny_start.py [FOLDER of a model to go on from]   (about ten minutes on one core)
"""

import asyncio
import random
import sys
from pathlib import Path

from practicum import build, config
from practicum.environments.tiny import careless
from practicum.learning.batches import Row, rows_of
from practicum.learning.imitation import mean_loss
from practicum.learning.losses import imitation
from practicum.learning.policy import Policy
from practicum.learning.trainer import Updater, UpdateSettings
from practicum.models.load import load_model, new_model, save_model
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
LEARNED = 0.08
"Mean nats per token: choosing one of five items costs 0.06 of them, and no imitator can know that choice."


def copied(draw: random.Random) -> Row:
    """Words in random order, twice; only the second time can be foreseen."""
    text = " ".join(
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=draw.randint(1, 4))) for _ in range(8)
    )
    tokens = (*text.encode(), 10, *text.encode())
    half = len(text) + 1
    return Row(tokens, tuple(range(half, len(tokens))), (0.0,) * (len(tokens) - half), 1.0, 1.0)


def main() -> None:
    """Careless demonstrations of 1,500 boxes of the training split, until the dev demonstrations are foreseen."""
    recipe = config.load(HOME / "recipes/tiny.toml", ["tasks.train=1500"])
    splits = build.tasks_of(recipe)
    stage = build.scripted_stage(recipe)

    async def shown(tasks):
        played = [await demonstrate(stage, lambda _, task, n: careless(task.data["box"], n), task, 0) for task in tasks]
        return [row for trajectory in played for row in rows_of(trajectory, 1.0)]

    rows, dev_rows = asyncio.run(shown(splits["train"])), asyncio.run(shown(splits["dev"]))
    model = load_model(sys.argv[1]) if len(sys.argv) > 1 else new_model(SHAPE, seed=0)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    policy = Policy(model, autocast=False)
    updater = Updater(policy, UpdateSettings(1.5e-3, 50, 0.01, 1.0, 16_384))
    draw = random.Random(0)
    for number in range(1, 6001):
        batch = [*draw.sample(rows, 16), *(copied(draw) for _ in range(16))]
        updater.update(batch, lambda scores, _: imitation(scores.logprobs_P))
        if number % 50 == 0:
            loss = mean_loss(policy, dev_rows, 16_384)
            print(f"update {number}: {loss:.4f} nats per token on dev", flush=True)
            save_model(model, HOME / "src/practicum/models/shipped/tiny-start")
            if loss < LEARNED:
                break


if __name__ == "__main__":
    main()
