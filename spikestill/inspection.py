"""What is in an artefact: its kind, its figures, its provenance, and a page of pictures."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import write_text
from spikestill.common.errors import MALFORMED, UserError, restoring
from spikestill.common.hdf5 import MAGIC
from spikestill.common.limits import regular_file
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult
from spikestill.common.tensor_file import read_metadata
from spikestill.configs.pipeline import InspectConfig
from spikestill.contents import Contents
from spikestill.run_folder import document, entries, game_of

if TYPE_CHECKING:
    from spikestill.dataset.format import Header, Steps

FRAMES = 12


def run(config: InspectConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Return the figures of the artefact at ``config.path``; write the page where ``config.html`` is given.

    Raises:
        UserError: the file is missing, not an artefact of ours, or damaged.
    """
    if config.path.is_dir():
        return _folder(config)
    contents = read(config.path, quick=config.quick)
    assert contents.provenance is not None
    provenance = dataclasses.asdict(contents.provenance)
    made = {key: provenance[key] for key in ("created", "commit", "seed", "parents")}
    summary = {
        "kind": contents.kind,
        "bytes": config.path.stat().st_size,
        **contents.figures,
        "provenance": made,
    }
    if config.html is not None:
        write_page(config, contents)
        summary["html"] = str(config.html)
    return StageResult(config.path, summary)


def _folder(config: InspectConfig) -> StageResult:
    """Return what lies in a run folder."""
    files = [dataclasses.asdict(entry) for entry in entries(config.path)]
    if not any(row["fault"] for row in files):
        for row in files:
            del row["fault"]
    try:
        game = game_of(config.path)
    except UserError:
        game = ", ".join(dict.fromkeys(row["game"] for row in files if row["game"]))
    figures = {"game": game or "unknown", "files": files}
    summary: dict[str, Any] = {"kind": "run folder", **figures}
    if config.html is not None:
        write_page(config, Contents("run folder", figures, None, lambda: []))
        summary["html"] = str(config.html)
    return StageResult(config.path, summary)


def read(path: Path, *, quick: bool = False) -> Contents:
    """Return what the artefact at ``path`` holds; its kind is read from the file.

    A buffer's frames are all unpacked and checked, unless ``quick``.

    Raises:
        UserError: as :func:`run`.
    """
    from spikestill.documents import SHOWN, read_document

    schema = schema_of(path)
    readers: dict[str, Callable[[Path], Contents]] = {
        "spikestill.teacher": _teacher,
        "spikestill.student": _student,
        "spikestill.core_map": _core_map,
        "spikestill.buffer": lambda path: _buffer(path, quick),
        "spikestill.trace": _trace,
        "spikestill.control-agent": _control_agent,
        "spikestill.fixed-agent": _fixed_agent,
        "spikestill.teach-checkpoint": _checkpoint,
        "spikestill.control-checkpoint": _checkpoint,
        "spikestill.distill-checkpoint": _checkpoint,
    }
    readers |= {f"spikestill.{stage}": functools.partial(read_document, stage=stage) for stage in SHOWN}
    if schema not in readers:
        known = ", ".join(name.removeprefix("spikestill.") for name in readers)
        raise UserError(
            f"{path}: its schema is {schema or 'none'!r}, and shown are spikestill's {known}",
            "give one of those; an exported net (NIR, netx) is shown by the programs that read its format",
        )
    return readers[schema](path)


def schema_of(path: Path) -> str:
    """Return the schema that a safetensors, HDF5 or JSON file names, '' where it names none.

    Raises:
        UserError: the file is missing, or none of them.
    """
    regular_file(path, "file", "give the path of an artefact")
    with open(path, "rb") as file:
        head = file.read(8)
        if head == MAGIC:
            from spikestill.dataset.format import hdf5_schema

            return hdf5_schema(path)
        if head[:1] == b"{":
            return str(document(path).get("schema", ""))
    try:
        return str(read_metadata(path).get("schema", ""))
    except MALFORMED as error:
        raise UserError(
            f"{path}: neither safetensors nor HDF5 ({error})", "give a file that spikestill wrote"
        ) from error


