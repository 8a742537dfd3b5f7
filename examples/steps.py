"""The loop in your hands: after each step you look at what happened, and stop when you have seen enough."""

import practicum

recipe, folder = "recipes/tiny.toml", "runs/lamps"

# The one world that this small model knows a little: it presses the right button one time in five, and learns the rest
# within half a minute. Here we stop after a few steps.
for step in practicum.steps(recipe, folder):
    success = step.metrics["success"]
    solved = sum(any(attempt.success for attempt in group) for group in step.groups)
    print(f"step {step.number}: {success:.0%} of attempts, {solved} of {len(step.groups)} tasks done at least once")
    if success > 0.5 or step.number == 4:
        break

# The last step left a checkpoint, so that the run can be measured, or gone on with: practicum.train(…, resume=True).
measured = practicum.evaluate(recipe, model=folder, split="dev")
print(f"on tasks not practised: {measured.evaluation.interval}")
