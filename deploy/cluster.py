"""`up`, `down` and `status` of the embedded cluster. Plain values in and out; nothing is printed.

`progress` is called with short sentences while something is under way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.deploy import context, logs, rotation
from tensorcast.deploy.control import Request, ServiceStatus, ask, converse
from tensorcast.deploy.drafts import check_memory, draft, keep_ports, merge
from tensorcast.deploy.faults import explained
from tensorcast.deploy.former import clear_former, died_badly, read_supervisor_pid
from tensorcast.deploy.home import (
    Layout,
    delete_home,
    is_locked,
    load_config,
    locked,
    make_private_folder,
    prepare_home,
    save_config,
)
from tensorcast.deploy.home import default_home as _default_home
from tensorcast.deploy.keys import access_of, complete_keys, has_keys
from tensorcast.deploy.losses import check_room
from tensorcast.deploy.nats_server import find_program, write_config
from tensorcast.deploy.options import (
    ClusterConfig,
    EmbeddedNats,
    EmbeddedPostgres,
    UpOptions,
    check_options,
)
from tensorcast.deploy.pgdata import delete_data, prepare_postgres
from tensorcast.deploy.plan import CONTROLPLANE, NATS, POSTGRES, SUPERVISOR
from tensorcast.deploy.processes import end, identify, wait_gone
from tensorcast.deploy.readiness import Refused, Status, wait_until_ready
from tensorcast.schema.errors import InvalidArgument, Unavailable

STOP_SILENCE_S: Final = 180.0
END_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.03

Progress = Callable[[str], None]


def default_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The home that is used when nobody names one."""
    return _default_home(environ, uid=os.geteuid())


def up(options: UpOptions, progress: Progress = lambda _: None) -> Status:
    """Start the cluster of a home, or what is missing of it, and wait until all is ready.

    Safe to repeat: a running cluster is left alone, more nodes are added to it, a crashed one is
    recovered. Raises `InvalidArgument` for options that make no sense, `Unavailable` when a service
    does not become ready within 60 s, `OutOfCapacity` for a full disk, `PermissionDenied`,
    `Conflict` (another `up` at work), and `Refused` when a service says that it must not run as
    things are; then what was started is stopped again.
    """
    check_options(options)
    check_memory(options, options.nodes)
    layout = Layout(options.home.expanduser().absolute())
    made = prepare_home(layout, uid=os.geteuid())
    with explained("start a cluster", layout.home), locked(layout.up_lock):
        known = load_config(layout)
        config = merge(known, options) if known else draft(options, layout, made=made)
        running = find_running(layout, config)
        if running:
            config = _change_running(layout, known or config, config, running, progress)
        else:
            config = _start(layout, config, progress)
        seen = {service.name for service in running if service.state == "up"}
        _write_context(layout, config, progress)
        try:
            return wait_until_ready(layout, config, seen, progress)
        except Refused:
            if not running:
                _stop_supervisor(layout, config, progress, Request(do="stop"))
            raise


def _write_context(layout: Layout, config: ClusterConfig, progress: Progress) -> None:
    folder = context.config_folder(os.environ)
    before = context.read_home(folder, config.context)
    if before not in (None, str(layout.home)):
        progress(f"the context {config.context!r} led to {before} and leads here now")
    access = access_of(layout, config)
    context.write_context(folder, config.context, context.describe(config, layout.home, access))


def find_running(layout: Layout, config: ClusterConfig) -> tuple[ServiceStatus, ...]:
    """What the running supervisor says; () when none runs.

    Raises `Unavailable` when one runs but does not answer.
    """
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while is_locked(layout.supervisor_lock):
        try:
            return ask(Path(config.sockets), Request(do="status")).services
        except Unavailable:
            # It is just starting, or just dying of a kill -9: both are over in a moment.
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
    return ()


def _change_running(
    layout: Layout,
    known: ClusterConfig,
    config: ClusterConfig,
    running: tuple[ServiceStatus, ...],
    progress: Progress,
) -> ClusterConfig:
    """Bring a running cluster to its new configuration as far as that goes without a stop; returns
    what it is then."""
    config = complete_keys(layout, config) if has_keys(known) else config
    if known == config:
        progress("the cluster is running already")
    elif isinstance(config.nats, EmbeddedNats):
        rotation.apply(layout, config, pid_of(running, NATS))
    else:
        save_config(layout, config)
    names = {node.name for node in known.nodes}
    fresh = [node.name for node in config.nodes if node.name not in names]
    if fresh:
        progress(f"adding {', '.join(fresh)}")
    kept = {"nodes": config.nodes[: len(known.nodes)], "nats": known.nats}
    if msgspec.structs.replace(config, **kept) != known:
        progress("other changes take effect after `tcctl down` and `tcctl up`")
    ask(Path(config.sockets), Request(do="reload"))
    return config


def pid_of(services: tuple[ServiceStatus, ...], name: str) -> int | None:
    """The process of a service; None when it does not run."""
    return next((one.pid for one in services if one.name == name), None)


