"""The command ``spikestill``: reads arguments, runs one verb, prints its summary, gives the exit status.

Exit status: 0 done; 1 the run failed; 2 the arguments are wrong; 130 the user interrupted it.
Nothing heavy is imported here: a verb's modules are imported when it runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spikestill.common.errors import BackendError, UserError, printable
from spikestill.common.stage import StageResult, interrupted_by_signals
from spikestill.common.surroundings import check_thread_counts, open_closed_streams, spin_briefly
from spikestill.verbs import VERBS, Verb

FAILED, BAD_ARGUMENTS, INTERRUPTED = 1, 2, 130
# Verbs that make what others in the run folder read: one of them at a time.
MAKERS = ("teach", "import", "record", "distill", "map", "run", "sweep")
# Options of every verb: name to (takes a value, help).
COMMON: dict[str, tuple[bool, str]] = {
    "config": (True, "YAML recipe, a file or the name of a shipped one; flags override it"),
    "run_dir": (True, "folder for what the command writes; made if absent"),
    "resume": (False, "go on with what an interrupted run left in --run_dir"),
    "print_config": (False, "print the resolved options as YAML, and do nothing else"),
    "verbose": (False, "print every figure of the summary after the verdict"),
    "json": (False, "print the summary as one JSON object, last on standard output"),
    "debug": (False, "show the traceback of a failure"),
    "help": (False, "show this help"),
}


@dataclasses.dataclass
class Arguments:
    """What the user typed after the verb: common options, and the verb's own by dotted name."""

    common: dict[str, str] = dataclasses.field(default_factory=dict)
    own: dict[str, str] = dataclasses.field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name); return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    try:
        with interrupted_by_signals():
            status = _main(words)
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output left; the interpreter still wants to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:  # standard output cannot be written: its disk is full, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"spikestill: standard output cannot be written ({error.strerror})", file=sys.stderr)
        return FAILED


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(general_help())
        return 0
    if words[0] in ("-V", "--version"):
        from spikestill import __version__

        print(f"spikestill {__version__}")
        return 0
    if words[0] not in VERBS:
        from spikestill.configs.loading import unknown

        return _bad_arguments(unknown(words[0], list(VERBS), "command"), "spikestill --help")
    verb, debug = VERBS[words[0]], "--debug" in words
    try:
        check_thread_counts(os.environ)
        spin_briefly(os.environ)
        verb = verb.chosen(words[1:])
        arguments = parse(verb, words[1:])
        if "help" in arguments.common:
            print(verb_help(verb))
            return 0
        run_dir = _run_dir(verb, arguments)
        config = _config(verb, arguments, run_dir)
    except UserError as error:
        if debug:
            import traceback

            traceback.print_exception(error)
        return _bad_arguments(error, f"spikestill {verb.name} --help")
    except BrokenPipeError:
        raise
    except Exception as error:
        return _failed(error, debug)
    if "print_config" in arguments.common:
        from spikestill.configs.loading import to_yaml

        print(to_yaml(config), end="")
        return 0
    return _run(verb, config, run_dir, arguments, debug)


def _run(verb: Verb, config: Any, run_dir: Path, arguments: Arguments, debug: bool) -> int:
    as_json, resume = "json" in arguments.common, "resume" in arguments.common
    try:
        # What libraries print goes to standard error: standard output is the summary's.
        with (
            contextlib.redirect_stdout(sys.stderr),
            run_folder(verb, run_dir),
            saved_config(verb, config, run_dir) as put_back,
        ):
            result = verb.run(config, run_dir, resume=resume)
            if not (result.finished or verb.goes_on):
                put_back()
    except BrokenPipeError:
        raise
    except Exception as error:
        return _failed(error, debug)
    report(verb, result, as_json, verbose="verbose" in arguments.common)
    if result.finished:
        return 0
    if not verb.goes_on:
        print("stopped before the end", file=sys.stderr)
        return INTERRUPTED
    word = arguments.own.get(verb.positional, "")
    again = shlex.join(["spikestill", verb.name, *([word] if word else []), "--run_dir", str(run_dir)])
    again += " --resume and the same options" if verb.resumable else " and the same options"
    print(f"stopped before the end; go on with: {again}", file=sys.stderr)
    return INTERRUPTED


