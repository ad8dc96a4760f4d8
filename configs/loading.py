"""A command's options from what the user gave: defaults first, then a YAML recipe, then dotted flags.

Options are the fields of a frozen dataclass (options.py); nested dataclasses give dotted names
(``environment.game``). Types: bool, int, float, str, Path, Literal, ``X | None``, ``tuple[X, ...]``, ``list[X]``,
each with a range or choices where it is ``Annotated``, and nested dataclasses.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from spikestill.common.errors import UserError, nearest
from spikestill.configs.options import (
    bare,
    default_of,
    field_types,
    members,
    nested_class,
    not_among,
    options,
    type_name,
)
from spikestill.configs.recipe_file import read_mapping

Config = TypeVar("Config")
RECIPES = Path(__file__).resolve().parent / "recipes"


class MissingOptionError(UserError):
    """The option of this dotted name was not given and has no default."""

    def __init__(self, option: str) -> None:
        self.option = option
        super().__init__(f"--{option} is missing and has no default", f"give --{option} VALUE")


TRUE, FALSE, NULL = ("true", "yes", "on"), ("false", "no", "off"), ("null", "none", "~", "")


def plain(config: Any) -> Any:
    """Return a config as mappings, lists and scalars that YAML and JSON hold."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def to_yaml(config: Any) -> str:
    """Return a config as YAML that :func:`load` reads back to an equal config."""
    import yaml

    return yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with dotted keys turned into nested mappings; later keys win."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        head, _, rest = str(key).partition(".")
        inner = nested({rest: value}) if rest else nested(value) if isinstance(value, Mapping) else value
        result = overlaid(result, {head: inner})
    return result