def _start(layout: Layout, config: ClusterConfig, progress: Progress) -> ClusterConfig:
    """Prepare everything and start the supervisor; returns the configuration as it is now."""
    if died_badly(layout):
        progress("recovering a cluster that was not stopped by `tcctl down`")
    clear_former(layout, progress)
    config = complete_keys(layout, keep_ports(config, progress))
    save_config(layout, config)  # the passwords have to be on disk before a server knows them
    make_private_folder(Path(config.sockets))
    if isinstance(config.nats, EmbeddedNats):
        find_program()
        write_config(layout, config.nats, cluster=config.cluster)
    if isinstance(config.postgres, EmbeddedPostgres):
        postgres = prepare_postgres(layout, config.postgres, progress)
        if postgres != config.postgres:
            config = msgspec.structs.replace(config, postgres=postgres)
            save_config(layout, config)
    progress(f"starting the cluster in {layout.home}")
    _start_supervisor(layout)
    return config


def _start_supervisor(layout: Layout) -> None:
    log = layout.log(SUPERVISOR)
    logs.rotate(log)
    module = "tensorcast.deploy.supervisor"
    with log.open("ab") as output:
        subprocess.run(
            [sys.executable, "-m", module, "--home", str(layout.home), "--detach"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            check=False,
        )


def status(home: Path) -> Status:
    """How the cluster of a home is; a home without a cluster is down.

    Raises `PermissionDenied` when it belongs to another user.
    """
    layout = Layout(home.expanduser().absolute())
    config = load_config(layout)
    if config is None:
        return Status(state="down")
    if not is_locked(layout.supervisor_lock):
        return Status(state="down", services=_describe_down(layout, config))
    try:
        services = ask(Path(config.sockets), Request(do="status")).services
    except Unavailable as error:
        lost = ServiceStatus(name=SUPERVISOR, state="down", detail=str(error))
        return Status(state="degraded", services=(lost,))
    well = all(service.state == "up" for service in services)
    return Status(state="up" if well else "degraded", services=services)


def _describe_down(layout: Layout, config: ClusterConfig) -> tuple[ServiceStatus, ...]:
    with explained("read", layout.supervisor_lock):
        died = died_badly(layout)
    detail = "it died without a `tcctl down`; `tcctl up` recovers" if died else "not running"
    names = (NATS, POSTGRES, CONTROLPLANE, *(node.name for node in config.nodes))
    rest = tuple(ServiceStatus(name=name, state="down", detail="not running") for name in names)
    return (ServiceStatus(name=SUPERVISOR, state="down", detail=detail), *rest)


def down(
    home: Path,
    *,
    purge: bool = False,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> None:
    """Stop the cluster of a home; with `purge` delete all that it has made. Safe to repeat.

    Nothing that was acknowledged is lost by a `down` without `purge` or `force`. Raises
    `OutOfCapacity`, and stops nothing, when the movers' memory does not fit on the disk (with
    `force` what does not fit is lost), `InvalidArgument` when `purge` is asked for a folder that is
    no home, `Unavailable` when the supervisor does not end.
    """
    layout = Layout(home.expanduser().absolute())
    config = load_config(layout)
    if config is None:
        if purge and layout.home.exists() and any(layout.home.iterdir()):
            raise InvalidArgument(
                f"{layout.home} is not the home of a cluster: nothing was deleted.",
                hint="Name the right folder with --data-dir.",
            )
        progress(f"there is no cluster in {layout.home}")
        return
    with explained("stop the cluster", layout.home), locked(layout.up_lock):
        if is_locked(layout.supervisor_lock):
            if not (purge or force):
                check_room(layout, config, progress)
            _stop_supervisor(layout, config, progress, Request(do="discard" if purge else "stop"))
        clear_former(layout, progress)
        progress("the cluster is down")
        if purge:
            _purge(layout, config, progress)


def _stop_supervisor(
    layout: Layout, config: ClusterConfig, progress: Progress, request: Request
) -> None:
    supervisor = identify(SUPERVISOR, read_supervisor_pid(layout))
    wait_s = END_TIMEOUT_S
    try:
        for reply in converse(Path(config.sockets), request, timeout_s=STOP_SILENCE_S):
            progress(reply.progress or reply.error)
    except Unavailable:  # somebody has removed its socket: a signal does the same, in silence
        end(supervisor, signal.SIGTERM)
        wait_s = STOP_SILENCE_S
    if wait_gone((supervisor,), timeout_s=wait_s):
        raise Unavailable(
            "The supervisor does not end.", hint=f"Its log is {layout.log(SUPERVISOR)}."
        )


def _purge(layout: Layout, config: ClusterConfig, progress: Progress) -> None:
    progress(f"deleting the data in {layout.home}")
    context.remove_context(context.config_folder(os.environ), config.context, layout.home)
    if isinstance(config.postgres, EmbeddedPostgres):
        delete_data(layout, config.postgres)
    delete_home(layout, config)
