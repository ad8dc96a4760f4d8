"""Percentiles, histogram and counters of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spikestill.runtime.telemetry import HISTOGRAM_EDGES_MS, Telemetry, histogram_ms, percentiles_ms


def test_percentiles_are_values_that_occurred() -> None:
    values_s = np.random.default_rng(0).permutation(np.arange(1, 2001)) / 1e3
    assert percentiles_ms(values_s) == {"p50": 1000.0, "p99": 1980.0, "p999": 1998.0, "max": 2000.0}
    assert percentiles_ms([0.004]) == dict.fromkeys(("p50", "p99", "p999", "max"), 4.0)
    assert percentiles_ms([]) == dict.fromkeys(("p50", "p99", "p999", "max"))


def test_the_histogram_counts_every_value_once_even_those_outside() -> None:
    histogram = histogram_ms([1e-9, 0.0015, 0.0015, 0.02, 30.0])
    assert sum(histogram["counts"]) == 5
    assert len(histogram["edges_ms"]) == len(histogram["counts"]) + 1
    assert histogram["counts"][0] == 1
    assert histogram["counts"][-1] == 1
    index = int(np.searchsorted(HISTOGRAM_EDGES_MS, 1.5)) - 1
    assert histogram["counts"][index] == 2


def test_an_empty_run_has_a_summary_in_json() -> None:
    summary = json.loads(json.dumps(Telemetry().summary()))
    assert summary["latency_ms"]["p99"] is None
    assert summary["decisions"] == summary["misses"] == sum(summary["histogram"]["counts"]) == 0


def test_the_summary_is_in_milliseconds() -> None:
    telemetry = Telemetry()
    telemetry.latency_s, telemetry.late_s = [0.001, 0.002], [0.0005]
    summary = telemetry.summary()
    assert summary["latency_ms"]["max"] == pytest.approx(2.0)
    assert summary["jitter_ms"]["p50"] == pytest.approx(0.5)
