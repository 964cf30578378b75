"""Where values come from and which wins; the `.env` subset; the table against `.env.example` and the README."""

import os
import re
from pathlib import Path

import pytest
from stand_ins import make_sources

from slipway.launch.resolve.settings import BY_NAME, SETTINGS, Setting
from slipway.launch.resolve.sources import Claim, Sources, parse_claim, read_sources, split_env_file
from slipway.protocol.errors import CONFIGURATION, LaunchError

ROOT = Path(__file__).parents[4]


def give(setting: Setting, option: str, variable: str, file: str) -> Sources:
    """Sources with a value in each place; None leaves a place out."""
    options = {setting.name: option} if option and setting.option else {}
    return make_sources(
        {setting.name: variable} if variable else {}, options, env_file={setting.name: file} if file else {}
    )


def each(table: tuple[Setting, ...] = SETTINGS) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("setting", table, ids=lambda setting: setting.name)


@each()
def test_command_line_beats_environment_beats_file_beats_default(setting: Setting) -> None:
    order = [Claim("variable", f"environment ({setting.name})"), Claim("file", f".env ({setting.name})")]
    if setting.option:
        assert give(setting, "option", "variable", "file").claims(setting)[0] == Claim(
            "option", f"command line ({setting.option})"
        )
    assert give(setting, "", "variable", "file").claims(setting)[0] == order[0]
    assert give(setting, "", "", "file").claims(setting) == [order[1], Claim(setting.default, "default")]
    assert give(setting, "", "", "").claims(setting) == [Claim(setting.default, "default")]


def test_every_value_that_was_overruled_is_kept() -> None:
    claims = give(BY_NAME["SLIPWAY_RUNS"], "option", "variable", "file").claims(BY_NAME["SLIPWAY_RUNS"])
    assert [claim.value for claim in claims] == ["option", "variable", "file", "runs"]


@each()
def test_an_empty_variable_counts_as_unset(setting: Setting) -> None:
    sources = make_sources({setting.name: ""}, env_file={setting.name: "file"})
    assert sources.claims(setting)[0].value == "file"
    assert make_sources({setting.name: ""}).claims(setting) == [Claim(setting.default, "default")]


@each(tuple(setting for setting in SETTINGS if setting.aliases))
def test_another_name_wins_within_its_place_only(setting: Setting) -> None:
    alias = setting.aliases[0]
    both = {alias: "alias", setting.name: "name"}
    assert [claim.value for claim in make_sources(both).claims(setting)][:2] == ["alias", "name"]
    assert make_sources({setting.name: "name"}, env_file={alias: "alias"}).claims(setting)[0].value == "name"


@each()
def test_a_default_is_read_by_its_own_parser(setting: Setting) -> None:
    parse_claim(setting, Claim(setting.default, "default"))


@each()
def test_every_setting_is_described(setting: Setting) -> None:
    assert setting.help.endswith(".")
    assert setting.option == "" or re.fullmatch(r"--[a-z][a-z-]+", setting.option)
    assert re.fullmatch(r"[A-Z][A-Z_]*", setting.name)


