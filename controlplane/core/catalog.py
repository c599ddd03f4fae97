"""The policies that a control plane knows, and which of them run. Pure.

Code comes from the installation (built in, entry points, files); whether it runs, and with which
parameters, comes from the log: so all schedulers that know a policy agree about it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, cast

import msgspec

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.guard import Limits
from tensorcast.controlplane.core.policies.admission import Admission
from tensorcast.controlplane.core.policies.announce import Announce
from tensorcast.controlplane.core.policies.archive import Archive
from tensorcast.controlplane.core.policies.base import Parameters, Policy
from tensorcast.controlplane.core.policies.drain import Drain
from tensorcast.controlplane.core.policies.evict import Evict
from tensorcast.controlplane.core.policies.keep_last import KeepLast
from tensorcast.controlplane.core.policies.prewarm import Prewarm
from tensorcast.controlplane.core.policies.promote import Promote
from tensorcast.controlplane.core.policies.rebalance import Rebalance
from tensorcast.controlplane.core.policies.repair import Repair
from tensorcast.controlplane.core.policies.replicate import Replicate
from tensorcast.controlplane.core.policies.reroute import Reroute
from tensorcast.controlplane.core.policies.spread import Spread
from tensorcast.controlplane.core.policies.topics import Topics
from tensorcast.controlplane.core.policies.verify import VerifyReplicas
from tensorcast.controlplane.core.policies.weight_rollout import WeightRollout
from tensorcast.schema.aggregates.policy import PolicyState, PolicyStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.guesses import suggest
from tensorcast.schema.ids import parse_policy

BUILT_IN: Final = "built in"
WIDE: Final = Limits(event_commands_max=100_000, minute_commands_max=200_000)
"""What keeps a cluster alive answers a node with 100,000 replicas that is lost, too."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that is known: how it is made of its parameters, where its code comes from, and
    whether it runs when nobody has said anything."""

    name: str
    about: str
    origin: str
    make: Callable[[Parameters], Policy]
    parameters: type[Parameters] = Parameters
    is_on: bool = False
    limits: Limits = Limits()


class Catalog:
    """All kinds by name, in order of precedence: of two operations with one aim the first policy's
    is issued. What runs is kept until the view's policies change."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.kinds: Mapping[str, Kind] = {kind.name: kind for kind in kinds}
        self._seen: object = None
        self._running: tuple[Policy, ...] = ()

    def find(self, name: str) -> Kind:
        """The kind of this name. Raises NotFound."""
        found = self.kinds.get(name)
        if found is None:
            raise NotFound(
                f"This control plane knows no policy {name!r}{suggest(name, self.kinds) or '.'}",
                hint=f"It knows {', '.join(self.kinds)}.",
            )
        return found

    def is_running(self, view: ClusterView, name: str) -> bool:
        """Whether the policy answers events."""
        state = view.policies.get(name)
        if state is None or state.status is PolicyStatus.UNSET:
            return name in self.kinds and self.kinds[name].is_on
        return state.status is PolicyStatus.ENABLED

    def running(self, view: ClusterView) -> tuple[Policy, ...]:
        """The policies that answer events, with their parameters. One whose parameters are none of
        its own (its code has changed since they were set) does not run."""
        if view.policies is not self._seen:
            self._running = tuple(self._make(view))
            self._seen = view.policies
        return self._running

    def _make(self, view: ClusterView) -> Iterator[Policy]:
        for name, kind in self.kinds.items():
            if not self.is_running(view, name):
                continue
            try:
                yield kind.make(parse_parameters(kind, parameters_of(view.policies.get(name))))
            except InvalidArgument:
                continue

    def is_essential(self, name: str) -> bool:
        """Whether the cluster cannot do without it."""
        return name in self.kinds and self.kinds[name].limits is WIDE

    def limits(self, name: str) -> Limits:
        """How much a policy may do."""
        kind = self.kinds.get(name)
        return kind.limits if kind else Limits()

    def replace(self, *kinds: Kind) -> Catalog:
        """The same, with these kinds in the place of those of their names."""
        return Catalog({**self.kinds, **{kind.name: kind for kind in kinds}}.values())


def parameters_of(state: PolicyState | None) -> dict[str, object]:
    """Those that somebody has set."""
    return state.parameters if state is not None else {}


