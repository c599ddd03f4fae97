"""Reading /proc."""

import os

from tensorcast.deploy.processes import Child, identify, is_alive, parse_stat


def test_a_name_with_brackets_and_spaces_is_read_right():
    fields = " ".join(str(number) for number in range(4, 30))
    assert parse_stat(f"12 (a) b) (c) S {fields}") == ("S", 22)


def test_we_are_alive():
    assert is_alive(identify("we", os.getpid()))


def test_another_start_time_or_boot_is_another_process():
    we = identify("we", os.getpid())
    for other in (
        Child(name="x", pid=we.pid, started=we.started + 1, boot=we.boot),
        Child(name="x", pid=we.pid, started=we.started, boot="another"),
    ):
        assert not is_alive(other)
