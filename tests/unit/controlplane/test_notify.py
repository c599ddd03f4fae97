import socket

from tensorcast.controlplane.notify import Supervisor


def test_without_a_supervisor_nothing_happens():
    supervisor = Supervisor(None)
    supervisor.tell(state="READY=1", status="serving")
    supervisor.close()


def test_a_supervisor_that_does_not_listen_is_no_error(tmp_path, caplog):
    supervisor = Supervisor(str(tmp_path / "nobody"))
    supervisor.tell(status="serving")
    supervisor.close()
    supervisor.close()
    assert "cannot be told" in caplog.text


def test_messages_are_one_line_of_status(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "s"))
        supervisor = Supervisor(str(tmp_path / "s"))
        supervisor.tell(state="READY=1", status="serving\nall " + "x" * 500)
        text = listener.recv(4096).decode()
        supervisor.close()
    assert text.startswith("READY=1\nSTATUS=serving all xxx")
    assert len(text.splitlines()) == 2
