"""Who may do what with keys and artifacts, where rules are."""

from __future__ import annotations

import pytest

from samples import artifact_id, manifest
from tensorcast.schema.authorization import (
    check_artifact,
    check_everywhere,
    check_key,
    may_any,
    namespaces_of,
)
from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.events import ArtifactSealed, KeyMoved, KeyRemoved
from tensorcast.schema.ids import ArtifactId, Key
from tensorcast.schema.namespaces import Namespace, NamespaceGranted, Right
from worlds import World


def world_of(*rules: tuple[str, str, Right]) -> World:
    world = World()
    for namespace, who, right in rules:
        world.then(NamespaceGranted(namespace=Namespace(namespace), who=who, rights=(right,)))
    return world


def seal(world: World, name: str, namespace: str = "") -> ArtifactId:
    artifact = artifact_id(name)
    world.then(
        ArtifactSealed(
            artifact=artifact, kind="weights", manifest=manifest(1), namespace=Namespace(namespace)
        )
    )
    return artifact


def point(world: World, key: str, artifact: ArtifactId) -> None:
    world.then(KeyMoved(key=Key(key), artifact=artifact, previous=None, version=1))


def test_an_artifact_stays_in_the_namespace_in_which_it_was_put():
    world = World()
    artifact = seal(world, "a", "team")
    point(world, "team/a@1", artifact)
    point(world, "other/a", artifact)
    assert namespaces_of(world.view, artifact) == {"team", "other"}
    world.then(KeyRemoved(key=Key("team/a@1"), previous=artifact, version=2))
    world.then(KeyRemoved(key=Key("other/a"), previous=artifact, version=2))
    assert namespaces_of(world.view, artifact) == {"team"}
    assert namespaces_of(world.view, seal(world, "b")) == {"default"}


def test_without_rules_all_may_do_all_and_others_rules_do_not_matter():
    world = world_of(("else", "bob", Right.READ))
    artifact = seal(world, "a", "team")
    for right in Right:
        check_artifact(world.view, "eve", artifact, right)
        check_key(world.view, "eve", Key("team/new"), right)


def test_who_may_read_one_of_its_namespaces_may_read_it():
    world = world_of(("team", "ada", Right.READ), ("other", "bob", Right.READ))
    artifact = seal(world, "a", "team")
    assert may_any(world.view, "ada", artifact, Right.READ)
    assert not may_any(world.view, "bob", artifact, Right.READ)
    point(world, "other/a", artifact)
    assert may_any(world.view, "bob", artifact, Right.READ)
    with pytest.raises(PermissionDenied):
        check_everywhere(world.view, "bob", artifact, Right.READ)


def test_the_error_says_who_lacks_what_and_which_command_grants_it():
    world = world_of(("team", "ada", Right.READ))
    with pytest.raises(PermissionDenied) as caught:
        check_key(world.view, "eve", Key("team/a@1"), Right.WRITE)
    assert caught.value.message == "User eve may not write to namespace 'team'."
    assert "`tcctl access grant team eve write`" in caught.value.hint


def test_who_is_not_known_to_nats_is_not_judged():
    world = world_of(("team", "ada", Right.READ))
    check_key(world.view, "", Key("team/a@1"), Right.KEYS)
