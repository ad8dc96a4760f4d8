"""Options: one dataclass defines them; recipe first, flags second; errors name the nearest known option."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spikestill.common.environment import check_environment
from spikestill.common.errors import UserError
from spikestill.configs import loading
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.options import Choices, Options, Range, field_docs, full_name, options, type_name
from spikestill.configs.teach import TeachConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(Options):
    """Inner options."""

    depth: Annotated[int, Range(1, 9)] = 3
    """How deep."""
    kind: Literal["plain", "fancy"] = "plain"
    """Which kind."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    """Outer options."""

    inner: Inner = dataclasses.field(default_factory=lambda: Inner(depth=5))
    """The inner ones."""
    rate: float = 0.5
    """A rate,
    over two lines."""
    file: Path | None = None
    """A file."""
    on: bool = False
    """A switch."""
    names: tuple[str, ...] = ("a", "b")
    """Names."""
    pair: tuple[int, float] = (1, 2.0)
    """A pair."""
    text: str = "x"
    """Text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Required:
    """One option without a default."""

    path: Path
    """A path."""


def test_defaults_of_a_group_are_those_of_the_outer_class() -> None:
    assert loading.load(Outer, None, {}).inner.depth == 5
    assert loading.load(Outer, None, {"inner.kind": "fancy"}).inner == Inner(depth=5, kind="fancy")
    shown = {option.name: option.default for option in options(Outer)}
    assert shown["inner.depth"] == 5


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("inner: {depth: 7, kind: fancy}\nrate: 1e-3\nnames: [c]\n")
    config = loading.load(Outer, recipe, {"inner.depth": "8", "on": "true", "pair": "3,4"})
    assert config.inner == Inner(depth=8, kind="fancy")
    assert config.rate == 1e-3  # YAML 1.1 reads 1e-3 as text
    assert config.names == ("c",)
    assert config.on is True
    assert config.pair == (3, 4.0)


@settings(deadline=None, max_examples=60)
@given(
    depth=st.integers(1, 9),
    rate=st.floats(allow_nan=False),
    file=st.one_of(st.none(), st.from_regex(r"[a-z0-9_/]{1,12}\.h5", fullmatch=True)),
    on=st.booleans(),
    names=st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8), max_size=3
    ),
    text=st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12),
)
def test_printed_yaml_reads_back_equal(
    depth: int, rate: float, file: str | None, on: bool, names: list[str], text: str
) -> None:
    config = Outer(
        inner=Inner(depth=depth), rate=rate, file=file and Path(file), on=on, names=tuple(names), text=text
    )
    assert loading.build(Outer, yaml.safe_load(loading.to_yaml(config))) == config


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rtae": "1"}, r"unknown option --rtae\. Did you mean --rate\?"),
        ({"inner.dpeth": "1"}, r"unknown option --inner\.dpeth\. Did you mean --inner\.depth\?"),
        ({"depht": "1"}, r"unknown option --depht\. Did you mean --inner\.depth\?"),
        (
            {"inner.kind": "fancier"},
            r"--inner\.kind is 'fancier'; known: plain, fancy\. Did you mean 'fancy'\?",
        ),
        ({"inner.depth": "2.5"}, r"--inner\.depth is '2\.5', int 1\.\.9 wanted"),
        (
            {"inner.depth": "10"},
            r"^depth is 10, its range is 1\.\.9\. Give --inner\.depth a value in that range\.",
        ),
        ({"rate": "fast"}, r"--rate is 'fast', float wanted"),
        ({"rate": None}, r"--rate is None, float wanted"),
        ({"on": "perhaps"}, r"--on is 'perhaps', true\|false wanted"),
        ({"pair": "1"}, r"--pair has 1 values, 2 wanted"),
        ({"inner": "x"}, r"inner is a group of options, not 'x'\. Give --inner\.depth VALUE\."),
        ({"rate.x": "1"}, r"^rate is one value, there is no rate\.x"),
    ],
)
def test_wrong_options_are_named_with_a_remedy(flags: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        loading.load(Outer, None, flags)


def test_a_fault_in_a_recipe_names_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("inner: {deph: 7}\n")
    with pytest.raises(
        UserError, match=r"r\.yaml: unknown option --inner\.deph\. Did you mean --inner\.depth\?"
    ):
        loading.load(Outer, recipe, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "not YAML"),
        (b"- 1\n", "holds no mapping"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"rate: 1\nrate: 2\n", "rate is given twice"),
        (b"inner.depth: 1\ninner: {depth: 2}\n", r"inner\.depth is given twice"),
        (b"inner: &a {depth: *a}\n", "lie too deep in each other, or in themselves"),
        (b"inner: " + b"{depth: " * 3000 + b"1" + b"}" * 3000, "lie too deep in each other"),
        (b"inner:\n", "inner is a group of options, not None"),
        (b"inner: {kind: no}\n", r"--inner\.kind is"),
    ],
)
def test_an_unreadable_recipe_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_bytes(content)
    with pytest.raises(UserError, match=message):
        loading.load(Outer, recipe, {})


