"""Which of several is better, on the same tasks? Scripts first: they show whether your tasks are sound."""

import practicum

recipe = "recipes/tiny.toml"

# The expert must do every task, and nobody must do none: else the tasks or their verifier are wrong.
expert = practicum.evaluate(recipe, policy="expert", split="dev")
nobody = practicum.evaluate(recipe, policy="noop", split="dev")
assert expert.summary()["success"] == 1.0 and nobody.summary()["success"] == 0.0

# This model was made for this world, so that its success is real; it presses the right button one time in five.
model = practicum.evaluate(recipe, split="dev", attempts=4)
chance = practicum.evaluate(recipe, policy="random", split="dev", attempts=4)

comparison = practicum.compare(chance=chance, model=model)
for system in comparison.systems:
    print(f"{system.name}: {system.evaluation.interval}, done at least once in {system.k}: {system.at_least_once}")
print(comparison.rows[0].verdict)
