"""Secrets are known by their names, their values and their forms; what is none stays."""

from __future__ import annotations

import json
import shlex
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.launch.resolve.redact import (
    KEY_BLOCK,
    SHORTEST,
    make_redactor,
    redact_json,
    secret_arguments,
    secret_values,
)

C = "CANARY7canary"  # stands in every secret below, or in part of it
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{C}\n{C}\n-----END RSA PRIVATE KEY-----"

BY_FORM = [
    f"HF_TOKEN={C}",
    f"export DB_PASSWORD='{C} and more'",
    f"environ({{'WANDB_API_KEY': '{C}', 'PATH': '/bin'}})",
    f"environb {{b'SLIPWAY_TOKEN': b'{C}'}}",
    f"AWS_SECRET_ACCESS_KEY: {C}",
    f'{{"token": "{C}"}}',
    f"X-Api-Key: {C}",
    f"apikey={C}",
    f"password = {C}",
    f"MY_TOKEN_2={C}",
    f"--hf-token {C} --steps 3",
    f"--api-key={C}",
    f"--password '{C} {C}'",
    f"https://user:{C}@host/path",
    f"postgres://user:p:{C}@host/path",
    f"Authorization: Bearer {C}",
    f"authorization: Basic {C}==",
    f"'Authorization': 'token {C}'",
    f"curl with bearer {C}",
    f"hf_{C}{C}",
    f"ghp_{C}{C}",
    f"github_pat_{C}_{C}",
    f"glpat-{C}{C}",
    f"sk-{C}{C}",
    f"sk-proj-{C}{C}",
    f"xoxb-{C}",
    f"AIza{C}{C}{C}",
    f"eyJ{C}.eyJ{C}.{C}",
    KEY,
    f"'{json.dumps(KEY)}'",
    KEY.replace("\n", "\n2026-11-21T16:40:03.123Z "),
    f"-----BEGIN PRIVATE KEY-----\n{C}",
    f"{C}\n-----END PRIVATE KEY-----",
]


@pytest.mark.parametrize("text", BY_FORM)
def test_a_secret_is_known_by_its_name_or_form(text: str) -> None:
    clean = make_redactor(())
    for around in (text, f"first\n{text}", f"{text}\nlast", f'2026-11-21T16:40:03.123Z "{text}", last'):
        assert C not in clean(around), clean(around)
    assert clean(f"first\n\n{'x' * 30_000}\n{text}\nlast").startswith("first\n\nxxx") or text.endswith(
        "END PRIVATE KEY-----"
    )


def test_a_cloud_key_is_known_by_its_form() -> None:
    assert make_redactor(())("key AKIAIOSFODNN7EXAMPLE.") == "key ***."


KEPT = [
    "2026-11-21T16:40:03.123Z gpt: step 5/100  loss 2.345  12,345 tokens/s",
    "tokens: 512, tokenizer: bytes, tokens_per_second=12.5",
    '{"tokens_per_second": 5, "tokenizer": "bytes"}',
    "--tokenizer bytes --tokens 400 --steps 3",
    "TimeoutError: key 'store' not found; KeyError: 'x'",
    "ssh://git@github.com/x https://host/path?query=1 tcp://10.0.0.1:29500",
    "risk-management task-force desk-lamp hf_transformers_version",
    "the bearer of news",
    "-----BEGIN CERTIFICATE-----",
    "",
]


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text: str) -> None:
    assert make_redactor(())(text) == text


def test_what_follows_a_key_without_an_end_is_not_lost_for_ever() -> None:
    cleaned = make_redactor(())(f"-----BEGIN PRIVATE KEY-----\n{'x' * 3 * KEY_BLOCK}\nlast")
    assert cleaned.endswith("\nlast")


@given(st.text(min_size=SHORTEST, max_size=40).filter(lambda text: text.strip() and "*" not in text), st.text())
def test_a_known_value_is_taken_out_in_every_spelling(secret: str, around: str) -> None:
    clean = make_redactor([secret])
    around = around.replace(secret, "")
    for spelled in (
        secret,
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        shlex.quote(secret),
        urllib.parse.quote(secret, ""),
    ):
        cleaned = clean(f"{around} {spelled} {around}")
        assert spelled not in cleaned or spelled in f"{around} *** {around}"


def test_each_line_of_a_known_value_is_taken_out() -> None:
    clean = make_redactor(["line one\nline two"])
    assert clean("12:00 line one\n12:01 line two\n") == "12:00 ***\n12:01 ***\n"


def test_a_value_that_holds_another_is_taken_out_whole() -> None:
    assert make_redactor(["abcd", "abcdefgh"])("x abcdefgh abcd") == "x *** ***"


@pytest.mark.parametrize("value", ["canary", "hf_can", "1234", "CANARY1234 and"])
def test_a_value_within_a_secret_of_a_known_form_leaves_no_rest_of_it(value: str) -> None:
    assert make_redactor([value])("x hf_canaryCANARY1234 and") in ("x *** and", "x ***")


def test_which_variables_hold_secrets() -> None:
    environ = {"HF_TOKEN": "hunter2", "TOKENIZERS_PARALLELISM": "false", "PIN_SECRET": "abc", "PATH": "/bin"}
    assert secret_values(environ, {"WANDB_API_KEY": "hunter3"}) == {"HF_TOKEN": "hunter2", "WANDB_API_KEY": "hunter3"}


def test_which_arguments_are_secrets() -> None:
    words = ["--api-key", "a", "--tokens", "400", "--hub-token=b", "--tokenizer=bytes", "x", "--password", "c", 5]
    assert secret_arguments(words) == ["a", "b", "c"]


def test_json_is_looked_at_by_its_names() -> None:
    clean = make_redactor([C])
    given = {
        "arguments": ["--api-key", "abc", "--tokenizer", "bytes", "--x-token=abc", "--tokens", "400", C],
        "env": {"HF_TOKEN": "a b", "PATH": "/bin", "token": "", C: 1},
        "values": {"SLIPWAY_TOKEN": {"value": "***", "source": "environment"}},
        "tokens": 5,
        "tokenizer": "bytes",
        "done": True,
        "none": None,
    }
    assert redact_json(given, clean) == {
        "arguments": ["--api-key", "***", "--tokenizer", "bytes", "--x-token=***", "--tokens", "400", "***"],
        "env": {"HF_TOKEN": "***", "PATH": "/bin", "token": "", "***": 1},
        "values": {"SLIPWAY_TOKEN": {"value": "***", "source": "environment"}},
        "tokens": 5,
        "tokenizer": "bytes",
        "done": True,
        "none": None,
    }
