"""From a quantised GGUF file to an ordinary Hugging Face folder, once.

The weights are de-quantised and saved in fp32. A Q4_1 weight is scale * q + offset with a 16-bit scale and offset: of
SmolLM2's 134.5 million, rounding to bf16 would change 82 % (by up to 0.4 %) and to fp16 48 % (by up to 0.05 %),
whereas fp32 holds each exactly. It is also what training starts from.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

PRE_TOKENIZERS_THAT_SPLIT_DIGITS = {"smollm", "starcoder", "refact", "command-r"}


def convert_gguf(weights: Path, folder: Path) -> None:
    """Write config, generation config, fp32 safetensors and tokenizer of a GGUF file into `folder`, which is created.

    Tied embeddings stay tied: they are written once, and `tie_word_embeddings` is set in the config.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from practicum.models.load import quiet_transformers

    # Its progress bar over GGUF tensors has no switch.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        source = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
        config = source.config
        # transformers refuses to save what it loaded from GGUF: a fresh model of the same shape takes the tensors.
        del config.quantization_config
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(source.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = source.generation_config
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
        tokenizer.model_max_length = config.max_position_embeddings
        tokenizer.save_pretrained(folder)
    _restore_digit_splitting(weights, folder / "tokenizer.json")


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