def test_every_setting_of_our_own_carries_the_prefix() -> None:
    contract = {"WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE", "WORKLOAD"}
    assert {setting.name for setting in SETTINGS if not setting.name.startswith("SLIPWAY_")} == contract
    assert len(BY_NAME) == len(SETTINGS)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("WORLD_SIZE", "2", (2, 2, 0)),
        ("WORLD_SIZE", "3:3", (3, 3, 0)),
        ("WORLD_SIZE", "2:4", (2, 4, 0)),
        ("WORLD_SIZE", "2+1", (2, 2, 1)),
        ("WORLD_SIZE", "2+0", (2, 2, 0)),
        ("WORLD_SIZE", "16+20", (16, 16, 20)),
        ("WORLD_SIZE", "2+65536", (2, 2, 65_536)),
        ("RANK", "0", 0),
        ("MASTER_PORT", "65534", 65_534),
        ("NPROC_PER_NODE", "auto", "auto"),
        ("NPROC_PER_NODE", "8", 8),
        ("SLIPWAY_MAX_RESTARTS", "auto", "auto"),
        ("SLIPWAY_MAX_RESTARTS", "0", 0),
        ("SLIPWAY_HANG_SECONDS", "0", 0),
        ("SLIPWAY_OVERSUBSCRIBE", "TRUE", True),
        ("SLIPWAY_OVERSUBSCRIBE", "no", False),
        ("SLIPWAY_BACKEND", "gloo", "gloo"),
        ("SLIPWAY_NOTIFY", "https://hooks.example/a?b=c#d", "https://hooks.example/a?b=c#d"),
        ("SLIPWAY_NOTIFY", "http://[::1]:8080", "http://[::1]:8080"),
        ("WORLD_SIZE", "2+65537", None),
        ("WORLD_SIZE", "2+", None),
        ("WORLD_SIZE", "+2", None),
        ("WORLD_SIZE", "2+-1", None),
        ("WORLD_SIZE", "2 + 1", None),
        ("WORLD_SIZE", "2+1+1", None),
        ("WORLD_SIZE", "1+1", None),
        ("WORLD_SIZE", "0+1", None),
        ("WORLD_SIZE", "2:4+1", None),
        ("WORLD_SIZE", "2+1:4", None),
        ("SLIPWAY_SPARES", "-1", None),
        ("SLIPWAY_SPARES", "one", None),
        ("WORLD_SIZE", "4:2", None),
        ("WORLD_SIZE", "2:", None),
        ("WORLD_SIZE", ":2", None),
        ("WORLD_SIZE", "0:2", None),
        ("WORLD_SIZE", "0", None),
        ("WORLD_SIZE", "", None),
        ("RANK", "-1", None),
        ("RANK", "1e3", None),
        ("RANK", " 7", None),
        ("RANK", "٣", None),
        ("RANK", "99999999999999999999", None),
        ("MASTER_PORT", "65535", None),
        ("NPROC_PER_NODE", "1025", None),
        ("NPROC_PER_NODE", "AUTO ", None),
        ("SLIPWAY_MAX_RESTARTS", "-1", None),
        ("SLIPWAY_MAX_RESTARTS", "many", None),
        ("SLIPWAY_GRACE_SECONDS", "0", None),
        ("SLIPWAY_GRACE_SECONDS", "2 minutes", None),
        ("SLIPWAY_BACKEND", "NCCL", None),
        ("SLIPWAY_OVERSUBSCRIBE", "2", None),
    ],
)
def test_values_are_read_or_refused(name: str, text: str, value: object) -> None:
    setting, claim = BY_NAME[name], Claim(text, f"environment ({name})")
    if value is not None:
        assert parse_claim(setting, claim) == value
        return
    with pytest.raises(LaunchError, match=r"allowed|needed|fixed") as caught:
        parse_claim(setting, claim)
    assert caught.value.code == CONFIGURATION
    assert f"{name}={text} (from the environment)" in str(caught.value)
    nodes = name == "WORLD_SIZE" and {"+", ":"} & {*text}
    says = (
        r"such as 2\+1|leave them out|are allowed|Type --nnodes \d+:\d+\.|WORLD_SIZE=1"
        if nodes
        else f"Set for example {name}={setting.default}"
    )
    assert re.search(says, str(caught.value))
    if "Set for example" in says:  # as it was given
        with pytest.raises(LaunchError, match=f"Type for example {setting.option} {setting.default}"):
            parse_claim(setting, Claim(text, f"command line ({setting.option})"))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("WORLD_SIZE", 1, 65_536),
        ("RANK", 0, 65_535),
        ("MASTER_PORT", 0, 65_534),  # the next one is torchrun's store
        ("NPROC_PER_NODE", 1, 1024),
        ("SLIPWAY_GRACE_SECONDS", 1, 86_400),
        ("SLIPWAY_AFTER_FAILURE_SECONDS", 1, 86_400),
        ("SLIPWAY_MAX_RESTARTS", 0, 1000),
        ("SLIPWAY_PROGRESS_SECONDS", 1, 999_999),
        ("SLIPWAY_HANG_SECONDS", 0, 86_400),
        ("SLIPWAY_START_SECONDS", 0, 86_400),
        ("SLIPWAY_METRICS_PORT", 0, 65_535),
        ("SLIPWAY_RENDEZVOUS_TIMEOUT", 1, 86_400),
        ("SLIPWAY_HEARTBEAT_TIMEOUT", 2, 3600),
        ("SLIPWAY_ELASTIC_WINDOW", 0, 86_400),
        ("SLIPWAY_SPARES", 0, 65_536),
        ("SLIPWAY_STORE_LIMIT", 0, 1_000_000),
        ("SLIPWAY_STORE_PARALLEL", 1, 64),
    ],
)
def test_a_number_has_bounds_and_the_message_names_them(name: str, least: int, most: int) -> None:
    for number in (least, most):
        assert parse_claim(BY_NAME[name], Claim(str(number), "default")) in (number, (number, number, 0))
    for number in (least - 1, most + 1):
        with pytest.raises(LaunchError) as caught:
            parse_claim(BY_NAME[name], Claim(str(number), "default"))
        assert re.search(rf"\b{least} to {most}\b", str(caught.value))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("NPROC_PER_NODE", "a number from 1 to 1024, auto, gpu or cpu is needed"),
        ("SLIPWAY_MAX_RESTARTS", "a number from 0 to 1000 or auto is needed"),
        ("SLIPWAY_BACKEND", "auto, nccl, gloo, mpi are allowed"),
    ],
)
def test_the_words_that_are_allowed_are_all_named(name: str, allowed: str) -> None:
    with pytest.raises(LaunchError) as caught:
        make_sources({name: "many"}).parsed(name)
    assert f": {allowed}" in str(caught.value)


