"""The command line: exit statuses, help, printed configs, one JSON object last."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from spikestill import cli, completion
from spikestill.common import extras
from spikestill.common.artefacts import RESUMED_FROM
from spikestill.common.errors import BackendError
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult
from spikestill.common.zoo import ROOT
from spikestill.configs import loading
from spikestill.configs.options import options, shown_options, type_name
from spikestill.student import integer_net
from spikestill.student.architectures import LayerSpec
from spikestill.verbs import VERBS, Verb
from tests.nets import random_net

HEAVY = ("torch", "numpy", "h5py", "numba", "lava", "av", "PIL", "rich", "yaml", "jinja2", "ale_py", "scipy")


@pytest.fixture
def student(tmp_path: Path) -> Path:
    net = random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(12, 3, 3, 0, 2)), seed=0)
    path = tmp_path / "student.safetensors"
    integer_net.save(net, path, Provenance.of({"architecture": "small"}, seed=0))
    return path


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultConfig:
    """What goes wrong."""

    fault: str = "none"
    """Name of a builtin exception."""


def fail(config: FaultConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Fail as asked, or stop before the end."""
    if config.fault == "stop":
        return StageResult(run_dir / "x", {"resumed": resume}, finished=False)
    if config.fault == "late":
        (run_dir / "x").write_text("an artefact")
        raise ZeroDivisionError("seven / 0")
    raise FAULTS[config.fault]("seven / 0")


FAULTS = {
    "ZeroDivisionError": ZeroDivisionError, "KeyboardInterrupt": KeyboardInterrupt, "BackendError": BackendError
}  # fmt: skip


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    verb = Verb(
        name="fault", summary="fail", example="spikestill fault", artefact="x",
        config="tests.spikestill.test_cli:FaultConfig", function="tests.spikestill.test_cli:fail",
    )  # fmt: skip
    monkeypatch.setitem(VERBS, "fault", verb)
    monkeypatch.setitem(RESUMED_FROM, "fault", "x")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from spikestill.cli import main; status = main(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr); sys.exit(status)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.strip() == "[]"
    for name, verb in VERBS.items():
        assert name in run.stdout
        assert verb.summary in run.stdout


@pytest.mark.parametrize("name", list(VERBS))
def test_every_verb_explains_itself_without_its_stage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb = VERBS[name]
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert verb.example.splitlines()[0] in text
    for option in options(verb.config_class()):
        assert option.doc, f"{option.name} has no docstring"
    for option in shown_options(verb.config_class()):
        assert f"--{option.name} {type_name(option.type)}" in text
    assert callable(verb.stage())


@pytest.mark.parametrize(
    "name", [name for name in VERBS if name not in ("inspect", "report", "completion", "doctor")]
)
def test_printed_config_gives_the_same_config_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    required = {
        "export": ["nir"],
        "import": ["agent.zip", "--game", "pong"],
        "sweep": ["table2"],
        "replay": ["t.h5"],
        "compare": ["t.h5", "--other", "o.h5"],
    }.get(name, [])
    assert cli.main([name, *required, "--print_config"]) == 0
    printed = capsys.readouterr().out
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(printed)
    assert cli.main([name, "--config", str(recipe), "--print_config"]) == 0
    assert capsys.readouterr().out == printed
    given = {
        "export": {"to": "nir"}, "import": {"path": Path("agent.zip"), "game": "pong"}, "sweep": {"recipe": "table2"},
        "replay": {"trace": Path("t.h5")}, "compare": {"trace": Path("t.h5"), "other": Path("o.h5")},
    }.get(name, {})  # fmt: skip
    defaults = VERBS[name].config_class()(**given)
    assert loading.build(VERBS[name].config_class(), yaml.safe_load(printed)) == defaults