def run_folder(verb: Verb, run_dir: Path) -> contextlib.AbstractContextManager[None]:
    """Return what holds the run folder while the verb works: alone, where it makes what others read."""
    from spikestill.common.run_lock import NAME, run_lock

    if not verb.writes:
        return contextlib.nullcontext()
    return run_lock(run_dir, verb.name, NAME if verb.name in MAKERS else f"{NAME}-{verb.name}")


@contextlib.contextmanager
def saved_config(verb: Verb, config: Any, run_dir: Path) -> Iterator[Callable[[], None]]:
    """Keep the resolved options of a run in ``run_dir/VERB.config.yaml``; yield what puts back what lay there before.

    It does so where the run fails, or is interrupted and cannot be resumed, before it writes its artefact.
    """
    from spikestill.common.atomic import write_bytes, write_text
    from spikestill.common.limits import DOCUMENT_BYTES
    from spikestill.configs.loading import to_yaml

    if not verb.writes:
        yield lambda: None
        return
    path, artefact = run_dir / f"{verb.name}.config.yaml", run_dir / verb.artefact
    if path.is_file() and path.stat().st_size > DOCUMENT_BYTES:
        raise UserError(
            f"{path}: {path.stat().st_size:,} bytes, options have at most {DOCUMENT_BYTES:,}", "move it away"
        )
    before, stamp = path.read_bytes() if path.is_file() else None, _stamp(artefact)

    def put_back() -> None:
        if _stamp(artefact) == stamp:
            if before is None:
                path.unlink(missing_ok=True)
            else:
                write_bytes(path, before)

    try:
        write_text(path, to_yaml(config))
        yield put_back
    except BaseException as error:
        if isinstance(error, Exception) or not verb.goes_on:
            put_back()
        raise


def _stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None


def report(verb: Verb, result: StageResult, as_json: bool, *, verbose: bool = False) -> None:
    """Print a run's summary on standard output: in words, with every figure after them, or as JSON."""
    summary = {**result.summary, "finished": result.finished}
    if verb.writes:
        summary["artefact"] = str(result.artefact)
    if as_json:
        print(json.dumps(summary, default=str), flush=True)
        return
    if "script" in summary:
        print(summary["script"])
        return
    from spikestill.console import print_summary
    from spikestill.verdicts import verdict

    words = verdict(verb.name, summary)
    for line in words:
        print(printable(line))
    if verb.writes and words:
        print(f"Wrote {result.artefact}")
    if verbose or not words:
        print_summary(verb.name, summary)


def parse(verb: Verb, words: Sequence[str]) -> Arguments:
    """Return what ``words`` (after the verb) say: ``--name value``, ``--name=value``, a bare word, switches.

    After ``--`` every word is a bare one.

    Raises:
        UserError: an unknown option (the nearest is named), a missing value, a bare word too many.
    """
    from spikestill.configs.loading import unknown
    from spikestill.configs.options import full_name, options, shown_options

    own = {option.name: option for option in options(verb.config_class())}
    shown = [option.name for option in shown_options(verb.config_class())]
    arguments, index, bare, ended = Arguments(), 0, "", False
    while index < len(words):
        word, index = words[index], index + 1
        if word == "--" and not ended:
            ended = True
            continue
        if ended or not word.startswith("-") or word == "-":
            _positional(verb, word, arguments)
            bare = word
            continue
        if not word.startswith("--"):
            if word != "-h":
                raise UserError(f"unknown option {word}", "options begin with --, such as --help")
            word = "--help"
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        name = getattr(verb.config_class(), "ALIASES", {}).get(name, name)
        if name not in COMMON and name not in own:
            name = full_name(name, shown) or name
        if name in COMMON and not COMMON[name][0]:
            if equals:
                raise UserError(f"--{name} is a switch, it takes no value", f"give --{name} alone")
            arguments.common[name] = "true"
            continue
        if name not in own and name not in COMMON:
            # A whole group may be given as its YAML in the recipe only.
            common = [each for each in COMMON if each != "resume" or verb.goes_on]
            raise unknown(name, [*own, *common], "option")
        if bare and name == verb.positional:
            raise UserError(f"{word} is given, and {bare!r} without its name too", "omit one of them")
        if not equals:
            following = words[index] if index < len(words) else None
            takes_none = name in own and own[name].type is bool
            if following is None or following.startswith("--") or (takes_none and not _is_bool(following)):
                if not takes_none:
                    raise UserError(f"--{name} needs a value", f"give --{name} VALUE")
                value = "true"
            else:
                value, index = following, index + 1
        given = arguments.common if name in COMMON else arguments.own
        if name in given:
            raise UserError(f"--{name} is given twice: {given[name]!r} and {value!r}", "omit one of them")
        given[name] = value
    if "resume" in arguments.common and not verb.goes_on:
        resumable = ", ".join(name for name, each in VERBS.items() if each.resumable)
        raise UserError(f"{verb.name} has nothing to resume", f"omit --resume; it is for {resumable}")
    return arguments


