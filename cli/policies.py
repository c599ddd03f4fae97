"""How policies look to people, and how their parameters are written on a command line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tensorcast.cli.output import Block, Fields, Heading, Table
from tensorcast.cli.signals import shorten_data
from tensorcast.cli.units import format_time
from tensorcast.schema.api_policies import ParameterInfo, PolicyInfo
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.wording import tell_count


def parse_parameters(words: Sequence[str]) -> dict[str, object]:
    """`name=value` words: a value is JSON, or else text. Raises InvalidArgument."""
    found: dict[str, object] = {}
    for word in words:
        name, mark, text = word.partition("=")
        if not mark or not name:
            raise InvalidArgument(
                f"{word!r} sets no parameter.", hint="Write name=value, as in versions=3."
            )
        try:
            found[name] = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            found[name] = text
    return found


def table_policies(found: Sequence[PolicyInfo]) -> Table:
    """One policy a line."""
    return Table(
        titles=("policy", "state", "set", "does"),
        rows=[(one.policy, one.state, _set_parameters(one), one.about) for one in found],
        fold=frozenset({"set", "does"}),
    )


def _set_parameters(info: PolicyInfo) -> str:
    changed = (one for one in info.parameters if one.value != one.default)
    return ", ".join(f"{one.name}={_value(one.value)}" for one in changed)


def describe_policy(info: PolicyInfo) -> Sequence[Block]:
    """Everything about one policy."""
    pairs = (
        ("policy", info.policy),
        ("state", info.state),
        ("why", _why(info)),
        ("does", info.about),
        ("code", info.origin),
        ("set by", info.set_by),
        ("set at", format_time(info.set_at) if info.set_at else ""),
        ("seq", str(info.seq) if info.seq else ""),
        ("in vain", _in_vain(info)),
    )
    return (Fields(pairs), Heading("Parameters"), table_parameters(info.parameters))


def _why(info: PolicyInfo) -> str:
    """Why it was stopped, in one line, whatever it raised."""
    return f"{info.reason}: {' '.join(info.detail.split())}" if info.reason else ""


def _in_vain(info: PolicyInfo) -> str:
    if not info.refused:
        return ""
    return f"{tell_count(info.refused, 'command')} since its control plane began; {info.refusal}"


def table_parameters(parameters: Sequence[ParameterInfo]) -> Table:
    """One parameter a line."""
    return Table(
        titles=("name", "value", "default", "type"),
        rows=[(one.name, _value(one.value), _value(one.default), one.type) for one in parameters],
        fold=frozenset({"value", "default", "type"}),
        empty="It has no parameters.",
    )


def _value(value: object) -> str:
    return shorten_data(value) or "{}"