def _teacher(path: Path) -> Contents:
    from spikestill.charts import png_uri
    from spikestill.pictures import filter_pixels, filters_caption
    from spikestill.teacher.checkpoint import NETWORKS, TEACHER_REMEDY, nature_network, read_teacher_file

    file = read_teacher_file(path)
    if file.architecture not in NETWORKS:
        program = {"program": file.architecture, "bytes": path.stat().st_size}
        found = {"game": file.game, "actions": file.actions, **program}
        return Contents("teacher", found, file.provenance, lambda: [])
    weights, game, actions, provenance = nature_network(path, file)
    rows = [
        {"tensor": name, "shape": list(tensor.shape), "min": float(tensor.min()), "max": float(tensor.max())}
        for name, tensor in weights.items()
    ]

    def pictures() -> list[tuple[str, str]]:
        conv1 = weights["conv1.weight"].float().numpy()
        return [
            (filters_caption("filters of the first layer", *conv1.shape[:2]), png_uri(filter_pixels(conv1)))
        ]

    figures = {
        "game": game,
        "actions": actions,
        "weights": sum(tensor.numel() for tensor in weights.values()),
    }
    if "selected" in file.net:
        try:
            text = "step {step:,}, which scored {score:.4g} in {games} games".format(**file.net["selected"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: its selected is {file.net['selected']!r}", TEACHER_REMEDY) from error
        figures["selected"] = text
    return Contents("teacher", {**figures, "tensors": rows}, provenance, pictures)


def _trace(path: Path) -> Contents:
    from spikestill.runtime.trace import load

    trace = load(path)
    agents = [
        {
            "agent": each.name,
            "plays": "its own game" if each.leader is None else f"beside {trace.agents[each.leader].name}",
            "games": len(np.unique(each.game)),
            "frames": len(each.game),
            "decisions": len(each.number),
            "reward": float(each.reward.sum()),
            "with spikes": len(each.spikes),
        }
        for each in trace.agents
    ]
    game = {"game": trace.environment.game, "seed": trace.seed, "sticky": trace.environment.sticky}
    return Contents("trace", {**game, "agents": agents}, trace.provenance, lambda: [])


def _control_agent(path: Path) -> Contents:
    from spikestill.teacher.control.agent_file import read_agent

    file = read_agent(path)
    networks = {"actor": file.actor, **{f"critic {index}": each for index, each in enumerate(file.critics)}}
    if file.encoder is not None:
        heads = {"actor's": file.encoder.actor, "critics'": file.encoder.critic}
        networks |= {"encoder": file.encoder.convolutions}
        networks |= {f"encoder, {whose} linear": [(each[0], each[1])] for whose, each in heads.items()}
        networks |= {f"encoder, {whose} layer norm": [(each[2], each[3])] for whose, each in heads.items()}
    rows = [
        {
            "tensor": f"{name}, layer {index}",
            "shape": list(weight.shape),
            "min": float(weight.min()),
            "max": float(weight.max()),
        }
        for name, layers in networks.items()
        for index, (weight, _) in enumerate(layers)
    ]
    figures = {
        "environment": file.environment,
        "algorithm": file.algorithm,
        "precision": file.precision,
        "observation": {name: size for name, size in file.fields},
        "actions": len(file.low),
        "weights": sum(weight.size + bias.size for layers in networks.values() for weight, bias in layers),
        "tensors": rows,
    }
    return Contents("control agent", figures, file.provenance, lambda: [])


def _fixed_agent(path: Path) -> Contents:
    from spikestill.teacher.control.fixed_file import read

    state, environment, provenance = read(path)
    formats = state.formats
    networks = {"actor": state.actor, "critic": state.critic}
    figures = {
        "environment": environment,
        "algorithm": "ddpg",
        "precision": state.config.variant,
        **{name: value for name, value in dataclasses.asdict(state.config).items() if name != "variant"},
        "updates": state.updates,
        "weights": sum(each.weight_N.size for each in networks.values()),
        "weight_format": f"Q({formats.bits}, {formats.weight})",
        "saturated": dict(state.saturated),
        "tensors": [
            {
                "tensor": name,
                "shape": list(each.weight_N.shape),
                "min": float(each.weight_N.min() * 2.0**-formats.weight),
                "max": float(each.weight_N.max() * 2.0**-formats.weight),
            }
            for name, each in networks.items()
        ],
    }
    return Contents("fixed-point agent", figures, provenance, lambda: [])


def _student(path: Path) -> Contents:
    from spikestill.charts import png_uri
    from spikestill.pictures import filter_pixels, filters_caption
    from spikestill.student.integer_net import load

    net, provenance = load(path)
    rows = []
    for index, (layer, shape) in enumerate(zip(net.layers, net.shapes(), strict=True)):
        rows.append(
            {
                "layer": index,
                "shape": list(shape),
                "kernel": layer.kernel,
                "stride": layer.stride,
                "pad": layer.pad,
                "groups": layer.groups,
                "fan_in": layer.fan_in,
                "zero_weights": float(np.mean(layer.weight_OIHW == 0)),
                "theta": f"{layer.theta_O.min()}..{layer.theta_O.max()}",
            }
        )

    def pictures() -> list[tuple[str, str]]:
        weight = net.layers[0].weight_OIHW
        return [
            (
                filters_caption("ternary filters of the first layer", *weight.shape[:2]),
                png_uri(filter_pixels(weight)),
            )
        ]

    figures = {
        "game": net.game,
        "actions": net.actions,
        "neurons": net.neurons(),
        "weights": sum(layer.weight_OIHW.size for layer in net.layers),
    }
    return Contents("student", {**figures, "layers": rows}, provenance, pictures)


def _checkpoint(path: Path) -> Contents:
    """What ``--resume`` and ``--initial`` go on from: its step, and the options that it was begun with."""
    from spikestill.common.tensors import read_tensors

    remedy = "give another checkpoint"
    tensors, metadata = read_tensors(path, schema_of(path), remedy)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    with restoring(path, remedy):
        counters, options = json.loads(metadata["counters"]), json.loads(metadata["config"])
        found = {
            "step": counters["step"],
            "steps_in_all": options["steps"],
            "tensor_bytes": size,
            "options": options,
        }
        return Contents("checkpoint", found, Provenance.from_json(metadata["provenance"]), lambda: [])


def _core_map(path: Path) -> Contents:
    from spikestill.core_page import core_page, core_rates
    from spikestill.deploy.core_map import load
    from spikestill.deploy.inspection import summarise
    from spikestill.deploy.validate import validate, violations

    core_map = load(path)

    def cores(config: InspectConfig) -> dict[str, Any]:
        validate(core_map, f"{path}: core map")
        rates = None if config.buffer is None else core_rates(core_map, path, config.buffers, config.frames)
        return core_page(core_map, rates)

    broken = next(violations(core_map), None)
    rules = "obeyed" if broken is None else str(broken)
    figures = {"game": core_map.game, **summarise(core_map), "rules": rules}
    return Contents("core map", figures, core_map.provenance, lambda: [], cores)


def _buffer(path: Path, quick: bool) -> Contents:
    from spikestill.charts import png_uri
    from spikestill.dataset.format import BufferFile

    with BufferFile(path) as file:
        header, steps, rows = file.header, file.steps, file.rows
        if not quick:
            file.check_frames()
    valid = steps.valid
    figures = {
        "game": header.game,
        "streams": header.streams,
        "steps": int(valid.sum()),
        "rows": rows,
        "sessions": len(header.sessions),
        "games": int((steps.terminated | steps.truncated).sum()),
        "reward": float(steps.reward[valid].sum()),
        "actions": _actions(header, steps),
    }
    if header.version > 1:
        figures["observations"] = [_column(f.name, steps.observations[f.name][valid]) for f in header.fields]

    def pictures() -> list[tuple[str, str]]:
        from spikestill.dataset.reader import BufferReader
        from spikestill.pictures import frame_sheet

        if header.version > 1:
            return []
        with BufferReader(path, memory=0) as reader:
            indices = np.linspace(0, len(reader) - 1, FRAMES).astype(np.int64)
            newest = reader.stacks(indices)[:, -1]
        sheet = frame_sheet(newest, rows=3)
        return [(f"{FRAMES} frames, evenly spread over the buffer", png_uri(sheet))]

    return Contents("buffer", figures, header.provenance, pictures)


def _actions(header: Header, steps: Steps) -> list[dict[str, Any]]:
    """Return a row for each discrete action, or for each number of a continuous one."""
    valid = steps.valid
    if header.box is not None:
        numbers = zip(steps.action[valid].T, header.box.low, header.box.high, strict=True)
        return [
            _column(str(index), values) | {"bounds": f"{low:g}..{high:g}"}
            for index, (values, low, high) in enumerate(numbers)
        ]
    played = np.bincount(steps.action[valid], minlength=header.actions)
    best = np.bincount(steps.q_values[valid].argmax(axis=1), minlength=header.actions)
    return [
        {
            "action": name,
            "played": int(played[index]),
            "best": int(best[index]),
            "mean_q": float(steps.q_values[valid][:, index].mean()) if valid.any() else None,
        }
        for index, name in enumerate(header.action_names)
    ]


def _column(name: str, values: npt.NDArray[Any]) -> dict[str, Any]:
    """Return what there is to say of numbers."""
    functions: dict[str, Callable[..., Any]] = {"lowest": np.min, "mean": np.mean, "highest": np.max}
    known = {key: float(function(values)) if values.size else None for key, function in functions.items()}
    return {"name": name, "shape": list(values.shape[1:]), **known}


def write_page(config: InspectConfig, contents: Contents) -> None:
    """Write the page of an artefact, ``config.html``: its figures and its pictures."""
    from spikestill.console import shown
    from spikestill.report import render

    scalars, tables = [], []
    for name, value in contents.figures.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = [[shown(row[key]) for key in value[0]] for row in value]
            tables.append({"name": name, "heads": list(value[0]), "rows": rows})
        else:
            scalars.append((name, shown(value)))
    page = render(
        "inspection.html",
        title=f"{config.path.name}: {contents.kind}",
        kind=contents.kind,
        path=str(config.path),
        scalars=scalars,
        tables=tables,
        pictures=contents.pictures(),
        cores=contents.cores(config) if contents.cores is not None else None,
        words=contents.words,
        charts=contents.charts,
        provenance=json.dumps(dataclasses.asdict(contents.provenance), indent=2)
        if contents.provenance
        else "",
    )
    assert config.html is not None
    write_text(config.html, page)
