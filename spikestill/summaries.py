"""The form of what stages said of themselves, in ``STAGE.json`` and ``pipeline.json``: checked before it is reported.

A form is a type, a list of one form, or a dictionary by key; a key that ends in ``?`` may be missing or null.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

Form = type[Any] | list[Any] | dict[str, Any]
TEXT_LENGTH, LIST_LENGTH = 4096, 1_000_000
LARGEST = 1e15

SCORED: dict[str, Form] = {"mean": float, "ci95": [float], "returns": [float]}
FORMS: dict[str, Form] = {
    "record": {},
    "distill": {"held_out_steps?": int, "fitted?": {"minutes": float, "asked": int, "steps": int}},
    "map": {},
    "verify": {"rungs": [{"name": str, "frames": int}], "games?": [{"game": str, "frames": int}]},
    "evaluate": {
        **SCORED, "episodes": int, "agent": str, "epsilon": float, "percent_of_margin?": float, "teacher?": SCORED,
        "random?": SCORED,
    },
    "play": {
        "agent": str, "frame_skip": int, "seconds": float, "ticks": int, "lost_s": float, "decisions": int,
        "misses": int, "rate_hz?": float, "games?": int, "score?": float,
        "latency_ms": {"p50?": float, "p99?": float, "max?": float},
        "histogram": {"edges_ms": [float], "counts": [int]},
    },
}  # fmt: skip
"""Stage to what a report needs of its summary."""
STAGE: Form = {"artefact": str, "sha256": str, "seconds?": float, "summary": dict}
"""What ``pipeline.json`` says of a stage."""


def check_stage(name: str, saved: Any) -> None:
    """Raise ValueError or KeyError unless a stage is told of as :data:`STAGE` and :data:`FORMS` say."""
    check(saved, STAGE, name)
    summary = saved["summary"]
    check(summary, FORMS[name], name)
    if name == "evaluate":
        for scored in (
            summary,
            *(summary[key] for key in ("teacher", "random") if summary.get(key) is not None),
        ):
            if len(scored["ci95"]) != 2:
                raise ValueError(f"ci95 is {scored['ci95'][:3]}, two numbers wanted")
    if name == "play":
        if summary.get("games") and summary.get("score") is None:
            raise ValueError("it has games without a score")
        edges, counts = summary["histogram"]["edges_ms"], summary["histogram"]["counts"]
        rising = all(low < high for low, high in itertools.pairwise(edges))
        if len(edges) != len(counts) + 1 or len(edges) < 2 or not rising or edges[0] <= 0:
            raise ValueError(
                f"its histogram has {len(counts)} counts between {len(edges)} edges that rise from above 0"
            )
        if summary.get("rate_hz") is not None and summary["rate_hz"] <= 0:
            raise ValueError(f"rate_hz is {summary['rate_hz']}, above 0 wanted")
        if summary["frame_skip"] < 1:
            raise ValueError(f"frame_skip is {summary['frame_skip']}, at least 1 wanted")
        for key, value in summary["latency_ms"].items():
            if value is not None and value < 0:
                raise ValueError(f"latency_ms.{key} is {value}, at least 0 wanted")


def check(value: Any, form: Form, where: str) -> None:
    """Raise ValueError or KeyError unless ``value``, of JSON, has the form.

    Args:
        value: what is checked.
        form: int is a whole number from 0, float a finite number, both at most :data:`LARGEST`.
        where: what it is, for the message.
    """
    if isinstance(form, list):
        if not isinstance(value, list) or len(value) > LIST_LENGTH:
            raise ValueError(f"{where} is {str(value)[:60]}, a list wanted")
        for index, each in enumerate(value):
            check(each, form[0], f"{where}[{index}]")
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {str(value)[:60]}, an object wanted")
        for key, inner in form.items():
            name = key.removesuffix("?")
            if name is key or value.get(name) is not None:
                check(value[name], inner, f"{where}.{name}")
    else:
        known = {
            int: type(value) is int and 0 <= value <= LARGEST,
            float: type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST,
            str: isinstance(value, str) and len(value) <= TEXT_LENGTH and value.isprintable(),
            dict: isinstance(value, dict),
        }
        if not known[form]:
            words = {int: "a whole number from 0", float: "a number", str: "text", dict: "an object"}
            raise ValueError(f"{where} is {str(value)[:60]!r}, {words[form]} wanted")
