"""Data sets with several configurations, proxies, read-only caches, and checkpoints as other programs leave them."""

from __future__ import annotations

import errno
import json
import os
from json import JSONDecodeError
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from token_files import write_tokenizer as make_tokenizer

from slipway.protocol.mistake import ConfigurationError
from slipway.train.export.gpt import byte_tokenizer, write_tokenizer
from slipway.train.hub.causes import explain_failure, explain_proxy
from slipway.train.models.gpt import Gpt
from slipway.train.text.checkpoints import TINY, load_checkpoint, make_tiny
from slipway.train.text.inputs import find_sources
from slipway.train.text.tokenizer import open_tokenizer
from slipway.train.worker.prepared import require_writable

pytestmark = pytest.mark.pull


def put(root: Path, *names: str) -> Path:
    """Text files with some content."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name} and the sea\n")
    return root


# Several data sets in one folder


@pytest.mark.parametrize(
    "names",
    [
        ["small/train-0.txt", "small/validation-0.txt", "large/train-0.txt", "large/validation-0.txt"],
        ["large/train/0.txt", "large/test/0.txt", "small/train/0.txt", "small/val/0.txt"],
        ["data/large/train.txt", "data/large/dev.txt", "data/small/train.txt", "data/small/eval.txt"],
    ],
)
def test_of_several_data_sets_one_is_asked_for(tmp_path: Path, names: list[str]) -> None:
    put(tmp_path, *names)
    with pytest.raises(
        ConfigurationError,
        match=r"holds 2 data sets, each with its own files for evaluation: (data/)?large, (data/)?small",
    ):
        find_sources([tmp_path])
    assert len(find_sources([tmp_path], several=True)) == 4


@pytest.mark.parametrize(
    "names",
    [
        ["train-0.txt", "validation-0.txt", "extra/more.txt"],
        ["data/train/a.txt", "data/train/b.txt", "data/test/c.txt"],
        ["books/train.txt", "wiki/train.txt", "wiki/validation.txt"],
        ["books/a.txt", "wiki/b.txt"],
        ["train/pos/0.txt", "train/neg/0.txt", "test/pos/0.txt", "test/neg/0.txt"],
        ["news-train/sea/1", "news-train/sky/2", "news-test/sea/3", "news-test/sky/4"],
        ["mnist/train.py", "mnist/test.py", "imagenet/train.py", "imagenet/eval.py"],
    ],
)
def test_one_data_set_is_read_whatever_its_folders(tmp_path: Path, names: list[str]) -> None:
    assert len(find_sources([put(tmp_path, *names)])) == len(names)


def test_data_sets_that_are_named_are_read_together(tmp_path: Path) -> None:
    put(tmp_path, "a/train.txt", "a/val.txt", "b/train.txt", "b/val.txt")
    assert len(find_sources([tmp_path / "a", tmp_path / "b"])) == 4


# The way to the Hub


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"ALL_PROXY": "socks5://u:secret@127.0.0.1:9"}, "The proxy in ALL_PROXY (socks5) cannot"),
        ({"https_proxy": "socks4://h:1", "http_proxy": "http://h:2"}, "The proxy in https_proxy (socks4) cannot"),
        ({"all_proxy": "socks5h://h", "HTTPS_PROXY": "socks5h://h"}, "The proxy in HTTPS_PROXY and all_proxy (socks5h) cannot"),
        ({"ALL_PROXY": "proxy.example:3128"}, "The proxy in ALL_PROXY cannot"),
        ({}, "The proxy in the system's settings cannot"),
    ],
)  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(environ: dict[str, str], told: str) -> None:
    said = explain_proxy(environ)
    assert said.startswith(told)
    assert "secret" not in said


@pytest.mark.parametrize(
    "address",
    ["socks5://127.0.0.1:9", "socks4://127.0.0.1:9", "ftp://127.0.0.1:9", "http://127.0.0.1:port", "http://[::1"],
)
def test_the_library_with_such_a_proxy_ends_in_a_sentence(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from httpx2 import Client

    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(Exception, match=r".") as error:  # of three classes
        Client()
    explained = explain_failure(error.value, "acme/tiny", None, "model")
    assert isinstance(explained, ConfigurationError)
    kind = "" if address.startswith("http") else f" ({address.partition(':')[0]})"
    assert str(explained).startswith(f"The proxy in ALL_PROXY{kind} cannot")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the model 'proxy-lm' has no configuration"),
        ValueError("could not convert string to float: 'proxy'"),
        TypeError("Proxy.__init__() got an unexpected keyword"),
        ImportError("cannot import name 'proxy'"),
    ],
)
def test_an_error_that_only_mentions_a_proxy_stays_as_it_is(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert explain_failure(error, "acme/proxy-lm", None, "model") is error


def test_an_endpoint_that_is_no_address_is_not_the_proxys_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    from httpx2 import URL, InvalidURL
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.example:port")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    with pytest.raises(InvalidURL) as error:
        URL(constants.ENDPOINT)
    assert str(explain_failure(error.value, "acme/tiny", None, "model")).startswith(
        "HF_ENDPOINT 'http://hub.example:port'"
    )


def test_a_password_in_the_address_of_the_hub_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from httpx2 import ConnectError, InvalidURL, ReadTimeout
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "https://me:hunter2@hub.example")
    errors = (
        ConnectError("to https://me:hunter2@hub.example"),
        ReadTimeout(""),
        InvalidURL(""),
        JSONDecodeError("", "", 0),
    )
    for error in errors:
        explained = explain_failure(error, "acme/tiny", None, "model")
        assert "https://***@hub.example" in str(explained) or isinstance(error, InvalidURL)
        assert "hunter2" not in str(explained)


def test_a_cache_that_is_only_read_is_named_with_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.EROFS, errno.EACCES):
        explained = explain_failure(OSError(number, os.strerror(number), "/cache/hub"), "acme/tiny", None, "model")
        assert isinstance(explained, ConfigurationError)
        assert "/cache/hub cannot be written" in str(explained)
        assert "HF_HOME" in str(explained)

    def refuse(self: Path, **more: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        ConfigurationError, match=r"cannot be used for prepared data \(Read-only file system\).*XDG_CACHE_HOME"
    ):
        require_writable(tmp_path / "cache")


# Checkpoints


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny one."""
    make_tiny(tmp_path, 0)
    return tmp_path


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    """Its weights, as they are trained on."""
    model = Gpt(TINY)
    load_checkpoint(model, folder)
    return model.state_dict()


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_the_one_name_that_is_kept_of_a_shared_tensor_serves_for_both(checkpoint: Path, prefix: str) -> None:
    before, tensors = loaded(checkpoint), load_file(checkpoint / "model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors = {prefix + name: tensor for name, tensor in tensors.items() if name != "wte.weight"} | {
        "lm_head.weight": tensors["wte.weight"]
    }
    save_file(tensors, checkpoint / "model.safetensors")
    after = loaded(checkpoint)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_an_index_beside_a_whole_file_is_left_from_before(checkpoint: Path) -> None:
    before = loaded(checkpoint)
    index = {"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    after = loaded(checkpoint)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


# What is exported


def test_the_end_of_a_document_has_a_name_and_no_byte_has_it() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.get_vocab_size() == 256
    assert tokenizer.id_to_token(0) == "<|endoftext|>"
    text = "él año ß 水 \U0001f6a2\n\t\x01\x7f"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.decode([115, 101, 97, 0]) == "sea"


@pytest.mark.parametrize(
    ("settings", "eos"),
    [
        (None, "<|endoftext|>"),
        ({"eos_token": None, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, "<|endoftext|>"),
        ({"eos_token": {"content": "s", "special": True}}, {"content": "s", "special": True}),
    ],
)
def test_exported_settings_say_what_the_model_takes_and_what_ends_a_document(
    tmp_path: Path, settings: object, eos: object
) -> None:
    (tmp_path / "own").mkdir()
    make_tokenizer(tmp_path / "own" / "tokenizer.json")
    if settings:
        (tmp_path / "own" / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "out").mkdir()
    write_tokenizer(open_tokenizer(str(tmp_path / "own")), tmp_path / "out", 64)
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (written["model_input_names"], written["eos_token"]) == (["input_ids", "attention_mask"], eos)
