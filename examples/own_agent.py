"""An agent of your own, any function that talks to the model, and a function that says how good its answer was."""

import practicum
from practicum import Message, Task


async def agent(task, model):
    """A draft, then a second look at it: two model calls, both recorded, both learned from."""
    talk = [Message("user", f"{task.prompt} Draft an answer.")]
    talk.append(await model.chat(talk))
    talk.append(Message("user", "Now the final answer, one word only."))
    return (await model.chat(talk)).content


def reward(task, answer):
    """The agent never sees `task.secret`; a judge does."""
    word = task.secret["word"]
    return {"success": float(answer.strip().lower() == word), "named": float(word in answer.lower())}


colours = ["red", "amber", "green", "blue", "white"]
tasks = [
    Task(f"mix_{n}", f"What do you see where {colour} light falls on wall {n}?", secret={"word": colour})
    for n, colour in enumerate(colours * 4)
]
folder, report = practicum.train("examples/quick.toml", tasks=tasks, agent=agent, reward=reward)

# The model of quick.toml never saw such a question, and two steps are too few: expect 0 %.
for name, figures in report["test"].items():
    print(f"{name}: {figures['success']:.0%} of {figures['n_tasks']} tasks in {figures['turns']:.1f} model calls")
