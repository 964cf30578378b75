"""Secrets are known by their names, their values and their forms; what is none stays."""

from __future__ import annotations

import json
import shlex
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.protocol.redact import (
    KEY_BLOCK,
    SHORTEST,
    make_redactor,
    redact_json,
    redact_words,
    secret_arguments,
    secret_values,
)

C = "CANARY7canary"  # stands in every secret below, or in part of it
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{C}\n{C}\n-----END RSA PRIVATE KEY-----"

# fmt: off
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
    f"SSH_PASSPHRASE={C}", f"DB_PASS={C}", f"export SMTP_PASS={C}", f"MYSQL_PWD: {C}", f"MY_APIKEY={C}",
    f"AZURE_STORAGE_CONNECTION_STRING=DefaultEndpointsProtocol=https;AccountName=x;AccountKey={C}/a+b==;EndpointSuffix=core",
    f"Server=tcp:db;Database=x;Uid=me;Pwd={C};Encrypt=yes", f"Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey={C}=",
    # quoted values: with escaped quotes, doubled ones, pieces as a shell joins them, quoted again, not closed
    rf'password="he said \"{C}\" and {C}"', rf"password='it\'s {C}'", f"password: 'it''s {C}'", f"""password='it'"'"'s {C}'""",
    json.dumps({"password": f'a"b {C}'}), json.dumps(json.dumps({"password": f'a"b {C}', "x": 1})),
    json.dumps(json.dumps(json.dumps({"password": f'a"b {C}', "x": 1}))), repr({"password": f"a\"b'c {C}"}),
    f'password = """{C}"""', f"password = f'{C}'", f"password=rb'{C}'", f'password = "cut {C}', f"password=`x {C}`",
    f'password = "first\nsecond {C}\nthird"', f'DB_PASS="a\n2026-11-21T16:40:03.123Z {C}\n2026-11-21T16:40:03.123Z c"',
    # bare values with marks in them
    f"DB_PASS=a,b;c{C}", f"DB_PASS=a)b]{C}", f'DB_PASS=a"b{C}', f"DB_PASS=$a&b{C}", f"DB_PASS=a<b|{C}", f"DB_PASS=a\\b{C}",
    # YAML and JSON over several lines
    f"password: |\n  first\n  {C}\n", f"password: >-\n    {C}\n", f"auth:\n  password:\n    {C}\n", f"passwords:\n  - a\n  - {C}\n",
    f'{{\n "password":\n  "{C}"\n}}', f"password: |\n2026-11-21T16:40:03.123Z   first\n2026-11-21T16:40:03.123Z   {C}\n",
    f"- name: DB_PASS\n  value: {C}\n", f'{{"name": "DB_PASS", "value": "{C}"}}', f'{{"name":"DB_PASS","value":"{C}"}}',
    f'"passwords": ["a", "{C}"]', f"{{'db': {{'password': '{C}'}}}}", f"pass: {C}", f"clientSecret: {C}", f'"apiKey":"{C}","x":1',
    # programs, frames of tracebacks, other languages
    f'os.environ["DB_PASS"] = "{C}"', f"login(user='me', password='{C}')", f'def f(password: str = "{C}"):', f"Namespace(pw_=1, password='{C}')",
    f'password == "{C}"', f"password := {C}", f"'password' => '{C}'", f"<password>{C}</password>", f'<db-password type="x">{C}</db-password>',
    f"db.password={C}", f"+trainer.api_key={C}", f"password=SecretStr('{C}')", f"IDENTIFIED BY '{C}'", f"machine x login me password {C}",
    # command lines
    f"--password {C}", f"-password {C}", f"--password={C}", f"['x.py', '--password', '{C}', '--lr', '1']", f'"--api-key", "{C}"',
    f"--pass {C}", f"--key {C}", f"--auth-token={C}", f"--env DB_PASS={C}", f"-e DB_PASS={C}", f"mysql -u me -p{C} db",
    f"sshpass -p {C} ssh x", f"curl -u me:{C} https://x", f"curl --user 'me:{C}' https://x", f"redis-cli -h x -a {C}",
    f"docker login -u me -p {C} x", f"curl -H 'X-Api-Key: {C}'", f"curl -H 'PRIVATE-TOKEN: {C}'",
    # addresses
    f"https://user:p@ss/word{C}@host/path", f"user:p@ss/word{C}@host", f"postgres://u:p@ss/{C}@db.x:5432/y", f"redis://:{C}@host:6379/0",
    f"mongodb+srv://me:a:{C}@x.net", f"amqp://me:{C}@x//", f"https://me@corp.com:{C}@host/x", f"me:{C}@tcp(db:3306)/x",
    f"git remote -v: https://oauth2:{C}@github.com/a/b.git", f"https://{C}{C}@github.com/a/b", f"pip install git+https://x:{C}@github.com/a/b@v1",
    f"https://x/y?a=1&sig={C}&b=2", f"https://x/y?key={C}", f"https://x/y?access_token={C}", f"s3.x/y?X-Amz-Credential=a/{C}&X-Amz-Signature={C}",
    # chats
    f"https://hooks.slack.com/services/T0/B0/{C}", f"https://discord.com/api/webhooks/123456/{C}{C}", f"https://x.webhook.office.com/webhookb2/a@b/IncomingWebhook/{C}",
    f"https://chat.googleapis.com/v1/spaces/A/messages?key=a&token={C}", f"https://api.telegram.org/bot123456789:{C}{C}/sendMessage",
    f"https://open.feishu.cn/open-apis/bot/v2/hook/{C}-{C}", f"https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={C}", f"https://mm.x.org/hooks/{C}{C}",
    f"https://oapi.dingtalk.com/robot/send?access_token={C}", f"https://hooks.zapier.com/hooks/catch/1/{C}", f"https://maker.ifttt.com/trigger/x/with/key/{C}{C}",
    # headers
    f"Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature={C}", f'Authorization: Digest username="a", response="{C}"',
    f"Cookie: a=1; session={C}", f"Set-Cookie: id={C}; Path=/", f"Basic {C}==", f"('Authorization', 'Bearer {C}')", f"Proxy-Authorization: Basic {C}",
    # tokens
    f"npm_{C}{C}", f"pypi-{C}{C}", f"dckr_pat_{C}{C}", f"nvapi-{C}{C}", f"gsk_{C}{C}", f"sk_live_{C}{C}", f"hvs.{C}{C}", f"glsa_{C}{C}",
    f"SG.{C}.{C}", f"xapp-1-{C}{C}", f"ya29.{C}{C}", f"gldt-{C}{C}", f"sk-ant-api03-{C}",
    # colours, as they are and as others spell them
    f"\x1b[32mHF_TOKEN\x1b[0m=\x1b[31m{C}\x1b[0m", f"\x1b[1mHF_TOKEN={C}\x1b[0m", f"HF_\x1b[1mTOKEN: \x1b[38;5;1m{C}", f"\x1b]8;;http://a\x07HF_TOKEN\x1b]8;;\x07={C}",
    f"\x1b]8;;https://me:{C}@host/\x1b\\here\x1b]8;;\x1b\\", rf"\x1b[1mHF_TOKEN\x1b[0m={C}", rf"\u001b[1mDB_PASS\u001b[0m: {C}", f"^[[1mHF_TOKEN^[[m={C}",
    f"hf_\x1b[1m{C}{C}\x1b[m", f"\x1b[1mpassword\x1b[0m = '\x1b[32m{C}\x1b[0m'",
    # pairs without a mark between them
    f"('HF_TOKEN', '{C}')", f"[('PATH', '/bin'), ('WANDB_API_KEY', '{C}'), ('A', 'b')]", f"dict_items([('db_password', '{C} {C}')])", f"[b'HF_TOKEN', b'{C}']",
    f'["HF_TOKEN", "{C}"]', f"| HF_TOKEN | {C} |", f"│ HF_TOKEN │ {C} │", f"┃ api_key   ┃ {C} ┃", f"HF_TOKEN | {C}", f"<tr><td>HF_TOKEN</td><td>{C}</td></tr>",
    f"HF_TOKEN {C}", f"HF_TOKEN\t{C}", f"HF_TOKEN     {C}", f"setenv HF_TOKEN {C}", f"ENV DB_PASSWORD {C}", f"HF_TOKEN -> {C}", f"HF_TOKEN,{C}", f"PGPASSWORD {C}",
    f"| `HF_TOKEN` | `{C}` |", f"| **HF_TOKEN** | **{C}** |", f'"HF_TOKEN","{C}"', f"[('PATH', '/bin'),\n ('HF_TOKEN',\n  '{C}')]",
    f'{{"key": "DB_PASSWORD", "value": "{C}"}}', f'{{"Key": "DB_PASSWORD", "Value": "{C}"}}', f'<add key="DbPassword" value="{C}"/>',
    # percent-encoded, and values that begin in the next line
    f"https://a/?next=https%3A%2F%2Fme%3A{C}%40host%2F", f"body=x%3D1%26password%3D{C}%26y%3D2", f"%7B%22api_key%22%3A%22{C}%22%7D",
    f"passwords:\n- {C}\n- {C}", f'hf_token = """\n{C}\n"""',
    KEY.replace("RSA", "OPENSSH"), KEY.replace("RSA ", "ENCRYPTED "), KEY.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"),
    KEY,
    f"'{json.dumps(KEY)}'",
    KEY.replace("\n", "\n2026-11-21T16:40:03.123Z "),
    f"-----BEGIN PRIVATE KEY-----\n{C}",
    f"{C}\n-----END PRIVATE KEY-----",
]
# fmt: on


