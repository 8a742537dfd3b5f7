"""TRL's side of `rl_step.py`: one step of GRPOTrainer with an environment, and transformers' `generate()` alone.

Runs in an environment of its own (requirements-trl.txt), as a worker that `rl_step.py` starts and keeps.
Axes: B rows, T tokens.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from importlib.metadata import version
from typing import Any

import torch
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from rl_step_episodes import Channel, Size, carried_out, peak_gb, texts
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n"
    "{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments }}){% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"SmolLM2's own, and what TRL asks of one with tools: calls, and answers of tools under the name that practicum uses."
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"order": "#W0000001"}}}
LEARNING_RATE = 1.5e-5


def read_as_call(tokenizer: Any, ids: Any, *_: Any, **__: Any) -> dict[str, Any]:
    """Every reply is taken for a call, whatever was sampled: lengths are scripted. TRL decodes replies, so do we."""
    return {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True), "tool_calls": [CALL]}


def shop(result: str) -> type:
    """An environment class as TRL takes it, whose tool always gives the same text."""

    class Shop:
        def reset(self, **_: Any) -> None:
            self.looked_up = 0

        def look_up(self, order: str) -> str:
            """Look an order up.

            Args:
                order: Its number.
            """
            self.looked_up += 1
            return result

        def get_reward(self) -> float:
            return random.random()

    return Shop


class OnCommand(TrainerCallback):
    """Holds the trainer between two steps until another is asked for, and times each.

    Example: answer = OnCommand(channel, size) ends `trainer.train()` when something else is asked, kept in `next`.
    """

    def __init__(self, channel: Channel, size: Size) -> None:
        self.channel, self.size = channel, size
        self.next: dict[str, Any] | None = None
        self.began = time.perf_counter()
        self.first = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step that was asked for begins."""
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Answer, then wait for what comes next."""
        self.channel.answer(self.found(time.perf_counter() - self.began))
        self.next = self.channel.next()
        same = self.next is not None and self.next["do"] == "step" and Size(**self.next["size"]) == self.size
        if not same:
            control.should_training_stop = True

    def found(self, wall: float) -> dict[str, Any]:
        """Seconds in all and of sampling, and tokens counted on what was really trained on."""
        trainer = self.trainer
        rows = [row for batch in trainer._buffered_inputs for row in batch["prompt_ids"]]
        batches = trainer._buffered_inputs
        prompt = sum(int(batch["prompt_mask"].sum()) for batch in batches)
        added = sum(int(batch["completion_mask"].sum()) for batch in batches)
        sampled = sum(int((batch["completion_mask"] * batch["tool_mask"]).sum()) for batch in batches)
        taught = sum(int((batch["advantages"] != 0).sum()) for batch in batches)
        return {
            "wall": wall,
            "seconds": {"sample": trainer.sampling_seconds, "learn": wall - trainer.sampling_seconds},
            "tokens": {"rows": len(rows), "row": prompt + added, "sampled": sampled, "taught_rows": taught},
            "peak_gb": peak_gb(),
        }


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer that says how long it sampled."""

    def _generate(self, *args: Any, **rest: Any) -> Any:
        began = time.perf_counter()
        try:
            return super()._generate(*args, **rest)
        finally:
            self.sampling_seconds = time.perf_counter() - began


