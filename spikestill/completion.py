"""The ``completion`` verb: a script with which a shell completes commands, options and their values."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from spikestill.common.stage import StageResult
from spikestill.configs.loading import shipped_recipes
from spikestill.configs.options import Option, choices, members, told_options
from spikestill.configs.pipeline import CompletionConfig
from spikestill.verbs import VERBS, Verb

COMMON = ("config", "run_dir", "print_config", "json", "verbose", "debug", "help")
RECIPES = {"run": "demo"}
"""Command to how its shipped recipes' names begin, where that is not the command's."""


def run(config: CompletionConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Return the shell's script, printed as it is."""
    return StageResult(Path(), {"script": SCRIPTS[config.shell]()})


def flags(verb: Verb) -> list[str]:
    """Return the flags of a command, dotted ones by their last part where no other ends so."""
    names = [option.name for option in told_options(verb.config_class())]
    tails = [name.rpartition(".")[2] for name in names]
    short = [tail if tails.count(tail) == 1 else name for name, tail in zip(names, tails, strict=True)]
    resume = ("resume",) if verb.goes_on else ()
    return [f"--{name}" for name in (*short, *COMMON, *resume)]


def values(verb: Verb) -> dict[str, list[str]]:
    """Return flag to its values, where those are a list."""
    found = {}
    for option in told_options(verb.config_class()):
        if known := _listed(option):
            for name in {option.name, option.name.rpartition(".")[2]}:
                found[f"--{name}"] = known
    if recipes := [
        name for name in shipped_recipes() if name.startswith(RECIPES.get(verb.name, f"{verb.name}-"))
    ]:
        found["--config"] = recipes
    return found


def _listed(option: Option) -> list[str]:
    if option.name.rpartition(".")[2] == "game":
        from spikestill.common.atari import PAPER_GAMES

        return list(PAPER_GAMES)
    if option.type is bool:
        return ["true", "false"]
    return [str(choice) for member in members(option.type) for choice in choices(member) or ()]


def bare(verb: Verb) -> list[str]:
    """Return what may stand after a command without a name; nothing where that is a file."""
    return values(verb).get(f"--{verb.positional}", []) if verb.positional else []


def _words(words: Iterable[str]) -> str:
    return " ".join(words)


def bash() -> str:
    """Return the script for bash."""
    lines = [
        "# bash completion of spikestill: put it into ~/.bashrc by",
        "#   source <(spikestill completion bash)",
        "_spikestill() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= files=1",
        "    COMPREPLY=()",
        "    if (( COMP_CWORD == 1 )); then",
        f'        COMPREPLY=( $(compgen -W "{_words(VERBS)} --help --version" -- "$word") )',
        "        return",
        "    fi",
        '    case "${COMP_WORDS[1]} $before" in',
    ]
    for name, verb in VERBS.items():
        for flag, known in sorted(values(verb).items()):
            alone = "" if flag == "--config" else " files="
            lines.append(f'        "{name} {flag}") words={shlex.quote(_words(known))};{alone} ;;')
    lines += [
        "    esac",
        "    if [[ -z $words && $before != --* || $word == --* ]]; then",
        '        case "${COMP_WORDS[1]}" in',
    ]
    for name, verb in VERBS.items():
        lines.append(f"            {name}) words={shlex.quote(_words([*bare(verb), *flags(verb)]))} ;;")
    lines += [
        "        esac",
        "    fi",
        '    COMPREPLY=( $(compgen -W "$words" -- "$word") )',
        '    [[ -n $files && $word != --* ]] && COMPREPLY+=( $(compgen -f -- "$word") )',
        "}",
        "complete -o filenames -F _spikestill spikestill",
    ]
    return "\n".join(lines)


def zsh() -> str:
    """Return the script for zsh, which reads that of bash."""
    head = "# zsh completion of spikestill: put it into ~/.zshrc by\n#   source <(spikestill completion zsh)"
    return (
        f"{head}\nautoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash()}"
    )


def fish() -> str:
    """Return the script for fish."""
    lines = [
        "# fish completion of spikestill: save it by",
        "#   spikestill completion fish > ~/.config/fish/completions/spikestill.fish",
    ]
    for name, verb in VERBS.items():
        quoted = shlex.quote(verb.summary)
        lines.append(f"complete -c spikestill -f -n __fish_use_subcommand -a {name} -d {quoted}")
        seen = f"'__fish_seen_subcommand_from {name}'"
        known = values(verb)
        if words := bare(verb):
            lines.append(f"complete -c spikestill -n {seen} -a {shlex.quote(_words(words))}")
        for flag in flags(verb):
            kind = "-r" if flag == "--config" else "-x"
            takes = f" {kind} -a {shlex.quote(_words(known[flag]))}" if flag in known else ""
            lines.append(f"complete -c spikestill -n {seen} -l {flag[2:]}{takes}")
    return "\n".join(lines)


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
