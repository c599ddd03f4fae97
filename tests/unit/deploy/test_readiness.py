"""Who is to blame when a cluster does not start, and how long it is waited for."""

from pathlib import Path

import pytest

from tensorcast.deploy.control import ServiceStatus
from tensorcast.deploy.home import Layout
from tensorcast.deploy.readiness import explain_unready, find_note, is_hopeless, is_progress

HOME = Path("/nowhere")


def service(name, state, **more):
    return ServiceStatus(name=name, state=state, **more)


def test_patience_ends_earlier_for_ours_than_for_postgres():
    assert is_hopeless(service("n1", "restarting", failures=6))
    assert not is_hopeless(service("n1", "restarting", failures=5))
    assert not is_hopeless(service("postgres", "restarting", failures=20))


@pytest.mark.parametrize(
    ("one", "told", "expected"),
    [
        (service("n1", "starting", detail="read 1 of 9"), "", True),
        (service("n1", "starting", detail="read 1 of 9"), "read 1 of 9", False),
        (service("n1", "starting", detail="read 1 of 9", failures=1), "", False),
        (service("n1", "starting"), "", False),
        (service("n1", "up", detail="serving"), "", False),
    ],
)
def test_only_news_of_a_first_start_is_progress(one, told, expected):
    assert is_progress(one, told) is expected


def test_the_guilty_one_is_not_the_one_that_waits_for_it():
    services = (
        service("nats", "up"),
        service("controlplane", "waiting", detail="waiting for postgres"),
        service("postgres", "restarting", detail="the last one was killed by SIGKILL"),
    )
    error = explain_unready(Layout(HOME), services)
    assert "postgres does not become ready" in error.message
    assert "SIGKILL" in error.message
    assert "doctor" in error.hint


def test_a_supervisor_that_never_answered_is_named():
    assert "supervisor" in explain_unready(Layout(HOME), ()).message


def test_what_a_mover_says_besides_its_address_is_told():
    said = service("n1", "up", detail="epoch 2, data port 127.0.0.1:7. 90 MiB wait; restarted once")
    assert find_note(said, {"n1"}) == ": 90 MiB wait"
    assert find_note(said, {"n2"}) == ""
    assert find_note(service("n1", "up", detail="epoch 2, data port 127.0.0.1:7"), {"n1"}) == ""
