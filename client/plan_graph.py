"""Pictures of plans: for mermaid, for graphviz, and as text for a terminal. Pure, but for
`draw_svg`, which runs graphviz.

An arrow goes from a step to those that wait for it. With the state of a plan that runs, steps are
coloured by it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.plan_checks import describe_step
from tensorcast.schema.plan_types import needs_of
from tensorcast.schema.plans import (
    Barrier,
    CallStep,
    ConditionStep,
    EmitStep,
    MapStep,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    Step,
    SubPlanStep,
    WaitKey,
    WaitSignal,
)

DRAW_S_MAX: Final = 30.0
COLOURS: Final = {
    "running": "#9ecbff",
    "retrying": "#ffd8a8",
    "succeeded": "#b2f2bb",
    "failed": "#ffc9c9",
    "skipped": "#dee2e6",
    "cancelled": "#e9ecef",
}
SIGNS: Final = {
    "running": "*",
    "retrying": "~",
    "succeeded": "+",
    "failed": "!",
    "skipped": "-",
    "cancelled": "x",
}
_UNDO: Final = "if it fails"
_WEIGHT: Final = {
    status: weight
    for weight, status in enumerate(
        ("running", "retrying", "failed", "pending", "cancelled", "skipped", "succeeded")
    )
}
Statuses = Mapping[str, str]


def describe(step: Step) -> str:
    """A step in a line: what it does, to what, where."""
    what = describe_step(step)
    match step:
        case OperationStep():
            return f"{what} {step.artifact} on {step.node}"
        case ReplicateStep():
            to = step.to if isinstance(step.to, str) else ", ".join(step.to)
            return f"{what} {step.artifact} to {to}"
        case CallStep():
            return f"{step.engine}: {step.verb}"
        case EmitStep() | WaitSignal():
            return f"{what} {step.topic}"
        case WaitKey():
            return f"{what} {step.key}"
        case Barrier():
            return f"{what} {step.count or len(step.steps)} of {len(step.steps)}"
        case _:
            return what


def fold_items(spec: PlanSpec, statuses: Statuses) -> dict[str, str]:
    """The statuses of a plan's steps, those in the body of a map as one for all its items: what
    still goes on before what has failed, that before what was skipped or cancelled. Pure."""
    maps = set(_maps_of(spec.steps, ""))
    folded: dict[str, str] = {}
    for path, status in statuses.items():
        place = _without_items(path, maps)
        known = folded.get(place)
        folded[place] = status if known is None else min(known, status, key=_WEIGHT.__getitem__)
    return folded


def _maps_of(steps: tuple[Step, ...], prefix: str) -> Iterator[str]:
    for step in steps:
        path = prefix + step.id
        if isinstance(step, MapStep):
            yield path
        for name, body in bodies(step):
            yield from _maps_of(body, f"{path}/compensate/" if name == _UNDO else f"{path}/")


def _without_items(path: str, maps: set[str]) -> str:
    """The place of a step as it is written: `fan/copy` for `fan/3/copy`."""
    place = ""
    for part in path.split("/"):
        if not (place in maps and part.isdecimal()):
            place = f"{place}/{part}" if place else part
    return place


def bodies(step: Step) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """The bodies of a step, each with its name."""
    match step:
        case ConditionStep():
            yield from (("then", step.then), ("otherwise", step.otherwise))
        case MapStep():
            yield ("for each", step.steps)
        case SubPlanStep():
            yield (step.plan.name, step.plan.steps)
        case _:
            pass
    yield (_UNDO, step.compensate)


def edges(steps: tuple[Step, ...]) -> Iterator[tuple[str, str]]:
    """Which step of a body waits for which: (first, then)."""
    beside = frozenset(step.id for step in steps)
    for step in steps:
        soft = frozenset(step.steps) if isinstance(step, Barrier) else frozenset[str]()
        for needed in sorted(needs_of(step, beside) | soft):
            yield needed, step.id


# ---- mermaid -----------------------------------------------------------------------------------


def draw_mermaid(spec: PlanSpec, statuses: Statuses | None = None) -> str:
    """A mermaid flowchart."""
    lines = ["flowchart TD", *_mermaid_body(spec.steps, "", statuses or {}, "    ")]
    lines += [f"    classDef {status} fill:{colour}" for status, colour in COLOURS.items()]
    return "\n".join(lines) + "\n"


def _mermaid_body(
    steps: tuple[Step, ...], prefix: str, statuses: Statuses, indent: str
) -> Iterator[str]:
    for step in steps:
        path = prefix + step.id
        status = statuses.get(path, "")
        mark = f":::{status}" if status in COLOURS else ""
        words = f"{step.id}<br/>{_plain(describe(step))}"
        yield f'{indent}{_node(path)}["{words}"]{mark}'
        for name, body in bodies(step):
            if body:
                yield f'{indent}subgraph {_node(path)}_{_node(name)}["{step.id}: {_plain(name)}"]'
                inner = f"{path}/compensate/" if name == _UNDO else f"{path}/"
                yield from _mermaid_body(body, inner, statuses, indent + "    ")
                yield f"{indent}end"
                yield f"{indent}{_node(path)} -.-> {_node(path)}_{_node(name)}"
    for first, then in edges(steps):
        yield f"{indent}{_node(prefix + first)} --> {_node(prefix + then)}"


def _node(path: str) -> str:
    return "s_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in path)


def _plain(text: str) -> str:
    safe = text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return safe.replace(">", "&gt;").replace("$", "&#36;")


# ---- graphviz ----------------------------------------------------------------------------------


def draw_dot(spec: PlanSpec, statuses: Statuses | None = None) -> str:
    """A graph in the language of graphviz."""
    lines = [
        "digraph plan {",
        '    node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica"];',
        *_dot_body(spec.steps, "", statuses or {}, "    "),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _dot_body(
    steps: tuple[Step, ...], prefix: str, statuses: Statuses, indent: str
) -> Iterator[str]:
    for step in steps:
        path = prefix + step.id
        colour = COLOURS.get(statuses.get(path, ""), "white")
        words = _quoted(f"{step.id}\n{describe(step)}")
        yield f'{indent}{_quoted(path)} [label={words}, fillcolor="{colour}"];'
        for name, body in bodies(step):
            if body:
                inner = f"{path}/compensate/" if name == _UNDO else f"{path}/"
                yield f"{indent}subgraph {_quoted(f'cluster {path} {name}')} {{"
                yield f"{indent}    label={_quoted(f'{step.id}: {name}')};"
                yield from _dot_body(body, inner, statuses, indent + "    ")
                yield f"{indent}}}"
                first = _quoted(inner + body[0].id)
                yield f"{indent}{_quoted(path)} -> {first} [style=dashed];"
    for first, then in edges(steps):
        yield f"{indent}{_quoted(prefix + first)} -> {_quoted(prefix + then)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def draw_svg(spec: PlanSpec, statuses: Statuses | None = None) -> str:
    """A picture in SVG by graphviz. Raises TensorCastError without it."""
    program = shutil.which("dot")
    if program is None:
        raise TensorCastError(
            "The program `dot` of graphviz, which draws SVG, is not installed.",
            hint="Install it (apt install graphviz, brew install graphviz, dnf install graphviz),"
            " or use --format mermaid or dot.",
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=draw_dot(spec, statuses),
            capture_output=True,
            text=True,
            timeout=DRAW_S_MAX,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise TensorCastError(f"graphviz could not draw the plan: {error}.") from error
    return done.stdout


# ---- text --------------------------------------------------------------------------------------


def draw_text(spec: PlanSpec, statuses: Statuses | None = None) -> str:
    """The steps in an order in which they may run, each with what it waits for."""
    return "\n".join(_text_body(spec.steps, "", statuses or {}, "")) + "\n"


def _text_body(
    steps: tuple[Step, ...], prefix: str, statuses: Statuses, indent: str
) -> Iterator[str]:
    waits: dict[str, list[str]] = {step.id: [] for step in steps}
    for first, then in edges(steps):
        waits[then].append(first)
    for step in _in_order(steps, waits):
        status = statuses.get(prefix + step.id, "")
        after = f"   <- {', '.join(waits[step.id])}" if waits[step.id] else ""
        yield f"{indent}[{SIGNS.get(status, ' ')}] {step.id}: {describe(step)}{after}"
        for name, body in bodies(step):
            if body:
                inner = f"{prefix}{step.id}/" + ("compensate/" if name == _UNDO else "")
                yield f"{indent}    {name}:"
                yield from _text_body(body, inner, statuses, indent + "      ")


def _in_order(steps: tuple[Step, ...], waits: Mapping[str, list[str]]) -> list[Step]:
    left, found = list(steps), []
    done: set[str] = set()
    while left:
        ready = [step for step in left if done.issuperset(waits[step.id])] or left[:1]
        found += ready
        done.update(step.id for step in ready)
        left = [step for step in left if step.id not in done]
    return found