def parse_parameters(kind: Kind, given: Mapping[str, object]) -> Parameters:
    """The parameters as the policy wants them. Raises InvalidArgument, naming the one."""
    try:
        found: Parameters = msgspec.convert(dict(given), kind.parameters, strict=True)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.parameters.__struct_fields__) or "no parameters"
        raise InvalidArgument(
            f"Policy {kind.name} cannot have these parameters: {error}.", hint=f"It has {known}."
        ) from error
    return found


def kind_of(cls: type[object], origin: str, *, is_on: bool = False) -> Kind:
    """A policy's class as a kind. Raises InvalidArgument for a class that is none."""
    name = getattr(cls, "name", None)
    parameters = getattr(cls, "Parameters", Parameters)
    if not isinstance(name, str) or not callable(getattr(cls, "react", None)):
        raise InvalidArgument(
            f"{cls.__name__} of {origin} is no policy.", hint="Give it a `name` and `react`."
        )
    if not (isinstance(parameters, type) and issubclass(parameters, Parameters)):
        raise InvalidArgument(
            f"The Parameters of policy {name} are no parameters.",
            hint="Make them a class of `Parameters`, each field with a default.",
        )
    said = inspect.cleandoc(cls.__doc__ or "") or inspect.getdoc(inspect.getmodule(cls))
    about = (said or "").split("\n\n")[0]
    kind = Kind(
        name=parse_policy(name),
        about=" ".join(about.split()),
        origin=origin,
        make=partial(_make, cast("Callable[[Parameters], Policy]", cls), name),
        parameters=parameters,
        is_on=is_on,
    )
    parse_parameters(kind, {})  # every field has a default
    return kind


def _make(cls: Callable[[Parameters], Policy], name: str, parameters: Parameters) -> Policy:
    """A policy of its parameters. Raises InvalidArgument for whatever it raises."""
    try:
        return cls(parameters)
    except InvalidArgument:
        raise
    except (Exception, SystemExit) as error:  # a policy is anybody's code
        raise InvalidArgument(
            f"Policy {name} cannot be made of these parameters: {type(error).__name__}: {error}."
        ) from error


def make_catalog(labels: Sequence[str] = LABELS, further: Iterable[Kind] = ()) -> Catalog:
    """The policies that are built in, then `further` ones, which may not take their names. `labels`
    of nodes say where they are, the widest place first. Raises InvalidArgument."""
    kinds = {kind.name: kind for kind in _built_in(tuple(labels))}
    for kind in further:
        if kind.name in kinds:
            raise InvalidArgument(
                f"There are two policies {kind.name!r}: {kinds[kind.name].origin}, {kind.origin}.",
                hint="Give one of them another name.",
            )
        kinds[kind.name] = kind
    return Catalog(kinds.values())


def _built_in(labels: tuple[str, ...]) -> Iterator[Kind]:
    yield _essential(Replicate, partial(_with_labels, Replicate, labels))
    for cls in (Repair, Evict, Drain, VerifyReplicas, Promote):
        yield _essential(cls, partial(_without_parameters, cls))
    yield _essential(Reroute, partial(_with_labels, Reroute, labels))
    for optional in (
        Spread,
        Prewarm,
        KeepLast,
        Archive,
        Rebalance,
        Admission,
        Announce,
        WeightRollout,
    ):
        yield kind_of(optional, BUILT_IN)
    yield kind_of(Topics, BUILT_IN, is_on=True)


def _essential(cls: type[Policy], make: Callable[[Parameters], Policy]) -> Kind:
    return Kind(
        name=str(cls.name),
        about=" ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split()),
        origin=BUILT_IN,
        make=make,
        is_on=True,
        limits=WIDE,
    )


def _with_labels(
    cls: Callable[[Sequence[str]], Policy], labels: tuple[str, ...], parameters: Parameters
) -> Policy:
    return cls(labels)


def _without_parameters(cls: Callable[[], Policy], parameters: Parameters) -> Policy:
    return cls()


class Forced(Catalog):
    """A catalog in which one policy runs with these parameters, whatever the log says: to try what
    it would have done."""

    def __init__(self, catalog: Catalog, kind: Kind, given: Mapping[str, object]) -> None:
        parameters = parse_parameters(kind, given)
        forced = msgspec.structs.replace(
            kind, is_on=True, make=lambda _: kind.make(parameters), parameters=_Anything
        )
        super().__init__(catalog.replace(forced).kinds.values())
        self._forced = kind.name

    def is_running(self, view: ClusterView, name: str) -> bool:
        """As `Catalog.is_running`."""
        return name == self._forced or super().is_running(view, name)


class _Anything(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Takes what is set for others."""


CATALOG: Final = make_catalog()
