"""The page of all commands and options, made from the options themselves when the site is built (mkdocs.yml)."""

from __future__ import annotations

from typing import Any


def page() -> str:
    """Return the page as Markdown: what ``--help`` says of every command."""
    from spikestill.cli import verb_help
    from spikestill.verbs import VERBS

    parts = ["# Commands", "What `spikestill COMMAND --help` says, of every command."]
    for name, verb in VERBS.items():
        parts += [f"## {name}", f"```text\n{verb_help(verb)}\n```"]
    return "\n\n".join(parts) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the page to the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "commands.md", content=page()))
    return files
