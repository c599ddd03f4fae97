"""What the client tells on its way is on standard error, but for programs."""

from __future__ import annotations

import logging

import pytest

from cli_samples import Tcctl, node


def say_and_answer(*_: object, **__: object) -> tuple[object, ...]:
    logging.getLogger("tensorcast.client.patience").warning("Still waiting for %s.", "n2")
    return (node(),)


def test_people_and_logs_see_whom_it_waits_for(tcctl: Tcctl) -> None:
    tcctl.answer(nodes=say_and_answer)
    run = tcctl("node", "ls")
    assert (run.code, run.err) == (0, "Still waiting for n2.\n")


@pytest.mark.parametrize("option", [("-o", "json"), ("-q",)])
def test_programs_do_not(tcctl: Tcctl, option: tuple[str, ...]) -> None:
    tcctl.answer(nodes=say_and_answer)
    run = tcctl("node", "ls", *option)
    assert (run.code, run.err) == (0, "")


def test_nothing_is_heard_after_the_command(tcctl: Tcctl) -> None:
    tcctl.answer(nodes=(node(),))
    before = list(logging.getLogger("tensorcast.client").handlers)
    tcctl("node", "ls")
    assert logging.getLogger("tensorcast.client").handlers == before
