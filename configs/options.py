"""What an option is: a field of a frozen dataclass, with its range or choices beside its type.

``steps: Annotated[int, Range(1, 1e9)] = 7_000`` says it once: the check when the object is made, ``--help`` and the
documentation all read it there. ``Literal`` lists choices that never change, :class:`Choices` those of a table.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import numbers
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from spikestill.common.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, both among them."""

    low: float
    high: float = math.inf

    def __contains__(self, value: object) -> bool:
        """Return whether ``value`` is a number in the range; booleans and NaN are not."""
        return (
            isinstance(value, numbers.Real)
            and not isinstance(value, bool)
            and self.low <= float(value) <= self.high
        )

    def __str__(self) -> str:
        """Return it as people write it: 1..1e9, or >= 1."""
        return (
            f">= {_short(self.low)}" if self.high == math.inf else f"{_short(self.low)}..{_short(self.high)}"
        )


@dataclasses.dataclass(frozen=True)
class Choices:
    """The names in a table, or those that a function gives: there may be more of them later.

    With ``several`` the value may be more than one of them, with commas between.
    """

    names: Collection[str] | Callable[[], Collection[str]]
    several: bool = False

    def known(self) -> Collection[str]:
        """Return the names that there are now."""
        return self.names() if callable(self.names) else self.names

    def explained(self) -> Mapping[str, str]:
        """Return what each name is, where the table says so."""
        known = self.known()
        texts = dict(known) if isinstance(known, Mapping) else {}
        return {name: text for name, text in texts.items() if isinstance(text, str)}


Seed = Annotated[int, Range(0, 2**31 - 1)]
Share = Annotated[float, Range(0, 1)]


class Options:
    """Base of a command's options: checks each against its range and choices, however the object is made.

    Raises:
        UserError: a value is out of its range or not among its choices, or they do not go together.
    """

    HIDDEN: ClassVar[tuple[str, ...]] = ()
    """Options, or groups of them, that are not the user's: something else sets them."""
    UNREAD: ClassVar[tuple[str, ...]] = ()
    """Options that only others of a command's kinds read: left out of the help, and refused where they are given."""
    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ()
    """Options that change nothing of what is made."""
    NEWER: ClassVar[tuple[str, ...]] = ()
    """Options that came after files were known by a hash of all: at their default they are no part of it."""

    def __post_init__(self) -> None:
        for name, annotation in field_types(type(self)).items():
            check_value(name, getattr(self, name), annotation)
        self._check()

    def _check(self) -> None:
        """Raise UserError where options do not go together."""

    def _refuse_unread(self, readers: Mapping[str, str]) -> None:
        """Raise UserError where an option is not at its default that what ``readers`` names does not read."""
        for name, reader in readers.items():
            refuse_unread(name, getattr(self, name), getattr(type(self), name), reader)


def refuse_unread(name: str, value: Any, usual: Any, reader: str) -> None:
    """Raise UserError where ``value`` is not the ``usual`` one, for ``reader`` does not read the option ``name``."""
    if value != usual:
        raise UserError(f"{name} is {value}, and {reader} does not read it", f"omit --{name}")


