"""LoRA: small matrices beside a frozen model's own, trained and stored without touching those.

Stored in peft's own format, so that whatever reads that reads these. Source: arXiv 2106.09685.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.errors import MissingExtra, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
NAME = "default"


def add_adapter(model: PreTrainedModel, base: str, rank: int, alpha: float, seed: int) -> None:
    """Freeze a model and put a LoRA of `rank` beside each of its linear layers but the head; it changes nothing yet.

    `base` is the name that the model was loaded by, kept for whoever loads the adapter. The update is scaled by
    alpha / rank. Raises UserError for a rank that the layers do not have.
    """
    import torch

    peft = _peft()
    head = model.get_output_embeddings()
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    targets = sorted({name.rsplit(".", 1)[-1] for name, layer in linear.items() if layer is not head})
    most = min(min(layer.weight.shape) for layer in linear.values())
    if not 1 <= rank <= most:
        raise UserError(f"lora.rank must lie between 1 and {most}, the width of the model's layers; found {rank}")
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets, base_model_name_or_path=base
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        peft.inject_adapter_in_model(config, model, NAME)
    model.eval()


def has_adapter(model: Any) -> bool:
    """True for a model that `add_adapter` or `load_adapter` changed."""
    return bool(getattr(model, "peft_config", None))


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write the adapter, not the model, in peft's format, with the digest of the weights that it stands beside."""
    from safetensors.torch import save_file

    config = model.peft_config[NAME]
    tensors = {name: tensor.contiguous() for name, tensor in tensors_of(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "base_digest": base_digest(model)})
    table = {**config.to_dict(), "target_modules": sorted(config.target_modules)}
    (folder / CONFIG).write_text(json.dumps(table, indent=2, default=str) + "\n", encoding="utf-8")


def base_of(folder: Path) -> str:
    """Name of the model that the adapter in a folder stands beside. Raises UserError for an unreadable description."""
    try:
        table = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"the adapter in {folder} cannot be read: {CONFIG}: {error}") from None
    if table.get("peft_type") != "LORA" or not table.get("base_model_name_or_path"):
        raise UserError(f"{folder / CONFIG} describes no LoRA of a named base model; give the folder of one that does")
    return str(table["base_model_name_or_path"])


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put a stored adapter beside a model's layers, frozen model and trainable adapter as `add_adapter` leaves them.

    Raises UserError for an adapter of another base: other layers, other shapes, or other weights.
    """
    from safetensors import SafetensorError, safe_open

    peft = _peft()
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no dictionary)
            trained_beside = (file.metadata() or {}).get("base_digest")
    except (OSError, SafetensorError) as error:
        raise UserError(f"the adapter in {folder} cannot be read: {error}") from None
    if trained_beside and trained_beside != base_digest(model):
        raise UserError(
            f"the adapter in {folder} was trained beside other weights than those of {base_of(folder)} as found here; "
            "load the model that it was trained on"
        )
    table = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    known = {key: table[key] for key in ("r", "lora_alpha", "target_modules", "base_model_name_or_path")}
    peft.inject_adapter_in_model(peft.LoraConfig(lora_dropout=0.0, **known), model, NAME)
    own = tensors_of(model)
    odd = sorted(set(own) ^ set(tensors)) or [name for name in own if own[name].shape != tensors[name].shape]
    if odd:
        raise UserError(
            f"the adapter in {folder} does not fit {base_of(folder)}: {len(odd)} tensors differ, such as {odd[0]}; "
            "it was trained beside another model"
        )
    peft.set_peft_model_state_dict(model, tensors)
    model.eval()


def tensors_of(model: PreTrainedModel) -> dict[str, Any]:
    """The adapter's tensors under the names that peft stores them by."""
    found: dict[str, Any] = _peft().get_peft_model_state_dict(model, save_embedding_layers=False)
    return found


def base_digest(model: Any) -> str:
    """SHA-256 over the frozen weights, in order of their names without the adapter's additions."""
    import torch

    frozen = {
        name.replace(".base_layer.", "."): tensor for name, tensor in model.named_parameters() if ".lora_" not in name
    }
    digest = hashlib.sha256()
    for name in sorted(frozen):
        digest.update(name.encode())
        digest.update(frozen[name].detach().float().contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "train") from error
    return peft