def _is_bool(word: str) -> bool:
    from spikestill.configs.loading import FALSE, TRUE

    return word.lower() in TRUE + FALSE


def _positional(verb: Verb, word: str, arguments: Arguments) -> None:
    if not verb.positional:
        raise UserError(
            f"{verb.name} takes no {word!r}", f"options start with --; see spikestill {verb.name} --help"
        )
    if verb.positional in arguments.own:
        raise UserError(
            f"{verb.name} takes one {_positional_word(verb)}, {word!r} is one too many", "omit it"
        )
    arguments.own[verb.positional] = word.replace("-", "_") if verb.positional.endswith("game") else word


def _positional_word(verb: Verb) -> str:
    return verb.positional.rpartition(".")[2].upper()


def _run_dir(verb: Verb, arguments: Arguments) -> Path:
    if "run_dir" in arguments.common:
        if not arguments.common["run_dir"]:
            raise UserError("--run_dir is empty", "give a folder; . is the one that you are in")
        try:
            run_dir = Path(arguments.common["run_dir"]).expanduser()
        except RuntimeError as error:
            given = arguments.common["run_dir"]
            raise UserError(f"--run_dir {given}: no such user's home is known", "give it in full") from error
        if run_dir.exists() and not run_dir.is_dir():
            raise UserError(f"--run_dir {run_dir} is a file, a folder is wanted", "give the name of a folder")
        return run_dir
    if verb.name == "run":
        return Path("runs") / Path(arguments.common.get("config", "pipeline")).stem
    if verb.name == "sweep" and "recipe" in arguments.own:
        return Path("runs") / f"sweep-{Path(arguments.own['recipe']).stem}"
    if "resume" in arguments.common:
        raise UserError(
            "--resume does not say which run", "give --run_dir, the folder of the interrupted run"
        )
    return Path("runs") / f"{verb.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _config(verb: Verb, arguments: Arguments, run_dir: Path) -> Any:
    from spikestill.configs.loading import TRUE, MissingOptionError, find_recipe, load, nested, read_recipe
    from spikestill.configs.options import options

    recipe = find_recipe(arguments.common["config"]) if "config" in arguments.common else None
    given = nested({**(read_recipe(recipe) if recipe else {}), **arguments.own})
    # What an earlier command left in this run folder is the input of the next one.
    defaults = {option.name: option.default for option in options(verb.config_class())}
    found = {
        option: str(run_dir / name)
        for option, name in verb.inputs.items()
        if option not in given
        # A file that it cannot do without is looked for where the user says, and missed there.
        and ((run_dir / name).is_file() or ("run_dir" in arguments.common and defaults[option] is not None))
    }
    asks = next((name for name in ("environment.game", "game") if name in defaults), "")
    if "stream_game" in defaults and str(given.get("stream")).lower() in TRUE:
        asks = "stream_game"
    there = ""
    if asks and "run_dir" in arguments.common and (verb.name == "teach" or not _given(given, asks)):
        from spikestill.run_folder import game_of

        there = game_of(run_dir)
        if there and not _given(given, asks):
            found |= {asks: there}
    try:
        config: Any = load(verb.config_class(), recipe, {**found, **arguments.own})
    except MissingOptionError as error:
        if error.option == verb.positional:
            raise _without_bare_word(verb) from error
        raise
    if verb.name == "teach" and there and config.environment.game not in there.split("+"):
        raise UserError(
            f"{run_dir} has files of {there}, and a teacher of {config.environment.game} is asked for",
            "give another --run_dir",
        )
    return config