@each()
def test_what_is_switched_needs_no_value_on_the_command_line(setting: Setting) -> None:
    try:
        switched = setting.parse("yes") is True
    except ValueError:
        switched = False
    assert setting.flag is (switched and bool(setting.option))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("Yes", True), ("0", False), ("False", False), ("NO", False)],
)
def test_a_switch_may_be_written_in_several_ways(text: str, value: bool) -> None:
    assert make_sources({"SLIPWAY_DEBUG": text}).parsed("SLIPWAY_DEBUG") is value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("SLIPWAY_BACKEND", "glo", "Did you mean gloo?"),
        ("SLIPWAY_BACKEND", "NCCL", "Did you mean nccl?"),
        ("NPROC_PER_NODE", "atuo", "Did you mean auto?"),
        ("SLIPWAY_BACKEND", "ucx", None),
        ("NPROC_PER_NODE", "n", None),  # N, which stands for a number, is no word to type
        ("SLIPWAY_GRACE_SECONDS", "s", None),
    ],
)
def test_who_mistyped_a_word_is_told_the_nearest(name: str, text: str, says: str | None) -> None:
    with pytest.raises(LaunchError) as caught:
        make_sources({name: text}).parsed(name)
    assert (says in str(caught.value)) if says else ("Did you mean" not in str(caught.value))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WORKLOAD", "'gpt"),
        ("SLIPWAY_NOTIFY", "hooks.example/a"),
        ("SLIPWAY_NOTIFY", "ftp://hooks.example/a"),
        ("SLIPWAY_NOTIFY", "https:///a"),
        ("SLIPWAY_NOTIFY", "https://hooks.example/a b"),
    ],
)
def test_a_setting_without_an_option_or_a_default_suggests_none(name: str, text: str) -> None:
    with pytest.raises(LaunchError) as caught:
        make_sources({name: text}).parsed(name)
    assert "Type for example" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("command line (--node-rank)", "--node-rank 3"),
        ("environment (RANK)", "RANK=3 (from the environment)"),
        ("environment (NODE_RANK)", "RANK=3 (from environment (NODE_RANK))"),
        (".env (RANK)", "RANK=3 (from .env)"),
        ("job.env (RANK)", "RANK=3 (from job.env)"),
        ("own.yaml line 2 (--node-rank)", "RANK=3 (from own.yaml line 2 (--node-rank))"),
        ("Slurm (SLURM_NODEID)", "RANK=3 (from Slurm (SLURM_NODEID))"),
    ],
)
def test_a_message_shows_a_value_with_its_source_or_as_it_was_typed(source: str, shown: str) -> None:
    assert Claim("3", source).about("RANK") == shown