def unused_newer(config: Any) -> set[str]:
    """Return the options of ``NEWER`` that are at their default, as for what was made before there were any."""
    newer = getattr(config, "NEWER", ())
    return {each.name for each in dataclasses.fields(config)
            if each.name in newer and getattr(config, each.name) == default_of(each)}  # fmt: skip


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Check ``value`` against the range or the choices that ``annotation`` gives, if any.

    Raises:
        UserError: it is in none of them; ``name`` is the option.
    """
    refusal: UserError | None = None
    for member in members(annotation):
        if member is type(None):
            if value is None:
                return
            continue
        rule = rule_of(member)
        known = choices(member)
        if (
            bare(member) is int
            and isinstance(value, numbers.Real)
            and not isinstance(value, numbers.Integral)
        ):
            refusal = UserError(
                f"{name} is {value!r}, {type_name(member)} wanted", f"give --{name} a whole number"
            )
        elif isinstance(rule, Range) and value not in rule:
            refusal = UserError(
                f"{name} is {value!r}, its range is {rule}", f"give --{name} a value in that range"
            )
        elif known is not None and (strange := _strangers(value, rule, known)):
            refusal = not_among(name, strange[0], known)
        else:
            return
    if refusal is not None:
        raise refusal


def _strangers(value: Any, rule: Range | Choices | None, known: Collection[Any]) -> list[Any]:
    """Return what of ``value`` is not among the choices that there are."""
    several = isinstance(rule, Choices) and rule.several and isinstance(value, str)
    return [
        each
        for each in ([part.strip() for part in value.split(",")] if several else [value])
        if each not in known
    ]


def not_among(name: str, value: Any, known: Collection[Any]) -> UserError:
    """Return the error for an option's ``value`` that is not among the ``known`` ones."""
    shown = [str(choice) for choice in known]
    return UserError(
        f"{name} is {value!r}; known: {', '.join(shown)}", f"did you mean {nearest(str(value), shown)!r}"
    )


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types that ``annotation`` allows: those of a union, else itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def bare(annotation: Any) -> Any:
    """Return the type under an ``Annotated``, else ``annotation`` itself."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def rule_of(annotation: Any) -> Range | Choices | None:
    """Return the range or the choices beside a type, None where there are none."""
    if typing.get_origin(annotation) is not Annotated:
        return None
    return next((rule for rule in typing.get_args(annotation)[1:] if isinstance(rule, Range | Choices)), None)


def choices(annotation: Any) -> tuple[Any, ...] | None:
    """Return what a value may be, None where that is not a list."""
    rule = rule_of(annotation)
    if isinstance(rule, Choices):
        return tuple(rule.known())
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else None


def type_name(annotation: Any) -> str:
    """Return what a value of ``annotation`` is called in help and errors, with its range or choices."""
    words = []
    for member in members(annotation):
        kind, rule, known = bare(member), rule_of(member), choices(member)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind is type(None):
            words.append("null")
        elif known is not None:
            words.append("|".join(str(choice) for choice in known))
        elif origin in (tuple, list):
            inner = type_name(arguments[0])
            words.append(f"[{inner}],..." if "|" in inner or " " in inner else f"{inner},...")
        else:
            word = {str: "text", Path: "path", bool: "true|false"}.get(kind, kind.__name__)
            words.append(f"{word} {rule}" if isinstance(rule, Range) else word)
    return " or ".join(words)


def _short(value: float) -> str:
    """Return a number as people write it: 1e9, 65536, 2147483647."""
    if not math.isfinite(value):
        return str(value)
    mantissa, _, exponent = f"{value:g}".partition("e")
    text = f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return text if float(text) == value else str(value)


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a command: its dotted name, type, default (MISSING if none) and help."""

    name: str
    type: Any
    default: Any
    doc: str


def field_docs(config_class: type[Any]) -> Mapping[str, str]:
    """Return the docstring under each field of a dataclass, on one line."""
    docs: dict[str, str] = {}
    for owner in reversed(config_class.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                docs[statement.target.id] = " ".join(str(after.value.value).split())
    return docs


def field_types(config_class: Any) -> Mapping[str, Any]:
    """Return the resolved annotation of each field of a class of options, with what stands beside its type."""
    return _field_types(config_class)


@functools.cache
def _field_types(config_class: type[Any]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(config_class, include_extras=True)
    return types.MappingProxyType(
        {field.name: hints[field.name] for field in dataclasses.fields(config_class)}
    )


def nested_class(annotation: Any) -> type | None:
    """Return the dataclass that ``annotation`` (``X`` or ``X | None``) names, None if it names none."""
    for member in members(annotation):
        if isinstance(member, type) and dataclasses.is_dataclass(member):
            return member
    return None


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default, ``dataclasses.MISSING`` where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def options(config_class: type) -> list[Option]:
    """Return every option of a command, nested ones by dotted names, in order of definition."""
    return list(_options(config_class, "", None))


def _options(config_class: type, prefix: str, defaults: Any) -> Iterator[Option]:
    """Yield the options of a class; ``defaults``, an object of it where there is one, wins over its own."""
    docs, kinds = field_docs(config_class), field_types(config_class)
    for field in dataclasses.fields(config_class):
        default = default_of(field) if defaults is None else getattr(defaults, field.name)
        inner = nested_class(kinds[field.name])
        if inner is None:
            yield Option(prefix + field.name, kinds[field.name], default, docs.get(field.name, ""))
        else:
            given = default if isinstance(default, inner) else None
            yield from _options(inner, f"{prefix}{field.name}.", given)


def shown_options(config_class: type) -> list[Option]:
    """Return the options of a command that are the user's."""
    hidden = getattr(config_class, "HIDDEN", ())
    return [
        option
        for option in options(config_class)
        if not any(option.name == name or option.name.startswith(f"{name}.") for name in hidden)
    ]


def told_options(config_class: type) -> list[Option]:
    """Return the options of a command that its help tells of."""
    unread = getattr(config_class, "UNREAD", ())
    return [option for option in shown_options(config_class) if option.name not in unread]


def full_name(name: str, known: Collection[str]) -> str:
    """Return the option in ``known`` that ``name`` means: itself, or the only one that ends in ``.name``; '' for none.

    Raises:
        UserError: several end so.
    """
    if name in known:
        return name
    found = [option for option in known if option.endswith(f".{name}")]
    if len(found) > 1:
        raise UserError(
            f"--{name} may be {', '.join(f'--{option}' for option in found)}", "give one of them whole"
        )
    return found[0] if found else ""
