"""Which home is meant, from the option, the context and the environment."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from tensorcast.cli.homes import choose_home
from tensorcast.cli.session import Options, Session, World
from tensorcast.client.context import Context
from tensorcast.schema.errors import InvalidArgument


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A folder of contexts: `lab` is in use, `far` is on other machines."""
    folder = tmp_path / "config"
    (folder / "contexts").mkdir(parents=True)
    for name, home in (("lab", "/homes/lab"), ("work", "/homes/work"), ("far", None)):
        context = Context(cluster=name, nats_url="nats://h:1", home=home)
        (folder / "contexts" / f"{name}.json").write_bytes(msgspec.json.encode(context))
    (folder / "current").write_text("lab\n")
    return folder


@pytest.mark.parametrize(
    ("data_dir", "context", "variables", "home"),
    [
        ("/d", "work", {"TENSORCAST_HOME": "/e"}, "/d"),
        (None, "work", {"TENSORCAST_HOME": "/e"}, "/homes/work"),
        (None, None, {"TENSORCAST_HOME": "/e"}, "/e"),
        (None, None, {}, "/homes/lab"),
        (None, None, {"TENSORCAST_CONTEXT": "work"}, "/homes/work"),
    ],
)
def test_the_nearest_word_counts(
    config: Path, data_dir: str | None, context: str | None, variables: dict[str, str], home: str
) -> None:
    environ = {"TENSORCAST_CONFIG_DIR": str(config), **variables}
    session = make_session(environ, context)
    assert choose_home(session, Path(data_dir) if data_dir else None) == Path(home)


@pytest.mark.parametrize("context", [None, "far", "unknown"])
def test_without_a_word_it_is_the_default_of_the_machine(
    tmp_path: Path, config: Path, context: str | None
) -> None:
    folder = config if context else tmp_path / "nothing"
    session = make_session({"TENSORCAST_CONFIG_DIR": str(folder)}, context)
    assert choose_home(session, None).name == "tensorcast"


def test_a_broken_context_is_told(config: Path) -> None:
    (config / "contexts" / "lab.json").write_text("{")
    with pytest.raises(InvalidArgument, match="not a context"):
        choose_home(make_session({"TENSORCAST_CONFIG_DIR": str(config)}, None), None)


def make_session(environ: dict[str, str], context: str | None) -> Session:
    world = World(environ=environ, out=io.StringIO(), err=io.StringIO())
    return Session(world, Options(context=context))


def test_the_home_of_a_context_that_is_not_in_use_is_not_guessed(config: Path) -> None:
    """`down --purge` said twice must not go on to another cluster."""
    for name in ("current", "contexts/lab.json", "contexts/far.json"):
        (config / name).unlink()
    session = make_session({"TENSORCAST_CONFIG_DIR": str(config)}, None)
    assert choose_home(session, None) != Path("/homes/work")