def test_the_default_of_a_place_wins_over_the_tables_and_an_option_may_come_from_elsewhere() -> None:
    runs = BY_NAME["SLIPWAY_RUNS"]
    sources = make_sources(
        {}, {"SLIPWAY_RUNS": "/b"}, defaults={"SLIPWAY_RUNS": "/a"}, origins={"SLIPWAY_RUNS": "x.yaml"}
    )
    assert sources.claims(runs) == [Claim("/b", "x.yaml"), Claim("/a", "default")]


def test_the_winning_value_is_checked() -> None:
    assert make_sources({"SLIPWAY_GRACE_SECONDS": "30"}).value("SLIPWAY_GRACE_SECONDS") == "30"
    with pytest.raises(LaunchError, match=r"SLIPWAY_GRACE_SECONDS=soon \(from \.env"):
        make_sources({}, env_file={"SLIPWAY_GRACE_SECONDS": "soon"}).value("SLIPWAY_GRACE_SECONDS")


def table_rows(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `([A-Z_]+)` \| (?:`(--[a-z-]+)`|[^|]*) \|", text, flags=re.MULTILINE)


def example_lines() -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """(`# ` or nothing, name, value) of each setting in `.env.example`, and of each name that only compose reads."""
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    settings, compose = (
        re.findall(r"^(# )?([A-Z][A-Z_]*)=(.*)$", part, flags=re.MULTILINE)
        for part in text.split("# --- Docker Compose only")
    )
    return settings, compose


def compose_file() -> str:
    """compose.yaml, but for what it tells the launcher of Compose (tests/unit/launch/resolve/test_suggested_commands.py)."""
    return re.sub("      COMPOSE_TYPED_.*\n", "", (ROOT / "compose/compose.yaml").read_text(encoding="utf-8"))


def test_the_example_file_lists_every_setting_at_its_default() -> None:
    settings, _ = example_lines()
    assert settings == [("# ", setting.name, setting.default) for setting in SETTINGS]


def test_the_example_file_has_what_only_compose_reads_at_its_default() -> None:
    _, compose = example_lines()
    read = re.findall(r"\$\{(\w+):-([^}]*)\}", compose_file())
    defaults = dict.fromkeys(("# ", name, value) for name, value in read if name not in BY_NAME)
    assert compose == [("", "COMPOSE_FILE", "compose/compose.yaml"), ("# ", "COMPOSE_PROFILES", ""), *defaults]


def test_compose_passes_every_setting_on() -> None:
    passed = re.findall(r"^      ([A-Z_]+): \$\{(\w+):-(.*)\}$", compose_file(), flags=re.MULTILINE)
    own_default = {"SLIPWAY_RESUME": "auto"}
    assert passed == [(name, name, own_default.get(name, "")) for name in BY_NAME]


def test_the_example_file_can_be_read_when_everything_in_it_is_switched_on(tmp_path: Path) -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    file = tmp_path / ".env"
    file.write_text(re.sub(r"^# ([A-Z][A-Z_]*=)", r"\1", text, flags=re.MULTILINE))
    settings, compose = example_lines()
    read = [line for line in compose if line[1] in ("COMPOSE_FILE", "IMAGE")]  # the rest is Compose's alone
    assert split_env_file(file)[0] == {name: value for _, name, value in settings + read if value}


def test_the_readme_lists_the_contract() -> None:
    rows = table_rows((ROOT / "README.md").read_text(encoding="utf-8"))
    assert rows[:5] == [(setting.name, setting.option) for setting in SETTINGS[:5]]
    assert set(rows) <= {(setting.name, setting.option) for setting in SETTINGS}


def test_reading_leaves_the_process_alone(tmp_path: Path) -> None:
    file, before = tmp_path / ".env", dict(os.environ)
    file.write_text("RANK=1\nFRESH_NAME=x\n")
    split_env_file(file)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("environ", "env_file", "claim"),
    [
        ({"NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG": "WARN"}, Claim("INFO", "environment (NCCL_DEBUG)")),
        ({"NCCL_DEBUG": ""}, {"NCCL_DEBUG": "WARN"}, Claim("WARN", ".env (NCCL_DEBUG)")),
        ({"OLDER": "1"}, {"NCCL_DEBUG": "WARN"}, Claim("1", "environment (OLDER)")),
        ({"OLDER": "1", "NCCL_DEBUG": "INFO"}, {}, Claim("INFO", "environment (NCCL_DEBUG)")),
        ({}, {"OLDER": "1"}, Claim("1", ".env (OLDER)")),
        ({}, {}, None),
    ],
)
def test_the_environment_beats_the_file_for_variables_that_are_no_settings_too(
    environ: dict[str, str], env_file: dict[str, str], claim: Claim | None
) -> None:
    assert make_sources(environ, env_file=env_file).variable("NCCL_DEBUG", "OLDER") == claim


