"""Who is to blame when a cluster does not start, and how long it is waited for."""

from pathlib import Path

import pytest

from tensorcast.deploy.control import ServiceStatus
from tensorcast.deploy.home import Layout
from tensorcast.deploy.readiness import (
    explain_unready,
    find_note,
    is_absent,
    is_hopeless,
    is_progress,
)

HOME = Path("/nowhere")


def service(name, state, **more):
    return ServiceStatus(name=name, state=state, **more)


def test_patience_ends_earlier_for_ours_than_for_postgres():
    assert is_hopeless(service("n1", "restarting", failures=6))
    assert not is_hopeless(service("n1", "restarting", failures=5))
    former = "the last one ended; a former Postgres is still shutting down (postmaster.pid)"
    assert not is_hopeless(service("postgres", "restarting", failures=20, detail=former))
    broken = "the last one ended; FATAL: database files are incompatible with server"
    assert is_hopeless(service("postgres", "restarting", failures=6, detail=broken))


def test_a_server_of_somebody_else_that_does_not_answer_is_named():
    nats = service("nats", "down", detail="external: nats://far:4222; it does not answer")
    assert is_absent(nats)
    assert not is_absent(service("nats", "up", detail="external: nats://far:4222"))
    assert not is_absent(service("nats", "down"))
    waiting = service("controlplane", "waiting", detail="waiting for nats")
    error = explain_unready(Layout(HOME), (service("supervisor", "up"), waiting, nats))
    assert error.message == "The NATS server at nats://far:4222 does not answer."
    assert "logs" not in error.hint


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
