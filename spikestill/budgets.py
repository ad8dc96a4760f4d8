"""What trained a network that the results show: seeds, recorded frames, batches and hours, of a card or of a cell."""

from __future__ import annotations

from spikestill.result_cells import Card, Cell, number

COLUMNS = ("seeds", "frames", "batches", "hours")
"""Heads of what :func:`columns` returns."""
SEED = "seed of each training"
OF_CARD = (SEED, "recorded frames", "batches", "hours")
"""Heads of what :func:`of_card` returns."""
UNCOUNTED = (
    "Recorded frames are of all recordings that a student's trainings learnt from. Where the cell is empty the card",
    "does not say them: it is older than that count, or a recording was gone. What is known of those is in",
    "[How the zoo's networks were trained](trainings.md).",
    "",
)
"""What explains an empty cell."""


def columns(cell: Cell) -> list[str]:
    """Return a cell's seeds ("2 of 3" where one failed or was not run), recorded frames, batches and hours.

    What a cell does not have is ''.
    """
    frames, done = cell.get("record.frames"), cell["done"]
    seeds = cell.get("seeds", done)
    return [
        str(done) if done == seeds else f"{done} of {seeds}",
        "" if frames is None else thousands(frames),
        number(cell.get("distill.steps"), 0),
        number(cell["hours"], 2),
    ]


def told(cell: Cell) -> str:
    """Return the same in words, for a cell of a table of which each cell is a training of its own."""
    seeds, frames, batches, hours = columns(cell)
    words = [f"{seeds} seed{'s' if seeds != '1' else ''}", f"{frames} frames" if frames else "",
             f"{batches} batches" if batches else "", f"{hours} h"]  # fmt: skip
    return ", ".join(word for word in words if word)


def thousands(frames: float) -> str:
    """Return frames as the tables show them: 300 k."""
    return f"{number(frames / 1000, 0)} k"


def trainings(card: Card) -> list[Card]:
    """Return all that a card's network was trained by, from random weights on, the last one last."""
    return [*card.get("went_on_from", []), card]


def hours(card: Card) -> float:
    """Return the hours of all of a card's trainings."""
    return sum(float(each["training_seconds"]) for each in trainings(card)) / 3600


def seeds(card: Card) -> str:
    """Return the seeds of all of a card's trainings, '' where it does not say them."""
    return ", ".join(str(each["recipe"].get("seed", "")) for each in trainings(card))


def batches(card: Card) -> str:
    """Return the batches of all of a student's trainings, and their size."""
    sizes = {each["recipe"]["batch_size"] for each in trainings(card)}
    steps = sum(int(each["curve"][-1]["step"]) for each in trainings(card))
    return f"{steps:,} x {' or '.join(f'{size:,}' for size in sorted(sizes))}"


def recorded(card: Card) -> str:
    """Return the frames of the recordings that a student learnt from, '' where its card does not say them."""
    frames = card.get("recorded_frames")
    return "" if frames is None else thousands(frames)


def of_card(card: Card) -> list[str]:
    """Return the seeds of a card's trainings, the frames of their recordings, their batches and their hours."""
    return [seeds(card), recorded(card), batches(card), number(hours(card), 2)]