def overlaid(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested ``base`` with the values of nested ``over`` in the place of its own."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = (
            overlaid(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        )
    return result


def build(config_class: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Return the config that ``values`` give over the defaults.

    Args:
        config_class: a frozen dataclass.
        values: nested mappings; scalars may be strings, as flags give them.
        where: the dotted name of this config inside the whole, with a dot at the end, for messages.

    Raises:
        UserError: an unknown key (the nearest known one is named), a value of the wrong type, a missing
            required value, or whatever the config's own checks refuse.
    """
    known = field_types(config_class)
    for name in values:
        if name not in known:
            raise unknown(
                f"{where}{name}", [where + option.name for option in options(config_class)], "option"
            )
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        name, inner, default = field.name, nested_class(known[field.name]), default_of(field)
        full = f"{where}{name}"
        if name not in values:
            if default is dataclasses.MISSING:
                raise MissingOptionError(full)
            arguments[name] = default
        elif not isinstance(values[name], Mapping):
            if inner is not None and (values[name] is not None or type(None) not in members(known[name])):
                first = f"{full}.{dataclasses.fields(inner)[0].name}"
                raise UserError(
                    f"{full} is a group of options, not {values[name]!r}", f"give --{first} VALUE"
                )
            arguments[name] = convert(values[name], known[name], full)
        elif inner is None:
            first = next(iter(values[name]), "")
            raise UserError(f"{full} is one value, there is no {full}.{first}", f"give --{full} VALUE")
        else:
            base = plain(default) if dataclasses.is_dataclass(default) else {}
            arguments[name] = build(inner, overlaid(base, values[name]), f"{full}.")
    try:
        return config_class(**arguments)
    except UserError as error:
        if not where or error.remedy is None:
            raise
        # Its own checks do not know where in the whole they stand.
        own = re.sub(
            r"--(\w+)", lambda found: f"--{where}{found[1]}" if found[1] in known else found[0], error.remedy
        )
        raise UserError(error.what, own) from error


def convert(value: Any, annotation: Any, name: str) -> Any:
    """Return ``value`` (from YAML or a flag) as ``annotation`` asks.

    Raises:
        UserError: it is not such a value.
    """
    kinds = [bare(member) for member in members(annotation)]
    if value is None or (isinstance(value, str) and value.lower() in NULL and type(None) in kinds):
        if type(None) in kinds:
            return None
        raise _wrong(name, value, annotation)
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _convert(value, kind, name)
        except (ValueError, TypeError, OverflowError) as error:
            if isinstance(error, UserError):
                raise
    raise _wrong(name, value, annotation)


def _convert(value: Any, annotation: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        for choice in arguments:
            if str(value).lower() == str(choice).lower():
                return choice
        raise not_among(f"--{name}", value, arguments)
    if origin in (tuple, list):
        items = _items(value)
        if origin is tuple and arguments[-1] is not Ellipsis:
            if len(items) != len(arguments):
                raise UserError(
                    f"--{name} has {len(items)} values, {len(arguments)} wanted", f"give {len(arguments)}"
                )
            return tuple(convert(item, kind, name) for item, kind in zip(items, arguments, strict=True))
        return origin(convert(item, arguments[0], name) for item in items)
    if annotation is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in TRUE + FALSE:
            return str(value).lower() in TRUE
        raise TypeError
    if annotation in (int, float):
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
        if annotation is float:
            return number
        if isinstance(value, str) and value.lstrip("+-").replace("_", "").isdecimal():
            return int(value)
        if number != int(number):
            raise ValueError
        return value if isinstance(value, int) else int(number)
    if annotation is Path and isinstance(value, str | Path):
        return Path(str(value)).expanduser()
    if annotation is str:
        if isinstance(value, list | tuple | Mapping | bool):
            raise TypeError
        return str(value)
    if isinstance(annotation, type) and isinstance(value, annotation):
        return value
    raise TypeError


def _items(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    text = str(value).strip()
    if text[:1] in "[(" and text[-1:] in "])":
        text = text[1:-1]
    return [part.strip() for part in text.split(",") if part.strip()]


def _wrong(name: str, value: Any, annotation: Any) -> UserError:
    return UserError(f"--{name} is {value!r}, {type_name(annotation)} wanted", f"give --{name} such a value")


ALIKE = 0.6
"""Share of two names' letters that are the same, in the same order, from which one may be meant for the other."""


def unknown(name: str, known: Sequence[str], kind: str) -> UserError:
    """Return the error for a name that is not ``known``; it names the nearest one."""
    # Compared by last component first: `--gmae` should find `environment.game`.
    tails = {entry.rpartition(".")[2]: entry for entry in reversed(known)}
    near = nearest(name, [*known])
    tail = nearest(name.rpartition(".")[2], list(tails))
    if tail and _likeness(name.rpartition(".")[2], tail) > _likeness(name, near):
        near = tails[tail]
    dashes = "--" if kind == "option" else ""
    alike = near and max(_likeness(name, near), _likeness(name, near.rpartition(".")[2])) >= ALIKE
    remedy = f"did you mean {dashes}{near}" if alike else "no name here is like it"
    return UserError(f"unknown {kind} {dashes}{name}", remedy)


def _likeness(a: str, b: str) -> float:
    import difflib

    return difflib.SequenceMatcher(None, a, b).ratio()


def find_recipe(name: str) -> Path:
    """Return the path of a recipe: a file, or the name of one that is shipped (``demo``).

    Raises:
        UserError: there is neither.
    """
    path = Path(name).expanduser()
    if path.exists() and not path.is_dir():
        return path
    shipped = shipped_recipes()
    if path.name == name and path.stem in shipped:
        return shipped[path.stem]
    if path.parent == Path("configs/recipes") and path.stem in shipped:
        return shipped[path.stem]
    raise UserError(
        f"{name}: no such recipe; shipped: {', '.join(shipped)}",
        f"did you mean {nearest(path.stem, list(shipped))!r}",
    )


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that are shipped, by name: it begins with the command that it is for; ``demo`` is run's."""
    return {entry.stem: entry for entry in sorted(RECIPES.glob("*.yaml"))}


def read_recipe(path: Path) -> dict[str, Any]:
    """Return what a YAML recipe says, dotted keys as nested mappings.

    Raises:
        UserError: it cannot be read, is not YAML, is not a mapping, or gives an option twice.
    """
    return nested(read_mapping(path))


def load(config_class: type[Config], recipe: Path | None, flags: Mapping[str, Any]) -> Config:
    """Return a command's config: defaults, then the recipe, then ``flags`` by dotted name.

    Raises:
        UserError: see :func:`build` and :func:`read_recipe`.
    """
    values = {} if recipe is None else read_recipe(recipe)
    try:
        return build(config_class, overlaid(values, nested(flags)))
    except MissingOptionError:
        raise
    except UserError as error:
        if recipe is not None and _fault(config_class, values) == error.what:
            raise UserError(f"{recipe}: {error.what}", error.remedy) from error
        raise


def _fault(config_class: type[Any], values: Mapping[str, Any]) -> str:
    """Return what is wrong with ``values`` alone, '' for nothing."""
    try:
        build(config_class, values)
    except UserError as error:
        return error.what
    return ""


def to_flag(value: Any) -> str:
    """Return a default as a flag would give it, '' where there is none or it is empty."""
    if value is dataclasses.MISSING:
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(to_flag(item) for item in value)
    return str(value)
