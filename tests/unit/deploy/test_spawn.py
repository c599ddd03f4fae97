"""What a started service finds in its environment."""

from tensorcast.deploy.spawn import listen_environ


def test_kept_descriptors_are_announced():
    assert listen_environ({"A": "1"}, ("x", "y"), pid=7) == {
        "A": "1",
        "LISTEN_FDS": "2",
        "LISTEN_FDNAMES": "x:y",
        "LISTEN_PID": "7",
    }


def test_nothing_is_announced_without_descriptors():
    assert listen_environ({"A": "1"}, (), pid=7) == {"A": "1"}
