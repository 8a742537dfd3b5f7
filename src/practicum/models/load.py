"""Models and tokenizers from the files that `known.find` found; new tiny models; saving."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.errors import Failure, MissingExtra, UserError, boundary
from practicum.models import adapter
from practicum.models.known import ModelFiles, find
from practicum.models.memory import keep_freed_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = ("float32", "bfloat16", "float16", "auto")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def load_model(name: str | os.PathLike[str] | ModelFiles, dtype: str = "float32") -> PreTrainedModel:
    """A causal language model on the CPU, in eval mode, every dropout rate 0 (sampler and trainer must agree).

    `name` is what `find` takes, or what it gave; a folder with an adapter is its base model with that adapter beside
    it. Tied embeddings are one tensor. `dtype` "auto" is what the weights are stored in.
    Raises UserError for an unknown name, dtype or an unreadable folder, MissingExtra without torch and transformers.

    Example:
        model = load_model("SmolLM2-135M-Instruct", dtype="bfloat16")
    """
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
    torch = _torch()
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = _files(name).folder
    if (folder / adapter.CONFIG).is_file():
        model = load_model(adapter.base_of(folder), dtype)
        with quiet_transformers():
            adapter.load_adapter(model, folder)
        return model
    try:
        with boundary("loading", UserError), quiet_transformers():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            _without_dropout(config)
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # reported below, where transformers would only point at a log
                output_loading_info=True,
            )
    except Failure as failure:
        raise UserError(f"the model in {folder} cannot be loaded: {failure.__cause__}") from failure
    # transformers would go on with random numbers in their place.
    if report["missing_keys"]:
        absent = sorted(report["missing_keys"])
        raise UserError(f"the weights in {folder} lack {len(absent)} of its model's tensors: {', '.join(absent[:3])} …")
    if report["mismatched_keys"]:
        odd = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"])
        raise UserError(
            f"the weights in {folder} do not fit its config.json: {len(odd)} tensors are of another shape, such as "
            f"{', '.join(odd[:3])}; put the config.json there that they were saved with"
        )
    model.eval()
    return model


def new_model(config: Mapping[str, Any], seed: int) -> PreTrainedModel:
    """A Llama with random fp32 weights that depend on `config` and `seed` only, in eval mode.

    `config` holds values of transformers' LlamaConfig, among them vocab_size, hidden_size, intermediate_size,
    num_hidden_layers and num_attention_heads. Dropout is 0; special token ids are unset unless given.
    Raises UserError for a missing or unknown key, or a shape that is not possible.

    Example (0.9 million weights, for ByteTokenizer):
        new_model({"vocab_size": 259, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
                   "num_attention_heads": 4, "max_position_embeddings": 2048}, seed=0)
    """
    torch = _torch()
    from transformers import LlamaConfig, LlamaForCausalLM

    if absent := [key for key in SHAPE if key not in config]:
        raise UserError(f"a new model needs {', '.join(absent)}; given: {', '.join(config) or 'nothing'}")
    if unknown := sorted(set(config) - set(LlamaConfig().to_dict())):
        raise UserError(f"a Llama model has no setting {', '.join(unknown)}")
    unset = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    try:
        with boundary("building", UserError), quiet_transformers(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            settings = LlamaConfig(**{**unset, **config})
            _without_dropout(settings)
            model = LlamaForCausalLM(settings).to(torch.float32)
    except Failure as failure:
        raise UserError(f"a model of shape {dict(config)} cannot be built: {failure.__cause__}") from failure
    model.eval()
    return model


def save_model(
    model: PreTrainedModel, folder: str | os.PathLike[str], tokenizer: HuggingFaceTokenizer | None = None
) -> Path:
    """Write a Hugging Face folder that `find` and transformers read, whole or not at all; returns its path.

    Of a model with an adapter only the adapter is written. An earlier model in `folder` is replaced. Without
    `tokenizer` the folder has none, which means ByteTokenizer.
    Raises UserError where `folder` holds something else or cannot be written.
    """
    target = Path(folder).expanduser().resolve()
    ours = any((target / name).is_file() for name in ("config.json", adapter.CONFIG))
    if target.exists() and not (target.is_dir() and (ours or not any(target.iterdir()))):
        raise UserError(f"{target} is there already and is no model folder; choose another place")
    partial, old = (target.with_name(f".{target.name}.{what}-{os.getpid()}") for what in ("partial", "old"))
    try:
        partial.mkdir(parents=True)
        with quiet_transformers():
            if adapter.has_adapter(model):
                adapter.save_adapter(model, partial)
            else:
                model.save_pretrained(partial)
        if tokenizer is not None:
            for file in TOKENIZER_FILES:
                if (tokenizer.folder / file).is_file():
                    shutil.copyfile(tokenizer.folder / file, partial / file)
        if target.exists():
            target.rename(old)
        partial.rename(target)
    except OSError as error:
        raise UserError(f"the model cannot be written to {target}: {error}") from error
    finally:
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)
    return target


def load_tokenizer(name: str | os.PathLike[str] | ModelFiles) -> HuggingFaceTokenizer | None:
    """The tokenizer of a model; None where its folder has none, which means that it reads bytes (ByteTokenizer).

    Raises UserError where there is a tokenizer that is not a tokenizer.json. Needs no torch.
    """
    folder = _files(name).folder
    if (folder / "tokenizer.json").is_file():
        return HuggingFaceTokenizer(folder)
    if other := [file for file in OTHER_TOKENIZERS if (folder / file).is_file()]:
        raise UserError(
            f"the tokenizer in {folder} is {', '.join(other)}; practicum reads tokenizer.json: make one with "
            f"transformers.AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    return None


def save_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    """Named tensors as one safetensors file, each contiguous."""
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def load_tensors(file: Path) -> dict[str, Any]:
    """What `save_tensors` wrote. Raises UserError where it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


