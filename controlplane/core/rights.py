"""Whether the rules of namespaces let a user do what a command says. Pure.

A plan is in the namespace of its name, as a key is. What its steps do is done in the name of who
submitted it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorcast.controlplane.core.names import (
    find_key,
    resolve_artifact,
    resolve_operation,
    resolve_plan,
)
from tensorcast.schema.authorization import (
    check_artifact,
    check_everywhere,
    check_key,
    check_namespace,
)
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import (
    AcquireLease,
    CancelOperation,
    Command,
    GrantAccess,
    IssueOperation,
    MoveKey,
    PinArtifact,
    RemoveArtifact,
    RemoveKey,
    RequestReplicas,
    RequestVerification,
    RetryOperation,
    RevokeAccess,
    UnpinArtifact,
)
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import Key
from tensorcast.schema.namespaces import Right
from tensorcast.schema.plan_commands import (
    CancelPlan,
    PausePlan,
    ResumePlan,
    StartStep,
    SubmitPlan,
)


def check_command(view: ClusterView, user: str, command: Command) -> None:
    """Raises PermissionDenied unless the rules let a user do it. Names that stand for nothing are
    left to who decides the command."""
    if not user or not view.namespaces:
        return
    try:
        _check(view, user, command)
    except (NotFound, InvalidArgument):
        return


def _check(view: ClusterView, user: str, command: Command) -> None:
    match command:
        case MoveKey():
            known = find_key(view, command.key)
            check_key(view, user, command.key, Right.WRITE if known is None else Right.KEYS)
            check_artifact(view, user, resolve_artifact(view, command.artifact), Right.READ)
        case RemoveKey():
            check_key(view, user, command.key, Right.KEYS)
        case PinArtifact() | UnpinArtifact() | RequestVerification():
            check_artifact(view, user, resolve_artifact(view, command.artifact), Right.WRITE)
        case RemoveArtifact():
            artifact = resolve_artifact(view, command.artifact)
            check_everywhere(view, user, artifact, Right.WRITE)
            for key in view.keys_by_artifact.get(artifact, ()):
                check_key(view, user, key, Right.KEYS)
        case RequestReplicas() | AcquireLease():
            check_artifact(view, user, resolve_artifact(view, command.artifact), Right.READ)
        case CancelOperation() | RetryOperation():
            operation = view.operations[resolve_operation(view, command.operation)]
            check_artifact(view, user, operation.work.artifact, Right.READ)
        case IssueOperation():
            check_artifact(view, user, command.work.artifact, Right.READ)
        case StartStep():
            _check_looks(view, user, command.inputs)
        case SubmitPlan():
            check_key(view, user, Key(command.spec.name), Right.PLANS)
        case CancelPlan() | PausePlan() | ResumePlan():
            plan = view.plans[resolve_plan(view, command.plan)]
            check_key(view, user, Key(plan.spec.name), Right.PLANS)
        case GrantAccess() | RevokeAccess():
            check_namespace(view, user, command.namespace, Right.GRANT)
        case _:
            pass


def _check_looks(view: ClusterView, user: str, inputs: Mapping[str, object]) -> None:
    """What a step of a plan waits for, it learns."""
    match inputs.get("key"), inputs.get("artifact"):
        case str(key), _:
            check_key(view, user, Key(key), Right.READ)
        case _, str(artifact):
            check_artifact(view, user, resolve_artifact(view, artifact), Right.READ)
