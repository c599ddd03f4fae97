"""A view as text, for the command line.

    names=REGEX[,REGEX…]             tensors whose whole name matches one of these
    shard=RANK/WORLD                 with one or more rules
    rule=REGEX:DIM                   cut matching tensors along DIM into WORLD equal parts
    slice=REGEX:DIM:START:LENGTH     part of one dimension of matching tensors

Parts are joined with ';' and may repeat (but for `shard`): `shard=0/2;rule=.*q_proj.weight:0`.
"""

from __future__ import annotations

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.views import Slice, View

FORMS = "names=REGEX,…  shard=RANK/WORLD  rule=REGEX:DIM  slice=REGEX:DIM:START:LENGTH, with ';'"


def parse_view(text: str) -> View:
    """The view that a text describes; an empty text is the whole artifact. Raises
    InvalidArgument."""
    names: list[str] = []
    slices: list[tuple[str, Slice]] = []
    rules: list[tuple[str, int]] = []
    shard: tuple[int, int] | None = None
    for part in filter(None, (part.strip() for part in text.split(";"))):
        word, _, value = part.partition("=")
        match word:
            case "names" if value:
                names.extend(filter(None, value.split(",")))
            case "shard" if shard is None:
                shard = _parse_shard(value, part)
            case "rule":
                rules.append(_parse_rule(value, part))
            case "slice":
                slices.append(_parse_slice(value, part))
            case _:
                raise _unclear(part)
    return _combine(tuple(names), tuple(slices), shard, tuple(rules))


def format_view(view: View) -> str:
    """The text that `parse_view` reads as this view."""
    parts = [f"names={','.join(view.names)}"] if view.names else []
    parts += [f"slice={name}:{s.dim}:{s.start}:{s.length}" for name, s in view.slices]
    if view.rules:
        parts.append(f"shard={view.rank}/{view.world}")
        parts += [f"rule={name}:{dim}" for name, dim in view.rules]
    return ";".join(parts)


def _combine(
    names: tuple[str, ...],
    slices: tuple[tuple[str, Slice], ...],
    shard: tuple[int, int] | None,
    rules: tuple[tuple[str, int], ...],
) -> View:
    rank, world = shard or (0, 1)
    if not 0 <= rank < world:
        raise InvalidArgument(
            f"There is no shard {rank} of {world}.",
            hint=f"The first of {world} is 0/{world}." if world else "WORLD is 1 or more.",
        )
    if shard is None and rules:
        raise InvalidArgument("A rule needs a shard.", hint="Add shard=RANK/WORLD.")
    if shard is not None and not rules:
        raise InvalidArgument("A shard needs a rule.", hint="Add rule=REGEX:DIM.")
    return View(names=names, slices=slices, rank=rank, world=world, rules=rules)


def _parse_shard(value: str, part: str) -> tuple[int, int]:
    rank, _, world = value.partition("/")
    return _number(rank, part), _number(world, part)


def _parse_rule(value: str, part: str) -> tuple[str, int]:
    pattern, _, dim = value.rpartition(":")
    if not pattern:
        raise _unclear(part)
    return pattern, _number(dim, part)


def _parse_slice(value: str, part: str) -> tuple[str, Slice]:
    pattern, *numbers = value.rsplit(":", 3)
    if not pattern or len(numbers) != 3:
        raise _unclear(part)
    dim, start, length = (_number(number, part) for number in numbers)
    return pattern, Slice(dim, start, length)


def _number(text: str, part: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise _unclear(part)
    return int(text)


def _unclear(part: str) -> InvalidArgument:
    return InvalidArgument(f"{part!r} is no part of a view.", hint=f"Write {FORMS}.")
