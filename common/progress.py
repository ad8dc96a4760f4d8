"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from spikestill.common.errors import printable

PLAIN_INTERVAL_S = 15.0


class Progress:
    """A bar on standard error where that is a terminal, else a line every ``PLAIN_INTERVAL_S`` seconds.

    Args:
        label: what is going on, a word or two.
        total: how much there is to do, in ``unit``.
        unit: what is counted.
        start: how much was done before (a resumed run).
    """

    def __init__(self, label: str, total: int, unit: str, start: int = 0) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self._start, self._values = start, start, ""
        self._began = self._last = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                desc=label, total=total, initial=start, unit=f" {unit}", dynamic_ncols=True, smoothing=0.1
            )

    def advance(self, amount: int, **values: object) -> None:
        """Count ``amount`` more as done and show ``values`` beside it."""
        self.done += amount
        if values:
            self._values = "  ".join(f"{name} {_short(value)}" for name, value in values.items())
        if self._bar is not None:
            self._bar.set_postfix_str(self._values, refresh=False)
            self._bar.update(amount)
        elif time.monotonic() - self._last >= PLAIN_INTERVAL_S:
            self._print()

    def say(self, text: str) -> None:
        """Print a line about the work, above the bar where there is one."""
        text = printable(text)
        if self._bar is not None:
            self._bar.write(f"{self.label}: {text}", file=sys.stderr)
        else:
            print(f"{self.label}: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the time spent within out of the rate: something else is done."""
        began = time.monotonic()
        yield
        self._began += time.monotonic() - began
        if self._bar is not None:
            self._bar.unpause()

    def close(self) -> None:
        """End the bar, or print the last line."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        rate = (self.done - self._start) / max(self._last - self._began, 1e-9)
        left = (
            f", {_duration((self.total - self.done) / rate)} left"
            if rate > 0 and self.done < self.total
            else ""
        )
        per_s = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        line = f"{self.label}: {self.done:,}/{self.total:,} {self.unit} ({per_s}/s{left})  {self._values}"
        print(line.rstrip(), file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _duration(seconds: float) -> str:
    """Return a time to wait: 45 s, 12 min, 3.4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
