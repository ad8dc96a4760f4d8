"""docs/python.ipynb from docs/python.md: ``python docs/notebook.py`` writes it, and a test compares."""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = Path(__file__).with_name("python.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def notebook(text: str) -> str:
    """Return the notebook (nbformat 4.5) of a page: its text in cells of Markdown, its blocks in cells of code."""
    cells, end = [], 0
    for found in BLOCK.finditer(text):
        cells.append(("markdown", text[end : found.start()].strip()))
        code = found[2].strip()
        cells.append(("code", code if found[1] == "python" else f"!{code}"))
        end = found.end()
    cells.append(("markdown", text[end:].strip()))
    made = []
    for number, (kind, source) in enumerate(cell for cell in cells if cell[1]):
        cell = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": source.splitlines(keepends=True),
        }
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(notebook(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