class HuggingFaceTokenizer:
    """A tokenizer.json; what is encoded is ordinary text, whatever it spells, and nothing is put before or after it."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError for an unreadable file, or one that cannot tell text from special tokens."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtra("tokenizers", "train") from error

        self.folder = folder
        file = folder / "tokenizer.json"
        try:
            with boundary("tokenizers", UserError):
                self._backend = Tokenizer.from_file(str(file))
        except Failure as failure:
            raise UserError(f"the tokenizer {file} cannot be read: {failure.__cause__}") from failure
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        added = self._backend.get_added_tokens_decoder()
        self._added = {token.content: index for index, token in added.items()}
        self._special = {token.content: index for index, token in added.items() if token.special}
        self.vocabulary_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        self.eos: int | None = self._eos()
        self.chat_template: str = self._chat_template()
        "How the model's authors render conversations, in Jinja; empty where they do not say."
        for spelling in self._special:
            for text in (spelling, f"a {spelling} b"):
                if set(self.encode(text)) & set(self._special.values()):
                    raise UserError(f"the tokenizer {file} cannot tell the text {spelling!r} from its special token")

    def encode(self, text: str) -> list[int]:
        """Tokens of ordinary text, shape (T,); the spelling of a special token becomes the pieces of its letters."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out; bytes that are no character are replaced by U+FFFD."""
        return self._backend.decode(list(tokens), skip_special_tokens=True)

    def special(self, name: str) -> int:
        """Id of a special token by its spelling; UserError naming those there are."""
        if name not in self._added:
            there_are = ", ".join(self._added) or "none"
            raise UserError(f"the tokenizer in {self.folder} has no special token {name!r}; it has {there_are}")
        return self._added[name]

    def _chat_template(self) -> str:
        if (self.folder / "chat_template.jinja").is_file():
            return (self.folder / "chat_template.jinja").read_text(encoding="utf-8")
        config = self.folder / "tokenizer_config.json"
        found = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
        named = {entry["name"]: entry["template"] for entry in found} if isinstance(found, list) else {}
        return str(named.get("tool_use") or named.get("default") or found or "")

    def _eos(self) -> int | None:
        config = self.folder / "tokenizer_config.json"
        token = json.loads(config.read_text(encoding="utf-8")).get("eos_token") if config.is_file() else None
        return self._added.get(token["content"] if isinstance(token, dict) else token) if token else None


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Errors only and no progress bars from transformers, for a while."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "train") from error
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra("transformers", "train") from error
    keep_freed_memory()
    return torch


def _files(name: str | os.PathLike[str] | ModelFiles) -> ModelFiles:
    return name if isinstance(name, ModelFiles) else find(name)


def _without_dropout(config: Any) -> None:
    for key in list(config.to_dict()):
        if ("dropout" in key or key.endswith("_pdrop")) and isinstance(getattr(config, key), int | float):
            setattr(config, key, 0.0)
