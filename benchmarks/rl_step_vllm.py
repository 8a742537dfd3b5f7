"""vLLM's side of `rl_step.py`: sampling alone, in process, with its prefix caching.

Runs in an environment of its own, as a worker that `rl_step.py` starts and keeps.
"""

from __future__ import annotations

import argparse
import os
import time
from importlib.metadata import version
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import torch
from rl_step_episodes import Size, serve, texts
from vllm import EngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor


class Side:
    """The engine, made for the longest context asked for so far, and what is done with it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.texts = texts(options.model)
        self.engine: Any = None
        self.requests = 0

    def versions(self) -> dict[str, Any]:
        """Of what is measured."""
        found = {name: version(name) for name in ("vllm-cpu", "torch", "transformers")}
        how = {"threads": torch.get_num_threads(), "openmp": os.environ.get("LD_PRELOAD", "")}
        return {"versions": found, **how, "eager": self.options.eager}

    def ready(self, size: Size) -> None:
        """An engine that can take this size."""
        if self.engine is not None:
            return
        settings = EngineArgs(
            model=self.options.model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=self.options.eager,
            max_model_len=max(896, size.context),
            max_num_seqs=self.options.sequences,
            logprobs_mode="processed_logprobs",
            kv_cache_memory_bytes=int(self.options.cache_gib * 2**30),
            enable_prefix_caching=True,
            disable_log_stats=True,
            block_size=32,
            distributed_executor_backend="uni",
            seed=0,
        ).create_engine_config()
        self.engine = LLMEngine(settings, Executor.get_class(settings), False, multiprocess_mode=False)

    def sample(self, size: Size, logprobs: bool = True) -> dict[str, Any]:
        """All episodes at once, each going on with its next turn as soon as one ends; nothing is known of them before.

        `logprobs`: that of each sampled token is asked for, as reinforcement learning needs it.
        """
        self.ready(size)
        self.engine.reset_prefix_cache()
        system, start = self.texts.system(size), "<|im_start|>assistant\n"
        encode = self.texts.tokenizer.encode
        told = f"<|im_end|>\n<|im_start|>user\n{self.texts.result(size, ended=True)}<|im_end|>\n{start}"
        told_tokens = list(encode(told, add_special_tokens=False).ids)
        histories: dict[str, list[int]] = {}
        turns: dict[str, int] = {}
        began = time.perf_counter()
        for task in range(size.tasks):
            request = self.texts.request(size, task)
            prompt = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{request}<|im_end|>\n{start}"
            for _ in range(size.attempts):
                tokens = list(encode(prompt, add_special_tokens=False).ids)
                name = self.ask(tokens, size.said, logprobs)
                histories[name], turns[name] = tokens, 1
        sampled = 0
        lengths: list[int] = []
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                found = output.outputs[0].token_ids
                history, turn = histories.pop(output.request_id) + list(found), turns.pop(output.request_id)
                sampled += len(found)
                if turn < size.turns:
                    name = self.ask(history + told_tokens, size.said, logprobs)
                    histories[name], turns[name] = history + told_tokens, turn + 1
                else:
                    lengths.append(len(history))
        wall = time.perf_counter() - began
        return {"wall": wall, "tokens": {"sampled": sampled, "context": lengths[0]}, "logprobs": logprobs}

    def ask(self, tokens: list[int], count: int, logprobs: bool) -> str:
        """Hand a prompt in; its name."""
        self.requests += 1
        params = SamplingParams(
            temperature=1.0,
            max_tokens=count,
            ignore_eos=True,  # no seed: with one, vLLM would draw row by row, more slowly
            logprobs=0 if logprobs else None,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.engine.add_request(str(self.requests), {"prompt_token_ids": tokens}, params)
        return str(self.requests)


def main() -> None:
    """Serve: {"do": "sample" | "versions"}."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--cache-gib", type=float, default=1.4)
    parser.add_argument("--eager", action="store_true", help="not compiled, which is slower")
    side = Side(parser.parse_args())
    serve({"sample": side.sample, "versions": side.versions})


if __name__ == "__main__":
    main()
