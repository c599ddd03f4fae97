"""Plans as YAML and JSON files. What cannot be read is told, one sentence for each fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import yaml

from tensorcast.client.plan_faults import tell_faults
from tensorcast.client.plan_repairs import mend_plan
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.plan_checks import check_plan
from tensorcast.schema.plans import PLAN_BYTES_MAX, PlanSpec


class _Loader(yaml.SafeLoader):
    """No aliases: a few lines of them stand for more than any memory holds. Scalars are those of
    YAML 1.2: on, off, yes, no, times and 12:30 are texts. No name stands twice in a mapping: the
    first one would be forgotten in silence."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, which a plan may not")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.MappingNode):
            _check_names(node)
        return node


def _check_names(node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if key.value in seen:
            raise yaml.YAMLError(
                f"line {line} says {key.value!r} again, which line {seen[key.value]} said"
            )
        seen[key.value] = line


_PREFIX: Final = "tag:yaml.org,2002:"
_SCALARS: Final = {
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
}
_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _begins) in _SCALARS.items():
    _Loader.add_implicit_resolver(_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), list(_begins))


def read_plan(path: str | Path) -> PlanSpec:
    """The plan in a file. Raises NotFound, and as `parse_plan`."""
    file = Path(path)
    try:
        if file.stat().st_size > PLAN_BYTES_MAX:
            raise InvalidArgument(f"{path} is larger than {PLAN_BYTES_MAX} bytes.")
        text = file.read_text()
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {path}.", hint="Give the path of a plan.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}.") from error
    return parse_plan(text)


def parse_plan(text: str) -> PlanSpec:
    """The plan that a text in YAML or JSON says. Raises InvalidArgument that tells all faults."""
    spec, faults = inspect_plan(text)
    if spec is None or faults:
        raise InvalidArgument("This is no plan: " + " ".join(faults))
    return spec


def inspect_plan(text: str) -> tuple[PlanSpec | None, tuple[str, ...]]:
    """The plan in a text, and one sentence for each fault. Steps that have not the form of one are
    replaced by others of their name, so that the rest can be looked at; None where too little of a
    plan is there."""
    if len(text) > PLAN_BYTES_MAX:
        return None, (f"It is larger than {PLAN_BYTES_MAX} bytes.",)
    try:
        said: object = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split())
        return None, (f"It is neither YAML nor JSON: {words}.",)
    if not isinstance(said, dict):
        return None, ("It is no mapping with `name` and `steps`.",)
    try:
        spec = msgspec.convert(said, PlanSpec)
    except (msgspec.ValidationError, RecursionError) as error:
        faults, rest = tell_faults(said, error), mend_plan(said)
        return rest, (*faults, *(check_plan(rest) if rest is not None else ()))
    return spec, (*tell_faults(said), *check_plan(spec))


def write_plan(spec: PlanSpec) -> str:
    """A plan as YAML, which `parse_plan` reads again."""
    return yaml.safe_dump(msgspec.to_builtins(spec), sort_keys=False, allow_unicode=True)