@pytest.mark.parametrize(
    "name", ["SLIPWAY_WARM", "SLIPWAY_WATCH", "SLIPWAY_DEBUG", "SLIPWAY_CHECK", "SLIPWAY_ALLOW_UNEVEN"]
)
@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("1", True),
        ("true", True),
        ("YES", True),
        ("on", True),
        ("0", False),
        ("False", False),
        ("no", False),
        ("Off", False),
    ],
)
def test_a_switch_is_set_by_any_of_the_usual_words(name: str, text: str, means: bool) -> None:
    assert make_sources({name: text}).parsed(name) is means


@pytest.mark.parametrize(
    ("options", "given", "rank"),
    [
        ({}, {}, "7"),
        ({"env_file": "other.env"}, {}, "8"),
        ({"env_file": "/dev/null"}, {}, "0"),
        ({"RANK": 3, "SLIPWAY_RUNS": None, "json": True}, {"RANK": "3"}, "3"),
        ({"standalone": True, "RANK": 3}, {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}, "0"),
    ],
    ids=str,
)
def test_the_command_line_the_environment_and_a_file_are_read(
    options: dict[str, object], given: dict[str, str], rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*BY_NAME, "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    Path(".env").write_text("RANK=7\n")
    Path("other.env").write_text("RANK=8\n")
    sources = read_sources(options, {})
    assert sources.options == given
    assert sources.claims(BY_NAME["RANK"])[0].value == rank


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"RANK": ""}, "--node-rank: the value is empty. .* (N|auto), or leave the option out (default: 0)"),
        ({"SLIPWAY_RUNS": ""}, "--runs: the value is empty. .* (DIR), or leave the option out (default: /here)"),
        ({"SLIPWAY_RUN_DIR": ""}, "--run-dir: the value is empty. .* (default: none)"),
        ({"env_file": "absent.env"}, "--env-file absent.env: there is no such file"),
        ({"SLIPWAY_ON_HANG": "kill"}, "--on-hang kill: report, end are allowed"),
    ],
)
def test_an_option_without_a_value_and_a_file_that_is_not_there_are_refused(
    options: dict[str, object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError) as caught:
        read_sources(options, {"SLIPWAY_RUNS": "/here"})
    assert all(part in str(caught.value) for part in says.split(" .* "))


@pytest.mark.parametrize("text", ["2+", "2+-1", "2+x", "+1", "2 + 1", "2+1+1", "2+1.5"])
def test_spare_nodes_without_a_number_are_refused_with_their_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"NODES\+SPARES is needed, such as 2\+1"):
        BY_NAME["WORLD_SIZE"].parse(text)