def _without_bare_word(verb: Verb) -> UserError:
    from spikestill.completion import bare

    known = f", one of {', '.join(bare(verb))}" if bare(verb) else ""
    example = verb.example.splitlines()[0].strip()
    return UserError(f"{verb.name} needs {_positional_word(verb)}{known}", f"give it, as in: {example}")


def _given(values: Any, name: str) -> bool:
    """Return whether nested ``values`` have the option of this dotted name."""
    for part in name.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


def general_help() -> str:
    """Return the text of ``spikestill --help``."""
    width = max(map(len, VERBS))
    lines = [
        "usage: spikestill VERB [--config recipe.yaml] [--option value ...]",
        "",
        "Distil Atari policies into networks that run on neurosynaptic cores, and play them live.",
        "",
        *(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items()),
        "",
        "First steps:",
        "  spikestill play pong            play the shipped Pong student in real time",
        "  spikestill run --config demo    all stages on Pong, ends with an HTML report",
        "  spikestill VERB --help          every option of a command, with an example",
    ]
    return "\n".join(lines)


def verb_help(verb: Verb) -> str:
    """Return the text of ``spikestill VERB --help``: usage, an example and every option with its default."""
    import textwrap

    from spikestill.configs.loading import to_flag
    from spikestill.configs.options import Choices, rule_of, told_options, type_name

    bare = f" [{_positional_word(verb)}]" if verb.positional else ""
    what = " ".join((verb.config_class().__doc__ or "").split())
    lines = [
        f"usage: spikestill {verb.name}{bare} [--config recipe.yaml] [--option value ...]",
        "",
        f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        *textwrap.wrap(what, 100),
        "",
        "example:",
        *(f"  {line}" for line in verb.example.splitlines()),
        "",
        *_names_explained(verb),
        "options:",
    ]
    for option in told_options(verb.config_class()):
        default = "required" if option.default is dataclasses.MISSING else to_flag(option.default) or "empty"
        lines.append(f"  --{option.name} {type_name(option.type)}  [{default}]")
        lines += textwrap.wrap(
            option.doc.replace("``", ""), 100, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
        rule = rule_of(option.type)
        if isinstance(rule, Choices):
            lines += [f"        {name:<12} {text}" for name, text in rule.explained().items()]
    lines += ["", "options of every command:"]
    for name, (takes_value, text) in COMMON.items():
        if name == "resume" and not verb.resumable:
            continue
        lines.append(f"  --{name}{' VALUE' if takes_value else ''}")
        lines.append(f"      {text}")
    return "\n".join(lines)


def _names_explained(verb: Verb) -> list[str]:
    """Return what a bare word stands for, and how much of a dotted name is enough."""
    from spikestill.configs.options import told_options

    lines = []
    if verb.positional:
        lines.append(f"{_positional_word(verb)} is --{verb.positional}, without its name.")
    parts = [option.name.rpartition(".") for option in told_options(verb.config_class())]
    dotted = [name for _, dot, name in parts if dot and name != "game"]
    if dotted:
        lines.append(
            f"The last part of a dotted option is enough where no other ends so: --{dotted[0]} VALUE."
        )
    return [*lines, ""] if lines else []


def _bad_arguments(error: UserError, see: str) -> int:
    print(f"spikestill: {printable(str(error))}\nsee `{see}`", file=sys.stderr)
    return BAD_ARGUMENTS


def _failed(error: Exception, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
        return FAILED
    if isinstance(error, ImportError):
        from spikestill.common.extras import absent_extra

        error = absent_extra(error) or error
    if isinstance(error, BackendError):
        print(
            f"spikestill: {printable(str(error))}\n`spikestill doctor` says what works here.", file=sys.stderr
        )
        return FAILED
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and not isinstance(error, UserError):
        name = f"{error.filename}: " if error.filename else ""
        remedy = "check that the path exists and that you may use it"
        text = str(UserError(f"{name}{error.strerror or text}", remedy))
    elif not isinstance(error, UserError):
        what = f"unexpected {type(error).__name__}: {text}"
        text = str(UserError(what, "run again with --debug for the traceback"))
    print(f"spikestill: {printable(text)}", file=sys.stderr)
    return FAILED