def test_a_missing_required_option_is_named_and_a_flag_gives_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--path is missing and has no default\. Give --path VALUE\."):
        loading.load(Required, None, {})
    with pytest.raises(UserError, match=r"--path is \['a'\], path wanted"):
        loading.load(Required, None, {"path": ["a"]})
    recipe = tmp_path / "empty.yaml"
    recipe.write_text("")
    assert loading.load(Required, recipe, {"path": "x"}) == Required(path=Path("x"))


def test_an_unknown_recipe_names_the_nearest_shipped_one() -> None:
    with pytest.raises(UserError, match=r"dmo: no such recipe; shipped: .*Did you mean 'demo'"):
        loading.find_recipe("dmo")
    assert loading.find_recipe("demo").name == "demo.yaml"


def test_the_nearest_word_is_found_in_any_case() -> None:
    with pytest.raises(UserError, match=r"unknown environment 'PONG'.*[Dd]id you mean 'pong'"):
        check_environment("PONG")


def test_games_of_one_student_are_told_to_be_played_one_at_a_time() -> None:
    with pytest.raises(
        UserError, match=r"'pong\+seaquest' names several games, and one is played at a time. Give one"
    ):
        check_environment("pong+seaquest")


def test_the_files_of_the_zoos_student_of_several_games_are_named() -> None:
    for game in ("freeway+pong", "pong+freeway"):
        with pytest.raises(UserError, match=rf"^{re.escape(repr(game))} names several games") as told:
            EnvironmentConfig(game=game)
        first, _, *shown = str(told.value.remedy).partition("such as ")[2].replace(",", "").split()
        assert first == game.partition("+")[0]
        assert shown[::2] == ["--student", "--core_map"]
        assert all(Path(path).is_file() and "freeway+pong" in path for path in shown[1::2])


def test_docstrings_under_fields_become_help() -> None:
    assert field_docs(Outer)["rate"] == "A rate, over two lines."
    assert all(option.doc for option in options(Outer))


NAMES = {"first": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ruled(Options):
    """Options with rules."""

    size: Annotated[int, Range(1, 1e9)] | None = None
    """A size, or none."""
    rate: Annotated[float, Range(0)] = 0.0
    """A rate."""
    name: Annotated[str, Choices(NAMES)] = "first"
    """A name of a table."""
    kind: Literal["plain", "fancy"] | None = None
    """A kind, or none."""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, r"^size is 0, its range is 1\.\.1e9\. Give --size a value in that range\."),
        ({"size": 2.5}, r"^size is 2\.5, int 1\.\.1e9 wanted\. Give --size a whole number\."),
        ({"size": True}, r"^size is True, its range is 1\.\.1e9"),
        ({"rate": float("nan")}, r"^rate is nan, its range is >= 0"),
        ({"rate": "1"}, r"^rate is '1', its range is >= 0"),
        ({"name": "frist"}, r"^name is 'frist'; known: first\. Did you mean 'first'\?"),
        ({"kind": "fancier"}, r"^kind is 'fancier'; known: plain, fancy\. Did you mean 'fancy'\?"),
    ],
)
def test_an_option_is_checked_however_the_object_is_made(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Ruled(**wrong)
    with pytest.raises(UserError, match=message):
        dataclasses.replace(Ruled(), **wrong)


def test_an_optimiser_that_teach_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"^optimizer is 'sgd'; known: adam, rmsprop"):
        TeachConfig(optimizer="sgd")


def test_a_table_of_choices_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "second", 2)
    assert Ruled(name="second").name == "second"


def test_help_reads_the_same_range_and_choices() -> None:
    shown = {option.name: type_name(option.type) for option in options(Ruled)}
    assert shown == {
        "size": "int 1..1e9 or null", "rate": "float >= 0", "name": "first", "kind": "plain|fancy or null"
    }  # fmt: skip


def test_a_flag_mends_what_a_recipe_lacks(tmp_path: Path) -> None:
    """And the recipe is not blamed for what a flag breaks."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("inner: {depth: 12}\n")
    assert loading.load(Outer, recipe, {"inner.depth": "5"}).inner.depth == 5
    recipe.write_text("rate: 1\n")
    with pytest.raises(UserError, match=r"^depth is 0"):
        loading.load(Outer, recipe, {"inner.depth": "0"})
    recipe.write_text("inner: {depth: 12}\n")
    with pytest.raises(UserError, match=r"r\.yaml: depth is 12"):
        loading.load(Outer, recipe, {})


def test_a_short_name_finds_the_only_option_that_ends_so() -> None:
    assert full_name("depth", ["inner.depth", "rate"]) == "inner.depth"
    assert full_name("rate", ["inner.rate", "rate"]) == "rate"
    assert full_name("ate", ["rate"]) == ""
    with pytest.raises(UserError, match=r"--rate may be --a\.rate, --b\.rate\. Give one of them whole\."):
        full_name("rate", ["a.rate", "b.rate"])