@pytest.mark.parametrize("text", BY_FORM)
def test_a_secret_is_known_by_its_name_or_form(text: str) -> None:
    clean = make_redactor(())
    for around in (text, f"first\n{text}", f"{text}\nlast", f'2026-11-21T16:40:03.123Z "{text}", last'):
        assert C not in clean(around), clean(around)
    assert clean(f"first\n\n{'x' * 30_000}\n{text}\nlast").startswith("first\n\nxxx") or text.endswith(
        "END PRIVATE KEY-----"
    )


def test_a_password_in_a_line_of_its_own_is_known_as_in_netrc() -> None:
    assert (
        make_redactor(())(f"login me\n  password {C}\nPassword required\n")
        == "login me\n  password ***\nPassword required\n"
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
    "PATH=/bin:/usr/bin PWD=/home/me OLDPWD=/ TOKENIZERS_PARALLELISM=false PASSIVE=1 COMPASS=north KEYBOARD=us",
    "--tokens 1000 --tokenizer bytes --max-tokens=5 --eos-token x --shard-tokens 4 --label-key y",
    "eos_token: <|endoftext|>, pad_token_id=0, max_tokens: 512, num_key_value_heads=8, key_padding_mask: None",
    '{"eos_token": "x", "pad_token": "y", "public_key": "z", "key": "value"}',
    "forward pass: 12 ms, backward_pass=3 ms, pass: 3, pass 2/3, all tests pass: yes",
    "password=None token: null secret='' use_auth_token=False --use-token true",
    "the key is lost: see author: me, authors: you; a monkey: 1; hotkey=F1; keyboard: us",
    "image slipway:dev@sha256:0123456789abcdef mailto:me@example.org From:me@example.org git@github.com:org/repo.git",
    "http://localhost:6006/@vite/client https://user@host/x https://github.com/pre-commit/pre-commit-hooks http://10.0.0.1:80, a@b.c",
    "Basic usage: basic understanding of the Basic Understanding of bearer instruments",
    "NCCL INFO Connected all rings, comm 0x7f nranks 2; cookiecutter: x; connection: closed",
    'File "/x/token.py", line 3, in token',
    "passwords:\nlast",
    "risk-management task-force desk-lamp hf_transformers_version",
    "the bearer of news",
    "set HF_TOKEN to a token of yours; HF_TOKEN is not set (errno 2); HF_TOKEN or HF_TOKEN_PATH; HF_TOKEN environment variable",
    "| token | count |\n| --- | --- |\n| password | what you typed |",
    "token | loss\neos_token | 2e10",
    "https%3A%2F%2Fhub%3A8080%2Fx%40main label_key%3Dsize token_count%3D5",
    '<option name="max_tokens" value="512"/> {"key": "eos_token", "value": "x"}',
    "tokens:\n- a\n- b\npassword:\n- name: x",
    "PASS tests/test_v2.py::test_x1, TOKEN 128000 of 512000",
    "['HF_TOKEN', 'WANDB_API_KEY'], [('token', 3), ('loss', 2.5)]",
    "SLIPWAY_TOKEN              ***                environment (SLIPWAY_TOKEN)",
    "\x1b[32mstep 5\x1b[0m loss \x1b[1m2.5\x1b[0m tokens: 512",
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
    environ = {"HF_TOKEN": "hunter2", "TOKENIZERS_PARALLELISM": "false", "PIN_SECRET": "", "PATH": "/bin"}
    assert secret_values(environ, {"WANDB_API_KEY": "hunter3"}) == {"HF_TOKEN": "hunter2", "WANDB_API_KEY": "hunter3"}


@pytest.mark.parametrize("value", ["True", "false", "None", "auto"])
def test_a_switch_with_a_secrets_name_leaves_the_other_switches_alone(value: str) -> None:
    assert secret_arguments(["--use_auth_token", value, f"hub.token={value}"]) == []
    assert redact_words(["--use_auth_token", value, "--bf16", value])[2:] == ["--bf16", value]


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
