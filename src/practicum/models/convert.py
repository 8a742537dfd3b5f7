"""From a quantised GGUF file to an ordinary Hugging Face folder, once.

The weights are de-quantised and saved in the known model's dtype. A Q4_1 weight is scale * q + offset with a 16-bit
scale and offset: of SmolLM2's 134.5 million, rounding to bf16 would change 82 % (by up to 0.4 %) and to fp16 48 % (by
up to 0.05 %), whereas fp32 holds each exactly. It is also what training starts from. A model too large to be kept in
fp32 is saved in bf16, in which its authors published it: that moves a weight by 0.4 % at most, where 4 bits had moved
the embedding of Qwen2.5-Coder by 7 % (root mean square).
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

SAME_MATRIX = 0.2
"Two roundings of one matrix differ by less than this share of its norm; unlike matrices by more than 1."
TIED_ROWS = 1024
"So many rows are compared."
PRE_TOKENIZERS_THAT_SPLIT_DIGITS = {"smollm", "starcoder", "refact", "command-r"}


def convert_gguf(weights: Path, folder: Path, dtype: str = "float32", tied: bool = False) -> None:
    """Write config, generation config, safetensors and tokenizer of a GGUF file into `folder`, which is created.

    Tied embeddings stay tied: they are written once, and `tie_word_embeddings` is set in the config. `tied` says that
    the authors tied them although the file holds both: the output layer, which such files keep at more bits, is then
    used for both. Raises ValueError where the two are not one matrix, rounded differently.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from practicum.models.load import quiet_transformers

    # Its progress bar over GGUF tensors has no switch.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        kind = getattr(torch, dtype)
        source = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=kind)
        config = source.config
        if tied and not config.tie_word_embeddings:
            tie(source)
        # transformers refuses to save what it loaded from GGUF: a fresh model of the same shape takes the tensors.
        del config.quantization_config
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=kind)
        model.load_state_dict(source.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = source.generation_config
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
        tokenizer.model_max_length = config.max_position_embeddings
        tokenizer.save_pretrained(folder)
    _restore_digit_splitting(weights, folder / "tokenizer.json")


def tie(model: Any) -> None:
    """Use the output layer's matrix as the token embedding, too. Raises ValueError where they are not alike."""
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    some_VD, other_VD = (layer.weight[:TIED_ROWS].detach().float() for layer in (embedding, output))
    apart = float((some_VD - other_VD).norm() / other_VD.norm())
    if apart > SAME_MATRIX:
        raise ValueError(f"embedding and output layer differ by {apart:.0%}, which is more than rounding does")
    embedding.weight = output.weight
    model.config.tie_word_embeddings = True


def _restore_digit_splitting(weights: Path, tokenizer_file: Path) -> None:
    """Every digit a word of its own, where the GGUF says so: transformers drops it, and "\\n\\n12" or two spaces before
    a number would then become tokens that the model has not seen in that place."""
    from gguf import GGUFReader

    field = GGUFReader(weights).get_field("tokenizer.ggml.pre")
    if field is None or field.contents() not in PRE_TOKENIZERS_THAT_SPLIT_DIGITS:
        return
    written = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    written["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, written["pre_tokenizer"]]}
    tokenizer_file.write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")
