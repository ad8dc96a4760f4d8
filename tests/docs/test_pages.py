"""The documentation: its blocks run, its links lead somewhere, its notebook is its page."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from spikestill import cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "zoo").glob("*.md")])
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
# What makes a tutorial short: the same commands on less.
SHORTER = (
    (
        r"--steps 200000 --epsilon_steps 60000",
        "--steps 640 --num_envs 16 --replay_start 320 --replay_capacity 4000",
    ),
    (r"--steps \d{4,}", "--steps 2 --log_steps 2 --batch_size 16"),
    (r"verify --frames \d+", "verify --frames 4"),
    (r"record (\w* ?)--frames \d+", r"record \1--frames 512 --num_envs 4"),
    (r"--seconds \d+", "--seconds 1"),
    (r"--episodes \d+", "--episodes 1 --compare false --agent random"),
    (r"buffer_size=20_000, learning_starts=1_000", "buffer_size=64, learning_starts=1_000"),
    (r"total_timesteps=40_000", "total_timesteps=16"),
)


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, shorter: bool) -> None:
    """Do what a page says, block after block, in ``folder``."""
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for number, found in enumerate(BLOCK.finditer((DOCS / page).read_text(encoding="utf-8"))):
        text = found[2]
        for pattern, less in SHORTER if shorter else ():
            text = re.sub(pattern, less, text)
        if found[1] == "python":
            exec(compile(text, f"{page}, block {number}", "exec"), names)
            continue
        for line in text.strip().splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "spikestill", line
            extra = (
                ["--stock_frames", "0", "--lava_frames", "0", "--naive_frames", "1"]
                if words[1] == "verify" and shorter
                else []
            )
            assert cli.main([*words[1:], *extra]) == 0, line


def test_the_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("python.md", tmp_path, monkeypatch, shorter=True)
    assert (tmp_path / "exported" / "student.nir").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_from_teach_to_the_live_game_runs_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow("tutorial-teach.md", tmp_path, monkeypatch, shorter=True)
    assert (tmp_path / "runs" / "tutorial" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_from_stable_baselines3_runs_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cv2", reason="make_atari_env wants opencv-python-headless")
    follow("tutorial-sb3.md", tmp_path, monkeypatch, shorter=True)
    assert (tmp_path / "cores.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("page", ["python.md", "tutorial-teach.md", "tutorial-sb3.md"])
def test_a_page_runs_whole(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "tutorial-sb3.md":
        pytest.importorskip("cv2", reason="make_atari_env wants opencv-python-headless")
    follow(page, tmp_path, monkeypatch, shorter=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_of_the_docs_is_in_the_index_and_the_site() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in DOCS.glob("*.md") if page.name != "index.md" and page.name not in index]
    assert missing == []
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if f": {page.name}\n" not in site] == []


def test_the_notebook_is_its_page() -> None:
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wanted = module.notebook((DOCS / "python.md").read_text(encoding="utf-8"))
    assert (DOCS / "python.ipynb").read_text(encoding="utf-8") == wanted, "run: python docs/notebook.py"
