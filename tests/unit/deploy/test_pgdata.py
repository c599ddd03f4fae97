"""Making the data folder of Postgres: the decisions."""

from pathlib import Path

import pytest

from tensorcast.deploy.options import EmbeddedPostgres
from tensorcast.deploy.pgdata import choose_account, explain_failure, render_roles, set_aside
from tensorcast.schema.errors import OutOfCapacity, Unavailable


def test_an_ordinary_user_runs_it_as_himself():
    assert choose_account(uid=1000, known=None) is None


def test_the_database_belongs_to_a_role_that_is_no_superuser():
    text = render_roles(EmbeddedPostgres(port=1, password="pp", admin_password="ap"))
    assert text == (
        "CREATE ROLE tensorcast LOGIN CREATEROLE PASSWORD 'pp';\n\n"
        "CREATE DATABASE tensorcast OWNER tensorcast;\n\n"
    )


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        ("initdb: error: could not write: No space left on device", OutOfCapacity, "disk is full"),
        ("x\ninitdb: error: it is bad\nhint: y", Unavailable, "initdb: error: it is bad"),
        ("only this\n\n", Unavailable, "only this"),
        ("", Unavailable, "it said nothing"),
    ],
)
def test_a_failure_is_one_sentence(output, kind, words):
    error = explain_failure("initdb", output, Path("/pg"))
    assert type(error) is kind
    assert words in error.message


def test_what_an_earlier_home_has_left_is_kept_beside(tmp_path):
    folder = tmp_path / "place"
    assert set_aside(folder) is None
    for number in (1, 2):
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "PG_VERSION").write_text(str(number))
        kept = set_aside(folder)
        assert kept == tmp_path / f"place.{number}"
        assert (kept / "data" / "PG_VERSION").read_text() == str(number)
        assert not folder.exists()
