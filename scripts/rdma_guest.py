"""Runs a command where real RDMA verbs exist, on a machine that has no such device.

    python scripts/rdma_guest.py [--out DIR] [--timeout S] [--memory MIB] -- COMMAND [ARGUMENT...]

A User-Mode Linux guest (a kernel that is an ordinary process: no KVM, no root) boots on this
machine's own files, below an overlay that is thrown away, with two Soft-RoCE devices, rxe0 with
10.77.0.1 and rxe1 with 10.77.0.2, on a pair of linked network interfaces. So the command finds the
same Python, packages and paths as here. What it writes is lost, except below --out.

Exit status: the command's; 69 where there can be no guest (one sentence says why); 124 when it took
too long; 70 when the guest does not come up, or ends, although there can be one. The guest has one
CPU, and system calls and the first touch of memory are slow in it: 15 and 120 microseconds.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rdma_host import BrokenError, UnavailableError, check_machine
from rdma_kernel import prepare, say

UNAVAILABLE, BROKEN, LATE = 69, 70, 124
BOOT_S_MAX = 90.0

# The first process, on the host's files, which it can only read.
FIRST = r"""#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
stop() { echo "guest: $1"; mount -t proc proc /proc; echo o > /proc/sysrq-trigger; sleep 9; }
@PYTHON@ -I -S @CONTROL@/load || stop "a module does not load"
mount -t tmpfs tmpfs /mnt || stop "no tmpfs"
mkdir /mnt/upper /mnt/work /mnt/new
cp -a @LAYER@ /mnt/layer # two layers must not overlap
mount -t overlay -o lowerdir=/mnt/layer:/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/new ||
    stop "no overlay"
cd /mnt/new
mount -t proc proc proc; mount -t sysfs sys sys; mount -t devtmpfs dev dev; mount -t tmpfs tmpfs run
mkdir run/guest
mount -t hostfs -o @CONTROL@ none run/guest || stop "no control folder"
exec chroot /mnt/new /bin/bash /run/guest/second </dev/null
"""

# There may be no insmod: finit_module(2) by its number on x86-64.
LOAD = r"""
import ctypes, glob, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for path in sorted(glob.glob("@MADE@/modules/*.ko")):
    fd = os.open(path, os.O_RDONLY)
    if libc.syscall(313, fd, b"", 0):
        print("guest:", path, os.strerror(ctypes.get_errno()), flush=True)
        sys.exit(1)
    os.close(fd)
"""

SECOND = r"""
PATH=/usr/sbin:/usr/bin:/sbin:/bin
control=/run/guest
. $control/settings
end() { echo "$1" > $control/status.new; mv $control/status.new $control/status; sync
        echo o > /proc/sysrq-trigger; sleep 30; }
bad() { echo "guest: $*" > /dev/console; end 70; }
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm; mount -t devpts devpts /dev/pts
mkdir -m 1777 /run/tmp # the checkout may lie in the host's /tmp
[ -e /dev/fd ] || { ln -s /proc/self/fd /dev/fd; ln -s fd/0 /dev/stdin
                    ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr; }
if [ -n "$out" ]; then mkdir -p "$out"; mount -t hostfs -o "$out" none "$out" || bad "no $out"; fi
ulimit -l unlimited
ip link set lo up
ip link add v0 address 02:00:0a:4d:00:01 type veth peer name v1 address 02:00:0a:4d:00:02 ||
    bad "no pair of interfaces"
for n in 0 1; do
    ip addr add 10.77.0.$((n+1))/24 dev v$n
    echo 1 > /proc/sys/net/ipv4/conf/v$n/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/v$n/rp_filter
    ip link set v$n mtu 4200 up
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
# A long READ's answers would overrun the pair's queue; each loss costs a time-out.
echo 100000 > /proc/sys/net/core/netdev_max_backlog
# Both addresses are local: without this, packets between them would take lo, past the devices.
ip rule add pref 10 iif lo from 10.77.0.1 to 10.77.0.2 lookup 101
ip rule add pref 10 iif lo from 10.77.0.2 to 10.77.0.1 lookup 102
ip route add 10.77.0.2 dev v0 src 10.77.0.1 table 101
ip route add 10.77.0.1 dev v1 src 10.77.0.2 table 102
ip rule add pref 100 lookup local; ip rule del pref 0
ip neigh replace 10.77.0.2 lladdr 02:00:0a:4d:00:02 dev v0 nud permanent
ip neigh replace 10.77.0.1 lladdr 02:00:0a:4d:00:01 dev v1 nud permanent
for n in 0 1; do rdma link add rxe$n type rxe netdev v$n || bad "no rxe device"; done
for n in 0 1; do
    for try in 1 2 3 4 5 6 7 8 9 10; do
        case "$(cat /sys/class/infiniband/rxe$n/ports/1/state)" in *ACTIVE*) break;; esac; sleep 0.1
    done
    # There is no udev here to put the nodes into infiniband/.
    [ -e /dev/infiniband/uverbs$n ] ||
        { mkdir -p /dev/infiniband; ln -s ../uverbs$n /dev/infiniband/uverbs$n; }
done
read up _ < /proc/uptime; echo "$up" > $control/ready
stty -F /dev/tty1 raw -echo
# The output goes through cat, so that the command may open /dev/stdout again.
( . $control/environment; cd "$folder" && exec setsid bash $control/command ) 2>&1 </dev/null |
    cat > /dev/tty1
