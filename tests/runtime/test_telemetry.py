"""The histogram of times, the counters of a run, and how both are told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spikestill.runtime.hdr import EDGES_NS, HdrHistogram, bounds_ns, part
from spikestill.runtime.telemetry import COUNTS, Telemetry, Told, prometheus


def filled(values_s: np.ndarray) -> HdrHistogram:
    found = HdrHistogram()
    for value_s in values_s:
        found.add(float(value_s))
    return found


def test_every_time_lies_in_one_part_that_is_a_thousandth_wide() -> None:
    values = [0, 1, 2047, 2048, 2049, 4095, 4096, 10**6 + 7, 3_600 * 10**9]
    for value in values:
        low, high = bounds_ns(part(value))
        assert low <= value <= high
        assert high - low <= value / 1024
    for index in range(1, 30_000):
        assert bounds_ns(index)[0] == bounds_ns(index - 1)[1] + 1


def test_percentiles_are_those_of_nearest_rank_and_never_below_them() -> None:
    values_s = np.random.default_rng(0).lognormal(-6.5, 1.5, 20_000)
    found, ordered_ms = filled(values_s).percentiles_ms(), np.sort(values_s) * 1e3
    for name, share in (("p50", 500), ("p99", 990), ("p999", 999)):
        true_ms = ordered_ms[-(-len(ordered_ms) * share // 1000) - 1]
        assert true_ms - 1e-4 <= found[name] <= true_ms * (1 + 1 / 1024) + 1e-4
    assert found["max"] == pytest.approx(ordered_ms[-1], abs=1e-4)
    assert filled(np.array([0.004])).percentiles_ms() == dict.fromkeys(("p50", "p99", "p999", "max"), 4.0)
    assert HdrHistogram().percentiles_ms() == dict.fromkeys(("p50", "p99", "p999", "max"))


def test_the_bins_count_every_value_once_even_those_outside() -> None:
    values_s = np.array([1e-9, -1.0, 0.0015, 0.0015, 0.02, 30.0])
    histogram = filled(values_s)
    bins = histogram.bins()
    assert len(bins["edges_ms"]) == len(bins["counts"]) + 1
    assert (histogram.count, sum(bins["counts"]), bins["counts"][0], bins["counts"][-1]) == (6, 6, 2, 1)
    index = int(np.searchsorted(EDGES_NS, 1_500_000)) - 1
    assert bins["counts"][index] == 2


def test_an_empty_run_has_a_summary_in_json() -> None:
    summary = json.loads(json.dumps(Telemetry().summary()))
    assert summary["latency_ms"]["p99"] is None
    assert summary["joules_per_decision"] is None
    assert summary["decisions"] == summary["misses"] == sum(summary["histogram"]["counts"]) == 0


def test_the_summary_is_in_milliseconds_and_joules_a_decision() -> None:
    telemetry = Telemetry()
    assert telemetry.summary()["saturated"] is None
    for latency_s, joules in ((0.001, 0.25), (0.002, 0.75)):
        telemetry.add_saturated(3)
        telemetry.add_latency(latency_s)
        telemetry.add_energy(joules)
    telemetry.add_lateness(0.0005)
    summary = telemetry.summary()
    assert summary["latency_ms"]["max"] == pytest.approx(2.0)
    assert summary["jitter_ms"]["p50"] == pytest.approx(0.5)
    assert (summary["joules_per_decision"], telemetry.last_joules) == (0.5, 0.75)
    assert summary["saturated"] == 6


def test_prometheus_reads_counters_and_quantiles_of_agents_of_one_name() -> None:
    counts = {name: float(index) for index, (name, *_) in enumerate(COUNTS)}
    told = [Told("cores", counts, filled(np.full(4, 0.002)), HdrHistogram()) for _ in range(2)]
    lines = prometheus(told).splitlines()
    for line in (
        "# TYPE spikestill_latency_seconds summary",
        'spikestill_decisions_total{agent="cores",index="1"} 1',
        'spikestill_joules_total{agent="cores",index="0"} 4',
        'spikestill_latency_seconds{agent="cores",index="0",quantile="0.99"} 0.002',
        'spikestill_latency_seconds_sum{agent="cores",index="1"} 0.008',
        'spikestill_latency_seconds_count{agent="cores",index="1"} 4',
        'spikestill_lateness_seconds_count{agent="cores",index="0"} 0',
    ):
        assert line in lines
    samples = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(set(samples)) == len(samples)