@pytest.mark.parametrize("recipe", sorted(loading.RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_is_valid(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verb = recipe.stem.split("-")[0] if recipe.stem.split("-")[0] in VERBS else "run"
    assert cli.main([verb, "--config", recipe.stem, "--print_config"]) == 0, capsys.readouterr().err
    resolved, asked = yaml.safe_load(capsys.readouterr().out), yaml.safe_load(recipe.read_text())
    plain = {name: value for name, value in asked.items() if not isinstance(value, dict)}
    assert {name: resolved[name] for name in plain} == plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plya"], "unknown command plya. Did you mean play?"),
        (["play", "--agnet", "cores"], "unknown option --agnet. Did you mean --agent?"),
        (["verify", "--nosuch"], "unknown option --nosuch. No name here is like it"),
        (["verify", "--resmue"], "unknown option --resmue. No name here is like it"),
        (["distill", "--resmue"], "unknown option --resmue. Did you mean --resume?"),
        (["play", "pogn"], "unknown environment 'pogn'"),
        (["play", "pong", "qbert"], "play takes one GAME, 'qbert' is one too many"),
        (
            ["play", "pong", "--environment.game", "qbert"],
            "--environment.game is given, and 'pong' without its name",
        ),
        (["play", "--environment.game", "qbert", "pong"], "play takes one GAME, 'pong' is one too many"),
        (["play", "--run_dir", ""], "--run_dir is empty"),
        (["play", "--game", "qbert", "pong"], "play takes one GAME, 'pong' is one too many"),
        (["play", "pong", "--game", "qbert"], "--game is given, and 'pong' without its name"),
        (["play", "-x"], "unknown option -x. Options begin with --"),
        (["play", "--", "pong", "qbert"], "play takes one GAME, 'qbert' is one too many"),
        (["run", "--epsilon", "0"], "--epsilon may be --record.epsilon, --play.epsilon, --evaluate.epsilon"),
        (["play", "pong", "--frame_skip", "17"], "--environment.frame_skip"),
        (["play", "--agent"], "--agent needs a value"),
        (["play", "--json=1"], "--json is a switch"),
        (["play", "--resume", "--run_dir", "x"], "play has nothing to resume"),
        (["record", "--resume"], "--resume does not say which run"),
        (["map", "what"], "map takes no 'what'"),
        (["run", "--config", "nowhere.yaml"], "nowhere.yaml: no such recipe"),
        (["run", "--record.environment.game", "qbert"], "record.environment is"),
        (["inspect"], "inspect needs PATH"),
        (
            ["evaluate", "--run_dir", "~nobody_there/x"],
            "--run_dir ~nobody_there/x: no such user's home is known",
        ),
        (["teach", "--steps", "many"], "--steps is 'many', int 1..1e9 wanted"),
    ],
)
def test_wrong_arguments_give_status_2_and_one_clear_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    text = capsys.readouterr()
    assert text.out == ""
    first, see = text.err.strip().splitlines()
    assert message in first
    assert see.startswith("see `spikestill ")


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("report", "report needs FOLDER. Give it, as in: spikestill report "),
        ("export", "export needs TO, one of ranc, nir, netx, c, rtl. Give it, as in: spikestill export nir "),
    ],
)
def test_a_missing_bare_word_is_asked_for_as_such(
    verb: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb]) == 2
    assert message in capsys.readouterr().err