def configuration(size: Size, options: argparse.Namespace, folder: str) -> GRPOConfig:
    """One optimizer step per generation, no KL, nothing written; everything that costs time without need is off."""
    rows = options.rows_per_batch or max(1, min(16, options.tokens_per_batch // size.context))
    rows = max(r for r in range(1, rows + 1) if size.episodes % r == 0)
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=options.precision == "autocast",
        gradient_checkpointing=False,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=size.episodes // rows,
        steps_per_generation=size.episodes // rows,
        num_generations=size.attempts,
        max_steps=10**6,
        max_completion_length=size.context - size.prompt,
        max_tool_calling_iterations=size.turns - 1,
        generation_kwargs={"max_new_tokens": size.said, "min_new_tokens": size.said},
        temperature=1.0,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )


class Side:
    """The model, once, and what is done with it."""

    def __init__(self, options: argparse.Namespace, channel: Channel) -> None:
        self.options, self.channel = options, channel
        self.texts = texts(options.model)
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        self.tokenizer.chat_template = TEMPLATE
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.generator: Any = None
        grpo.parse_response = read_as_call

    def versions(self) -> dict[str, Any]:
        """Of what is measured."""
        names = ("trl", "torch", "transformers", "accelerate", "tokenizers")
        return {"versions": {name: version(name) for name in names}, "precision": self.options.precision}

    def step(self, size: Size) -> dict[str, Any] | None:
        """Steps of this size until something else is asked for; the answers are given on the way. What came then."""
        dtype = torch.bfloat16 if self.options.precision == "bfloat16" else torch.float32
        model = AutoModelForCausalLM.from_pretrained(self.options.model, dtype=dtype)
        system = {"role": "system", "content": self.texts.system(size)}
        requests = [{"role": "user", "content": self.texts.request(size, task)} for task in range(size.tasks)]
        # A response template tells TRL that replies can be parsed; `read_as_call` does it.
        self.tokenizer.response_template = "scripted"
        with tempfile.TemporaryDirectory() as folder:
            callback = OnCommand(self.channel, size)
            trainer = TimedTrainer(
                model=model,
                args=configuration(size, self.options, folder),
                train_dataset=Dataset.from_list([{"prompt": [system, request]} for request in requests]),
                processing_class=self.tokenizer,
                environment_factory=shop(self.texts.result(size, ended=False)),
                callbacks=[callback],
            )
            callback.trainer = trainer
            trainer.train()
        return callback.next

    @torch.no_grad()
    def generate(self, size: Size) -> dict[str, Any]:
        """Sampling alone: at each turn `generate()` over the whole histories, padded at the left, in bfloat16."""
        if self.generator is None:
            self.generator = AutoModelForCausalLM.from_pretrained(self.options.model, dtype=torch.bfloat16).eval()
        system, template = self.texts.system(size), self.tokenizer.apply_chat_template
        prompts = [
            template(
                [{"role": "system", "content": system}, {"role": "user", "content": self.texts.request(size, task)}],
                add_generation_prompt=True,
                return_dict=False,
            )
            for task in range(size.tasks)
        ]
        told = self.tokenizer(
            f"<|im_end|>\n<|im_start|>user\n{self.texts.result(size, ended=True)}<|im_end|>\n<|im_start|>assistant\n"
        )["input_ids"]
        contexts = [list(prompt) for prompt in prompts for _ in range(size.attempts)]
        began = time.perf_counter()
        for turn in range(size.turns):
            contexts = [context + (told if turn else []) for context in contexts]
            for start in range(0, len(contexts), self.options.generate_rows):
                rows = slice(start, start + self.options.generate_rows)
                contexts[rows] = self.continued(contexts[rows], size.said)
        wall = time.perf_counter() - began
        tokens = {"sampled": size.said * size.turns * len(contexts), "context": len(contexts[0])}
        return {"wall": wall, "tokens": tokens}

    def continued(self, contexts: list[list[int]], tokens: int) -> list[list[int]]:
        """Each context with so many sampled tokens more."""
        padded = self.tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")
        rows_BT = self.generator.generate(
            **padded,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        new_BT = rows_BT[:, padded["input_ids"].shape[1] :].tolist()
        return [context + new for context, new in zip(contexts, new_BT, strict=True)]


def main() -> None:
    """Serve: {"do": "step" | "generate" | "versions"}."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder")
    parser.add_argument("--precision", choices=("autocast", "float32", "bfloat16"), default="autocast")
    parser.add_argument("--rows-per-batch", type=int, default=0)
    parser.add_argument("--tokens-per-batch", type=int, default=1750, help="decides the rows where they are not given")
    parser.add_argument("--generate-rows", type=int, default=128)
    options = parser.parse_args()
    channel = Channel()
    side = Side(options, channel)
    commands = {"generate": side.generate, "versions": side.versions}
    asked = channel.next()
    while asked is not None:
        if asked["do"] == "step":
            asked = side.step(Size(**asked["size"]))
        else:
            channel.answer(carried_out(commands, asked))
            asked = channel.next()


if __name__ == "__main__":
    main()
