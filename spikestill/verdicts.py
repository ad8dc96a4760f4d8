"""A run's summary in a few plain sentences, the verdict first; ``--verbose`` and ``--json`` have every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Summary = Mapping[str, Any]
FEW_GAMES = 30
"""Below this many games a mean is a rough figure; 100 are the rule of Atari."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 game, 12 games."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def few_games(found: Summary) -> str:
    """Return what is to be said where a score is of so few games that it is a rough figure, '' where it is not.

    Args:
        found: has ``episodes``, and ``usual_episodes`` where the sources play other than 100 games.
    """
    usual = int(found.get("usual_episodes", 100))
    return f"{usual} are the rule." if found["episodes"] < min(FEW_GAMES, usual) else ""


def duration(seconds: float) -> str:
    """Return a time as people say it: 0.4 s, 12 s, 3.5 min, 2.1 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(number: float) -> str:
    """Return bytes as people say them: 812 bytes, 3.4 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f} bytes"


def joules(value: float) -> str:
    """Return an energy with a prefix: 64.4 mJ, 12.3 uJ."""
    for unit, factor in (("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6), ("nJ", 1e-9)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e-12:.3g} pJ"


def title(game: str) -> str:
    """Return a game's name as people write it."""
    return game.replace("_", " ").title()


def _pace(found: Summary, rate: float, unit: str) -> str:
    """Return how long a stage worked and how fast, or that it did nothing (resumed when it had ended, or stopped)."""
    if not rate:
        return ", none of them in this sitting"
    return f", in {duration(found['seconds'])} ({rate:,.0f} {unit}s a second)"


def _teach(found: Summary) -> Iterator[str]:
    if found["mean_return_100"] is None:
        yield "No game ended while it trained, so there is no score yet."
    else:
        yield f"The last games of the training scored {found['mean_return_100']:,.4g} on average, exploration included."
    if found.get("selected_score") is not None:
        yield (
            f"Kept as the teacher: the weights of step {found['selected_step']:,}, "
            f"which scored {found['selected_score']:,.4g}."
        )
    yield f"{found['steps']:,} steps, {count(found['games'], 'game')}{_pace(found, found['steps_per_s'], 'step')}."


def _import(found: Summary) -> Iterator[str]:
    yield f"Took a {found['kind']} of {found['library']} for {title(found['game'])}, {found['actions']} actions."
    if found.get("note"):
        yield f"Mind: {found['note']}."


def _record(found: Summary) -> Iterator[str]:
    games = count(found["episodes"], "game")
    mean = found["mean_return"]
    if mean is None:
        yield "No game ended, so the buffer has no score yet; more --frames show more of the game."
    else:
        yield f"Recorded {games} with a mean score of {mean:,.4g}."
    yield f"{found['frames']:,} frames, {size(found['bytes'])}{_pace(found, found['frames_per_s'], 'frame')}."


def _distill(found: Summary) -> Iterator[str]:
    frames = "held-out frames" if found["held_out_steps"] else "frames of the training"
    yield f"The student takes the teacher's action on {found['agreement']:.1%} of the {frames}."
    chance = 1 / found["actions"] if found.get("actions") else 0.0
    if found["agreement"] <= 1.1 * chance:
        yield f"That is no more than chance ({chance:.1%}): train for more --steps, or on more frames."
    batches = count(found["steps"], "batch").replace("batchs", "batches")
    yield f"{batches}, {found['samples']:,} frames{_pace(found, found['samples_per_s'], 'frame')}."
    if cut := shortened(found):
        yield cut


def shortened(found: Summary) -> str:
    """Return what is to be said of a training whose schedule was cut to the minutes there were, '' for another one."""
    fitted = found.get("fitted")
    if not fitted or fitted["steps"] >= fitted["asked"]:
        return ""
    return (
        f"The training was cut to {fitted['minutes']:g} minutes of this machine: {fitted['steps']:,} of "
        f"{fitted['asked']:,} batches. More --minutes make a longer training."
    )


def _map(found: Summary) -> Iterator[str]:
    yield (
        f"The student fits: {found['cores']:,} of {found['cores_available']:,} cores of {found['hardware']}, on "
        f"{count(found['chips'], 'chip')}; the answer comes {found['ticks']} ticks after the frame."
    )
    for row in found["layers"]:
        where = f"{row['cores']:,} cores, {row['neurons']:,} neurons" if row["cores"] else "on the host"
        yield f"  layer {row['layer']}: {' x '.join(map(str, row['shape']))}, {where}"
    if found["chips"] > 1:
        each = ", ".join(f"{row['cores']:,}" for row in found["per_chip"])
        yield f"  cores of each chip: {each}"


def of_games(found: Summary) -> str:
    """Return how many frames of each game a stage compared, where its student plays several."""
    games = found.get("games") or ()
    told = ", ".join(f"{each['frames']:,} of {each['game']}" for each in games)
    return f" ({told})" if len(games) > 1 else ""


def _verify(found: Summary) -> Iterator[str]:
    compared = [rung for rung in found["rungs"] if rung["frames"]]
    skipped = [rung for rung in found["rungs"] if not rung["frames"]]
    frames = "recorded frames" if found["source"] == "buffer" else "random frames"
    if found["ok"]:
        yield f"The same spikes everywhere, bit for bit, on {found['frames']:,} {frames}{of_games(found)}."
    else:
        yield f"The backends differ: {found['difference'] or found['core_map']}."
    yield "  compared: " + ", ".join(
        f"{rung['name']} ({count(rung['frames'], 'frame')})" for rung in compared
    )
    for rung in skipped:
        why = rung.get("skipped") or "no frames"
        if any(rung["name"] == each["name"] for each in compared):  # it is the reference, without PyTorch
            yield f"  {rung['name']}: {why}"
        else:
            yield f"  not compared: {rung['name']} ({why})"
    if found["ok"] and found["core_map"]:
        yield f"The core map {found['core_map']}."


def _estimate(found: Summary) -> Iterator[str]:
    if "training" in found:
        yield from _accelerator(found)
        return
    chip, work = found["truenorth"], found["operations"]
    yield (
        f"A decision takes about {joules(chip['total_j_pipelined'])} on TrueNorth where frames follow tick by tick, "
        f"{joules(chip['total_j_real_time'])} in real time (one every {1e3 * chip['period_s']:.4g} ms)."
    )
    if found.get("loihi", {}).get("total_j"):
        yield f"On Loihi it takes about {joules(found['loihi']['total_j'])}, without static power."
    yield (
        f"{work['effective_acs']:,.0f} additions on the cores, {work['effective_macs']:,.0f} on the host; "
        f"{work['activation_sparsity']:.0%} of the neurons stay silent."
    )
    frames = "recorded" if found["source"] == "buffer" else "random"
    yield f"Estimated from published figures on {found['frames']:,} {frames} frames; no chip was measured."


def _accelerator(found: Summary) -> Iterator[str]:
    from spikestill.deploy.accelerator.costs import table

    full, half = (found["training"][precision][0] for precision in ("full", "half"))
    action = found["action"]["half" if found["quantised"] else "full"]
    yield (
        f"FIXAR's accelerator trains this agent at {full['ips']:,.0f} inferences a second (IPS) in full precision and "
        f"{half['ips']:,.0f} in half, at batch {full['batch']}; the paper says {found['published']['ips']:,.0f}."
    )
    yield f"An action takes {1e6 * action['seconds']:.3g} us and {joules(action['joules'])}."
    yield from table(found).splitlines()


def _export(found: Summary) -> Iterator[str]:
    carried = ""
    if found.get("frames"):
        carried = f", with {count(found['frames'], 'frame')} and the votes they must give"
    elif found.get("observations"):
        carried = f", with {count(found['observations'], 'observation')} and the actions they must give"
    elif found.get("jobs"):
        carried = (
            f", with {count(found['jobs'], 'job')} and the {found['compared_lines']:,} lines they must give"
        )
    yield f"Wrote the {found['to']} export{carried}: {size(found['bytes'])} in {duration(found['seconds'])}."
    if "constant_bytes" in found:
        constant, working = size(found["constant_bytes"]), size(found["working_bytes"])
        yield f"The compiled program holds {constant} of constants and works in {working}."
    for key, says in (("compile", "Check it in its folder"), ("play", "Play it there")):
        if key in found:
            yield f"{says}: {found[key]}"
    if found.get("verdict"):
        yield f"{str(found['verdict']).rstrip('.')}."


def _play(found: Summary) -> Iterator[str]:
    yield from _played(found, found["agent"])
    for each in found.get("agents") or ():
        if isinstance(each, Mapping) and each.get("agent") != found["agent"]:
            yield from _played({**found, **each}, str(each.get("agent")))
    if found.get("lost_s"):
        yield f"The machine stood still for {found['lost_s']:.1f} s, which the game did not catch up."
    if found.get("video"):
        black = ", all black: the game could not be drawn" if found.get("video_is_black") else ""
        dropped, frames = found.get("dropped_video_frames") or 0, found.get("video_frames") or 0
        short = (
            f", without {count(dropped, 'frame')} of {dropped + frames:,} that came too fast"
            if dropped
            else ""
        )
        yield f"Video: {found['video']}{black}{short}."


def _played(found: Summary, agent: str) -> Iterator[str]:
    games, decisions, misses = found["games"], found["decisions"], found["misses"]
    who, score = f"{title(found['game'])}, agent {agent}", f"{found['score']:,.4g}"
    if games:
        yield f"{who}: {score} in {count(games, 'game')}."
    else:
        yield f"{who}: no game was finished; the one under way stands at {score}."
    latency = found["latency_ms"]
    told = ""
    if latency.get("p99") is not None:
        told = (
            f" 99 of 100 actions came within {latency['p99']:.3g} ms of the frame, the slowest after "
            f"{latency['max']:.3g} ms."
        )
    if misses:
        yield f"{misses:,} of {decisions:,} decisions came too late, and the last action was held.{told}"
    else:
        yield f"None of {count(decisions, 'decision')} came too late.{told}"


def _evaluate(found: Summary) -> Iterator[str]:
    usual = {name: found[name] for name in ("agent", "usual_episodes") if name in found}
    yield from _scored(found, f"{title(found['game'])}, agent {found['agent']}")
    if found.get("sticky"):
        yield from _scored({**usual, **found["sticky"]}, "With sticky actions")
    if found.get("left_out"):
        yield f"Left out {found['left_out']}."


def _scored(found: Summary, who: str) -> Iterator[str]:
    low, high = found["ci95"]
    if found["episodes"] == 1:
        yield f"{who}: {found['mean']:,.4g} in 1 game."
    else:
        yield (
            f"{who}: {found['mean']:,.4g} on average over {count(found['episodes'], 'game')} "
            f"(95 % interval {low:,.4g} to {high:,.4g})."
        )
    # Nothing is set beside itself.
    chance, teacher = (
        found.get(name) if name != found.get("agent") else None for name in ("random", "teacher")
    )
    if chance is not None and found["mean"] <= chance["ci95"][1]:
        yield f"That is no better than random play, which scores {chance['mean']:,.4g}."
    elif chance is not None:
        yield f"Random play scores {chance['mean']:,.4g}."
    if teacher is not None:
        share = None if chance is None else found.get("percent_of_margin")
        part = (
            "" if share is None else f" The agent has {share:.1f} % of the teacher's margin over random play."
        )
        yield f"The teacher scores {teacher['mean']:,.4g}.{part}"
    if rule := few_games(found):
        yield f"So few games give a rough figure; {rule}"


def _replay(found: Summary) -> Iterator[str]:
    yield from _beside(found, f"Agent {found['agent']}", f"agent {found['played_by']} in {found['trace']}")


def _compare(found: Summary) -> Iterator[str]:
    one, other = found["agents"]
    yield from _beside(found, f"Agent {one} of {found['trace']}", f"agent {other} of {found['other']}")


def _beside(found: Summary, one: str, other: str) -> Iterator[str]:
    if found["same"]:
        yield f"{one} played the same as {other}."
    else:
        yield f"{one} did not play the same as {other}. The first difference is {found['first_difference']}."
    spikes = f", and the spikes of {count(found['spikes'], 'decision')}" if found["spikes"] else ""
    yield f"Compared: {count(found['frames'], 'frame')} and {count(found['decisions'], 'decision')}{spikes}."


def _run(found: Summary) -> Iterator[str]:
    played = found.get("games") or [found]
    for each in played:
        low, high = each["ci95"]
        share, chance = each.get("percent_of_margin"), each.get("random")
        part = "" if share is None else f", {share:.1f} % of the teacher's margin over random play"
        where = f"{title(each['game'])}: the" if "game" in each else "The"
        yield (
            f"{where} student scores {each['mean']:,.4g} on average over {count(each['episodes'], 'game')} "
            f"({low:,.4g} to {high:,.4g}){part}."
        )
        if chance is not None and each["mean"] <= chance["ci95"][1]:
            yield f"That is no better than random play, which scores {chance['mean']:,.4g}."
    misses = sum(each["misses"] for each in played)
    yield f"It runs on {found['cores']:,} cores and missed {count(misses, 'decision')} in real time."
    if cut := shortened(found):
        yield cut
    yield f"All stages took {duration(sum(found['seconds'].values()))}."
    yield f"Report: {found['report']}"


def _sweep(found: Summary) -> Iterator[str]:
    if found["done"] == found["stage_runs"]:
        yield f"All {count(found['trials'], 'trial')} done: {count(found['stage_runs'], 'stage run')}."
    else:
        yield f"{found['done']:,} of {count(found['stage_runs'], 'stage run')} done; the same command goes on."
    for row in found["table"]:
        # What was chosen is text, what was measured numbers.
        chosen = "".join(
            f", {name} {row[name]}" for name in row if isinstance(row[name], str) and name != "game"
        )
        score = "no score"
        if "mean" in row:
            low, high = row["ci95"]
            score = f"{row['mean']:,.4g} on average (95 % interval {low:,.4g} to {high:,.4g})"
        yield f"  {title(row['game'])}{chosen}: {score}"
    yield f"The whole table: {found['page']}"


def _report(found: Summary) -> Iterator[str]:
    yield f"A page of {title(found['game'])} with {', '.join(found['stages'])}: {found['report']}"
    yield from found.get("warnings", ())


def _doctor(found: Summary) -> Iterator[str]:
    if found["ready"]:
        yield "Ready: this machine can play, map, verify, export and estimate."
    else:
        yield f"Not ready: {', '.join(found['missing'])} missing."
    for check in found["checks"]:
        remedy = f"; {check['remedy']}" if check["remedy"] else ""
        verdict = "" if check["verdict"] == "ok" else f" ({check['verdict']}{remedy})"
        yield f"  {check['what']}: {check['found']}{verdict}"


VERDICTS: dict[str, Callable[[Summary], Iterator[str]]] = {
    "teach": _teach, "import": _import, "record": _record, "distill": _distill, "map": _map, "verify": _verify,
    "estimate": _estimate, "export": _export, "play": _play, "evaluate": _evaluate, "run": _run,
    "replay": _replay, "compare": _compare, "sweep": _sweep,
    "report": _report, "doctor": _doctor,
}  # fmt: skip


def verdict(verb: str, summary: Summary) -> Sequence[str]:
    """Return a summary in sentences, none where the command has no words for it: its table says it then."""
    try:
        return list(VERDICTS[verb](summary)) if verb in VERDICTS else []
    except (KeyError, TypeError):
        return []  # stopped early: what there is stands in the table