status=${PIPESTATUS[0]}
stty -F /dev/tty1 raw
end $status
"""

_KEPT_OUT = {"_", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "BASHOPTS", "SHELLOPTS", "UID", "EUID"}


class Guest:
    """One boot of a guest: `control` is the folder through which both sides talk."""

    def __init__(self, made: Path, control: Path, arguments: argparse.Namespace) -> None:
        self._made = made
        self._control = control
        self._arguments = arguments
        self._is_ready = False

    def write(self) -> None:
        """Everything that the guest reads when it boots."""
        names = {
            "@PYTHON@": shlex.quote(sys.executable),
            "@CONTROL@": str(self._control),
            "@LAYER@": str(self._made / "layer"),
            "@MADE@": str(self._made),
        }
        for name, text in (("first", FIRST), ("load", LOAD)):
            for mark, value in names.items():
                text = text.replace(mark, value)
            (self._control / name).write_text(text)
        (self._control / "first").chmod(0o755)
        (self._control / "second").write_text(SECOND)
        out = shlex.quote(str(self._arguments.out or ""))
        folder = shlex.quote(os.getcwd())
        (self._control / "settings").write_text(f"out={out}\nfolder={folder}\n")
        (self._control / "environment").write_text(exported())
        command = " ".join(map(shlex.quote, self._arguments.command))
        (self._control / "command").write_text(f"exec {command}\n")

    def run(self) -> int:
        """Boots, runs, and returns the exit status. Raises UnavailableError or BrokenError."""
        self.write()
        reading, writing = os.pipe()
        with (self._control / "log").open("wb") as log:
            child = subprocess.Popen(
                self._kernel(writing),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "TMPDIR": memory_place(self._arguments.memory),
                    "LD_PRELOAD": str(self._made / "registers.so"),
                },
                pass_fds=[writing],
                start_new_session=True,
            )
        os.close(writing)
        pump = threading.Thread(target=copy_out, args=(reading,), daemon=True)
        pump.start()
        try:
            return self._wait(child)
        finally:
            stop(child)
            pump.join(5)

    def _kernel(self, output: int) -> list[str]:
        return [
            str(self._made / "linux"),
            f"mem={self._arguments.memory}M",
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            f"init={self._control}/first",
            "umid=guest",
            f"uml_dir={self._control}",
            "con0=null,fd:1",
            f"con1=null,fd:{output}",
            "con=null",
            "ssl=null",
            "panic=-1",
            "loglevel=4",
        ]

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Until the command's status is there, the kernel ends or time is up."""
        began = time.monotonic()
        while child.poll() is None and not (self._control / "status").exists():
            self._is_ready = self._is_ready or (self._control / "ready").exists()
            waited_s = time.monotonic() - began
            if waited_s > self._arguments.timeout:
                say(f"the command took longer than {self._arguments.timeout:g} s")
                return LATE
            if not self._is_ready and waited_s > BOOT_S_MAX:
                raise BrokenError(self._no_boot(f"within {BOOT_S_MAX:g} s"))
            time.sleep(0.02)
        status = self._control / "status"
        if status.exists():
            return int(status.read_text())
        if not (self._is_ready or (self._control / "ready").exists()):
            raise BrokenError(self._no_boot(f"and ended with {child.returncode}"))
        raise BrokenError(f"the guest ended by itself:\n{self._log()}")

    def _no_boot(self, how: str) -> str:
        return f"the guest made of {self._made} did not come up {how}:\n{self._log()}"

    def _log(self) -> str:
        return (self._control / "log").read_bytes()[-3000:].decode("utf-8", "replace").strip()


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ends the guest with all that runs in it."""
    try:
        child.wait(2 if child.poll() is None else 0)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def copy_out(source: int) -> None:
    """What the command prints, as it prints it."""
    while data := os.read(source, 1 << 16):
        while data:
            data = data[os.write(1, data) :]


def exported() -> str:
    """The environment as lines of a shell."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in _KEPT_OUT
    }
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in kept.items())
    return "".join(lines) + "export TENSORCAST_IN_RDMA_GUEST=1 TMPDIR=/run/tmp\n"


def memory_place(memory_mib: int) -> str:
    """Where the guest's memory may lie: it is mapped executable, which some `/dev/shm` forbid."""
    for place in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp", "/var/tmp"):
        found = os.statvfs(place) if os.access(place, os.W_OK) else None
        is_usable = found is not None and not found.f_flag & os.ST_NOEXEC
        if is_usable and found.f_bavail * found.f_frsize >= memory_mib << 20:
            return place
    raise UnavailableError(f"there is no room for {memory_mib} MiB of the guest's memory")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="a folder that stays")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds")
    parser.add_argument("--memory", type=int, default=2048, help="MiB")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    arguments.command = [word for word in arguments.command if word != "--"] or ["true"]
    if arguments.out:
        arguments.out = arguments.out.resolve()
        arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def main() -> int:
    """The exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = parse()
    control = None
    try:
        check_machine()
        made = prepare()
        control = Path(tempfile.mkdtemp(prefix="rdma-guest-"))
        return Guest(made, control, arguments).run()
    except UnavailableError as error:
        why = str(error).rstrip(".")
        say(f"SKIPPED: there can be no guest with RDMA devices here: {why}.")
        return UNAVAILABLE
    except (BrokenError, OSError) as error:
        say(f"FAILED: {error}")
        return BROKEN
    finally:
        if control is not None:
            shutil.rmtree(control, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
