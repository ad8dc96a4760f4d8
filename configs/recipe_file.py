"""A YAML recipe as Python values, whoever wrote it: plain YAML of bounded size, without surprises.

Scalars are null, true or false, decimal integers, decimal fractions and text. What YAML 1.1 has besides, and nobody
means, stays text: dates, ``1:30`` for 90, ``010`` for 8, merge keys. Aliases count as often as they are used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.limits import RECIPE_BYTES, RECIPE_DEPTH, RECIPE_VALUES, regular_file

REMEDY = "correct the file"
INTEGER = r"[-+]?(0|[1-9][0-9_]{0,30})"
FRACTION = (
    r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
DROPPED = ("timestamp", "int", "float", "value", "merge")


def read_mapping(path: Path) -> dict[str, Any]:
    """Return what the YAML file at ``path`` says, {} for an empty one.

    Raises:
        UserError: it is no regular file, too large, not YAML, not a mapping, or gives a name twice.
    """
    import yaml

    size = regular_file(path, "recipe", REMEDY)
    if size > RECIPE_BYTES:
        raise UserError(f"{path}: {size:,} bytes, a recipe has at most {RECIPE_BYTES:,}", REMEDY)
    try:
        loader = _loader()
        document = yaml.compose(path.read_text(encoding="utf-8"), loader)
        if document is None:
            return {}
        if not isinstance(document, yaml.MappingNode):
            raise UserError(f"{path}: holds no mapping of options", REMEDY)
        seen: set[str] = set()
        for count, name in enumerate(_leaves(document)):
            if count >= RECIPE_VALUES:
                raise UserError(
                    f"{path}: more than {RECIPE_VALUES:,} values, aliases counted as often as used", REMEDY
                )
            if name in seen:
                raise UserError(f"{path}: {name} is given twice", "omit one of them")
            if name:
                seen.add(name)
        made = loader("").construct_document(document)
        return {str(key): value for key, value in made.items()}
    except RecursionError as error:
        raise UserError(
            f"{path}: its mappings lie too deep in each other, or in themselves", REMEDY
        ) from error
    except UserError:
        raise
    except (yaml.YAMLError, *MALFORMED) as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})", REMEDY) from error


@functools.cache
def _loader() -> type[Any]:
    """Return PyYAML's safe loader with the scalars that the module's docstring lists."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, pattern) for tag, pattern in known if tag.rpartition(":")[2] not in DROPPED]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def fetch_flow_collection_start(self, token: type[Any]) -> None:
            """Refuse deep brackets where they open: for each token the scanner looks at all that are open."""
            if self.flow_level > RECIPE_DEPTH:
                raise RecursionError
            super().fetch_flow_collection_start(token)

    Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"^({INTEGER})$"), list("-+0123456789"))
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(rf"^({FRACTION})$"), list("-+.0123456789")
    )
    return Loader


def _leaves(node: Any, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the dotted name of every value of a YAML mapping, '' for each item of a list."""
    if depth > RECIPE_DEPTH:
        raise RecursionError
    for child in node.value:
        if node.id == "mapping":
            key, value = child
            name = f"{prefix}{key.value}"
        else:
            value, name = child, ""
        if value.id == "mapping":
            yield from _leaves(value, f"{name}." if name else "", depth + 1)
        else:
            yield name
            if value.id == "sequence":
                for _ in _leaves(value, "", depth + 1):
                    yield ""