def test_the_game_may_be_a_bare_word_and_hyphens_are_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["play", "space-invaders", "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["environment"]["game"] == "space_invaders"


def test_the_last_part_of_a_dotted_option_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["play", "--frame-skip", "2", "--print_config", "--", "qbert"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["environment"]["frame_skip"] == 2
    assert cli.main(["run", "--game", "qbert", "--architecture", "4chip", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["environment"]["game"], printed["distill"]["architecture"]) == ("qbert", "4chip")


def test_a_run_folder_feeds_the_next_command(student: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["map", "--run_dir", str(student.parent), "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["student"] == str(student)


def test_a_stream_is_of_the_run_folders_game(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copyfile(ROOT / "breakout" / "teacher.safetensors", tmp_path / "teacher.safetensors")
    streams = ["distill", "--config", "distill-paper", "--run_dir", str(tmp_path), "--print_config"]
    for given, game in (
        (streams, "breakout"),
        ([*streams, "--stream_game", "qbert"], "qbert"),
        ([*streams, "--stream", "no"], "pong"),  # the default: recordings say their game
    ):
        assert cli.main(given) == 0
        assert yaml.safe_load(capsys.readouterr().out)["stream_game"] == game


def test_what_a_run_folder_lacks_is_missed_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not taken from the folder that the user is in."""
    for verb, file in (
        ("distill", "buffer.h5"),
        ("verify", "student.safetensors"),
        ("estimate", "student.safetensors"),
    ):
        assert cli.main([verb, "--run_dir", str(tmp_path / "none")]) == 1
        assert str(tmp_path / "none" / file) in capsys.readouterr().err
        assert not (tmp_path / "none").exists()


def test_json_is_the_last_and_only_line_on_standard_output(
    student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["map", "--run_dir", str(student.parent), "--json"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 1
    summary = json.loads(lines[0])
    assert summary["finished"] is True
    assert Path(summary["artefact"]) == student.parent / "core_map.h5"
    assert summary["cores"] > 0
    saved = yaml.safe_load((student.parent / "map.config.yaml").read_text())
    assert saved["student"] == str(student)


def test_what_has_no_words_is_a_table(student: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(student)]) == 0
    text = capsys.readouterr().out
    assert "kind" in text
    assert "student" in text
    assert "fan in" in text
    assert "finished" not in text


def test_a_user_error_while_running_gives_status_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(tmp_path / "nothing.h5")]) == 1
    assert capsys.readouterr().err.strip().splitlines() == [
        f"spikestill: {tmp_path / 'nothing.h5'}: no such file. Give the path of an artefact."
    ]


def test_an_operating_system_error_gives_status_1_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["map", "--run_dir", str(tmp_path / "file" / "run")]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert str(tmp_path / "file") in line
    assert "Give a folder that you may write" in line


@pytest.mark.usefixtures("faulty")
def test_an_unexpected_exception_gives_one_line_and_debug_gives_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fault", "--fault", "ZeroDivisionError", "--run_dir", str(tmp_path)]
    assert cli.main(words) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == (
        "spikestill: unexpected ZeroDivisionError: seven / 0. Run again with --debug for the traceback."
    )
    assert cli.main([*words, "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.usefixtures("faulty")
def test_the_failure_of_another_program_is_told_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fault", "--fault", "BackendError", "--run_dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "spikestill: seven / 0\n`spikestill doctor` says what works here.\n"


@pytest.mark.usefixtures("faulty")
def test_the_options_beside_an_artefact_are_those_that_made_it(tmp_path: Path) -> None:
    words, saved = ["fault", "--run_dir", str(tmp_path), "--fault"], tmp_path / "fault.config.yaml"
    assert cli.main([*words, "ZeroDivisionError"]) == 1
    assert not saved.exists()
    assert cli.main([*words, "stop"]) == 130
    assert cli.main([*words, "ZeroDivisionError"]) == 1
    assert yaml.safe_load(saved.read_text()) == {"fault": "stop"}
    assert cli.main([*words, "late"]) == 1
    assert yaml.safe_load(saved.read_text()) == {"fault": "late"}


def test_an_options_remedy_names_it_as_the_command_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--distill.steps", "0"]) == 2
    assert "Give --distill.steps a value in that range" in capsys.readouterr().err
    assert cli.main(["record", "pong", "--frames", "inf"]) == 2
    assert "--frames" in capsys.readouterr().err


@pytest.mark.usefixtures("faulty")
def test_an_interrupt_ends_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fault", "--fault", "KeyboardInterrupt", "--run_dir", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.usefixtures("faulty")
def test_a_stage_that_was_stopped_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fault", "--fault", "stop", "--run_dir", str(tmp_path), "--resume", "--json"]
    assert cli.main(words) == 130
    text = capsys.readouterr()
    assert json.loads(text.out) == {"resumed": True, "artefact": str(tmp_path / "x"), "finished": False}
    assert f"spikestill fault --run_dir {tmp_path} --resume" in text.err


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    run = subprocess.run(
        f"{sys.executable} -m spikestill run --help | true",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stderr == ""


def test_doctor_lists_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    found = {check["what"]: check for check in summary["checks"]}
    assert found["Python"]["verdict"] == "ok"
    assert found["numba"]["found"]
    assert found["extra [train]"]["verdict"] == "ok"
    assert {check["what"] for check in summary["checks"] if check["verdict"] == "missing"} == set(
        summary["missing"]
    )
    assert all(check["remedy"] for check in summary["checks"] if check["verdict"] == "missing")


def test_an_absent_extra_is_optional_and_its_one_command_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(extras.Extra, "absent", lambda self: list(self.packages.values()))
    assert cli.main(["doctor", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["missing"] == []
    assert summary["ready"] is True
    rows = {check["what"]: check for check in summary["checks"]}
    assert rows["extra [lava]"]["remedy"].endswith(extras.EXTRAS["lava"].install)
    error = ModuleNotFoundError("No module named 'torch'", name="torch.nn")
    assert str(extras.absent_extra(error)).endswith("Run `pip install 'spikestill[train]'`.")
    assert extras.absent_extra(ModuleNotFoundError("x", name="spikestill.nothing")) is None


def test_the_zoo_is_a_table_of_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["zoo", "--json"]) == 0
    rows = {row["file"]: row for row in json.loads(capsys.readouterr().out)["zoo"]}
    student = rows["pong/student-1chip.safetensors"]
    assert (student["kind"], student["score"], student["cores"]) == ("student", 18.58, 1886)
    assert rows["pong/core_map-1chip.h5"]["kind"] == "core map"
    assert cli.main(["zoo", "freeway+pong", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["games"] == ["freeway+pong"]
    card = json.loads((ROOT / "freeway+pong" / "student-1chip.json").read_text())
    several = {(row["file"].partition("/")[2], row["game"]): row for row in found["zoo"]}
    assert len(several) == len(found["zoo"]) == 4
    for (_, game), row in several.items():
        assert (row["score"], row["percent_of_teacher"]) == tuple(
            card["games"][game][name] for name in ("mean", "percent_of_teacher")
        )
        assert (row["episodes"], row["cores"]) == (100, 1887)
        assert row["ci95"]
    assert cli.main(["zoo", "freeway"]) == 0
    text = capsys.readouterr().out
    assert "freeway/teacher.safetensors" in text
    assert "pong" not in text


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import spikestill

    for flag in ("-V", "--version"):
        assert cli.main([flag]) == 0
        assert capsys.readouterr().out == f"spikestill {spikestill.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pl", {"play"}),
        ("play po", {"pong"}),
        ("play --frame", {"--frame_skip"}),
        ("play --agent co", {"cores"}),
        ("distill --architecture 1", {"1chip"}),
        ("export n", {"nir", "netx"}),
        ("teach --config teach-f", {"teach-fast", "teach-fixar"}),
        ("run --config ", {"demo"}),
    ],
)
def test_bash_completes_commands_options_and_values(typed: str, offered: set[str], tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    script = tmp_path / "completion"
    made = subprocess.run(
        [sys.executable, "-m", "spikestill", "completion", "bash"], capture_output=True, text=True, check=True
    )
    script.write_text(made.stdout)
    words = typed.split(" ")
    ask = (
        f"source {script}; COMP_WORDS=(spikestill {typed}); COMP_CWORD={len(words)}; _spikestill; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    run = subprocess.run([bash, "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert set(run.stdout.split()) >= offered
    assert all(word.startswith(words[-1]) for word in run.stdout.split())


def test_only_commands_that_go_on_offer_to(capsys: pytest.CaptureFixture[str]) -> None:
    offered = {name for name, verb in VERBS.items() if "--resume" in completion.flags(verb)}
    assert {"teach", "record", "distill", "run", "sweep"} == offered


def test_a_game_that_the_zoo_does_not_have_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["zoo", "pongg"]) == cli.FAILED
    assert "nothing of 'pongg'" in (told := capsys.readouterr().err)
    assert "Did you mean 'pong'?" in told


def test_the_scripts_of_zsh_and_fish_name_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("zsh", "fish"):
        assert cli.main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(name in script for name in VERBS)


@pytest.mark.usefixtures("faulty")
def test_a_command_that_cannot_go_on_does_not_offer_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RESUMED_FROM, "fault")
    assert cli.main(["fault", "--fault", "stop", "--run_dir", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "stopped before the end\n"
