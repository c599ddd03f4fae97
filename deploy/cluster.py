"""`up`, `down` and `status` of the embedded cluster. Plain values in and out; nothing is printed.

`progress` is called with short sentences while something is under way.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from tensorcast.deploy import context, logs, machine
from tensorcast.deploy.control import Request, ServiceStatus, ask, converse
from tensorcast.deploy.faults import explained
from tensorcast.deploy.home import (
    Layout,
    choose_sockets,
    delete_home,
    is_locked,
    load_config,
    locked,
    make_private_folder,
    prepare_home,
    save_config,
)
from tensorcast.deploy.home import default_home as _default_home
from tensorcast.deploy.nats_server import find_program, write_config
from tensorcast.deploy.options import (
    ClusterConfig,
    EmbeddedNats,
    EmbeddedPostgres,
    External,
    UpOptions,
    check_options,
    grow_nodes,
    merge_server,
)
from tensorcast.deploy.pgdata import delete_data, prepare_postgres
from tensorcast.deploy.plan import CONTROLPLANE, NATS, POSTGRES, SUPERVISOR
from tensorcast.deploy.ports import choose_port, keep_or_choose
from tensorcast.deploy.processes import Child, end, identify, wait_gone
from tensorcast.schema.errors import InvalidArgument, Unavailable

READY_TIMEOUT_S: Final = 60.0
STOP_SILENCE_S: Final = 180.0
FORMER_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 10.0
FAILURES_MAX: Final = 6  # of one service in a row, before `up` gives up early
POLL_S: Final = 0.03

Progress = Callable[[str], None]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster is: up (all of it), degraded (parts of it) or down."""

    state: Literal["up", "degraded", "down"]
    services: tuple[ServiceStatus, ...] = ()


def default_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The home that is used when nobody names one."""
    return _default_home(environ, uid=os.geteuid())


def up(options: UpOptions, progress: Progress = lambda _: None) -> Status:
    """Start the cluster of a home, or what is missing of it, and wait until all is ready.

    Safe to repeat: a running cluster is left alone, more nodes are added to it, a crashed one is
    recovered. Raises `InvalidArgument` for options that make no sense, `Unavailable` when a service
    does not become ready within 60 s, `OutOfCapacity` for a full disk, `PermissionDenied` and
    `Conflict` (another `up` at work).
    """
    check_options(options)
    layout = Layout(options.home.expanduser().absolute())
    made = prepare_home(layout, uid=os.geteuid())
    with explained("start a cluster", layout.home), locked(layout.up_lock):
        known = load_config(layout)
        config = merge(known, options) if known else draft(options, layout, made=made)
        running = find_running(layout, config)
        if running:
            _change_running(layout, known or config, config, progress)
        else:
            config = _start(layout, config, progress)
        seen = {service.name for service in running if service.state == "up"}
        folder = context.config_folder(os.environ)
        context.write_context(folder, config.context, context.describe(config, layout.home))
        return _wait_until_ready(layout, config, seen, progress)


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


def draft(options: UpOptions, layout: Layout, *, made: bool) -> ClusterConfig:
    """The configuration of a new cluster: ports and passwords are drawn here, once."""
    ports: list[int] = []
    for _ in range(3):
        ports.append(choose_port(taken=ports))
    cluster = options.cluster or "default"
    dram = options.dram_bytes or machine.suggest_dram_bytes(machine.total_memory_bytes())
    return ClusterConfig(
        cluster=cluster,
        context=options.context or cluster,
        nats=External(url=options.nats_url)
        if options.nats_url
        else EmbeddedNats(
            port=ports[0],
            monitor_port=ports[1],
            user="tensorcast",
            password=secrets.token_hex(20),
        ),
        postgres=External(url=options.postgres_url)
        if options.postgres_url
        else EmbeddedPostgres(
            port=ports[2], password=secrets.token_hex(20), admin_password=secrets.token_hex(20)
        ),
        nodes=grow_nodes((), count=options.nodes, dram_bytes=dram),
        sockets=str(choose_sockets(layout.home, uid=os.geteuid())),
        home_is_ours=made,
        controlplane_command=options.controlplane_command,
        mover_command=options.mover_command,
    )


def merge(known: ClusterConfig, options: UpOptions) -> ClusterConfig:
    """What a known cluster becomes by new options; what they leave open stays.

    Raises `InvalidArgument` when they contradict the data that is there.
    """
    if options.cluster not in (None, known.cluster):
        raise InvalidArgument(
            f"This home belongs to the cluster {known.cluster!r}, not {options.cluster!r}.",
            hint="Choose another folder with --data-dir.",
        )
    dram = options.dram_bytes
    nodes = known.nodes
    if dram is not None:
        nodes = tuple(msgspec.structs.replace(node, dram_bytes=dram) for node in nodes)
    new_dram = dram or (nodes[0].dram_bytes if nodes else machine.total_memory_bytes() // 8)
    return msgspec.structs.replace(
        known,
        context=options.context or known.context,
        nats=merge_server("NATS", known.nats, options.nats_url) or known.nats,
        postgres=merge_server("Postgres", known.postgres, options.postgres_url) or known.postgres,
        nodes=grow_nodes(nodes, count=options.nodes, dram_bytes=new_dram),
        controlplane_command=options.controlplane_command or known.controlplane_command,
        mover_command=options.mover_command or known.mover_command,
    )


def _change_running(
    layout: Layout, known: ClusterConfig, config: ClusterConfig, progress: Progress
) -> None:
    """Bring a running cluster to its new configuration as far as that goes without a stop."""
    if known == config:
        progress("the cluster is running already")
        return
    save_config(layout, config)
    names = {node.name for node in known.nodes}
    fresh = [node.name for node in config.nodes if node.name not in names]
    if fresh:
        progress(f"adding {', '.join(fresh)}")
        ask(Path(config.sockets), Request(do="reload"))
    if msgspec.structs.replace(config, nodes=config.nodes[: len(known.nodes)]) != known:
        progress("other changes take effect after `tcctl down` and `tcctl up`")


def _start(layout: Layout, config: ClusterConfig, progress: Progress) -> ClusterConfig:
    """Prepare everything and start the supervisor; returns the configuration as it is now."""
    if died_badly(layout):
        progress("recovering a cluster that was not stopped by `tcctl down`")
    _clear_former(layout, progress)
    config = keep_ports(config, progress)
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


def keep_ports(config: ClusterConfig, progress: Progress) -> ClusterConfig:
    """The configuration with new ports for servers whose old ones somebody else took."""
    nats, postgres = config.nats, config.postgres
    taken: list[int] = []
    if isinstance(nats, EmbeddedNats):
        port = keep_or_choose(nats.port)
        monitor = keep_or_choose(nats.monitor_port, taken=[port])
        taken += [port, monitor]
        nats = msgspec.structs.replace(nats, port=port, monitor_port=monitor)
    if isinstance(postgres, EmbeddedPostgres):
        port = keep_or_choose(postgres.port, taken=taken)
        postgres = msgspec.structs.replace(postgres, port=port)
    changed = msgspec.structs.replace(config, nats=nats, postgres=postgres)
    if changed != config:
        progress("another program took a port of the cluster: it moves to a new one")
    return changed


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


def _clear_former(layout: Layout, progress: Progress) -> None:
    """Wait for what a dead supervisor has left behind to end, and make it end."""
    left = wait_gone(read_children(layout), timeout_s=FORMER_TIMEOUT_S, progress=progress)
    for child in left:
        progress(f"{child.name} of the former run (pid {child.pid}) does not end: killing it")
        end(child, signal.SIGKILL)
    wait_gone(left, timeout_s=5.0)
    layout.children.unlink(missing_ok=True)


def died_badly(layout: Layout) -> bool:
    """Whether the last supervisor has ended without being told to. Only when none runs."""
    return read_supervisor_pid(layout) != 0


def read_supervisor_pid(layout: Layout) -> int:
    """The pid of the last supervisor; 0 when there was none or it has ended well."""
    try:
        return int(layout.supervisor_lock.read_text().strip() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def read_children(layout: Layout) -> tuple[Child, ...]:
    """The processes that the last supervisor has started."""
    try:
        return msgspec.json.decode(layout.children.read_bytes(), type=tuple[Child, ...])
    except (FileNotFoundError, msgspec.DecodeError):
        return ()


def _wait_until_ready(
    layout: Layout, config: ClusterConfig, seen: set[str], progress: Progress
) -> Status:
    """Wait until every service is up; tells of each one that was not in `seen`."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    services: tuple[ServiceStatus, ...] = ()
    while time.monotonic() < deadline:
        services = _ask_services(layout, config)
        for service in services:
            if service.state == "up" and service.name not in seen and service.name != SUPERVISOR:
                seen.add(service.name)
                progress(f"{service.name} is up")
        if services and all(service.state == "up" for service in services):
            return Status(state="up", services=services)
        if any(is_hopeless(service) for service in services):
            break
        time.sleep(POLL_S)
    raise explain_unready(layout, services)


def _ask_services(layout: Layout, config: ClusterConfig) -> tuple[ServiceStatus, ...]:
    """What the supervisor says; () while it is about to start.

    Raises `Unavailable` when it has ended.
    """
    try:
        return ask(Path(config.sockets), Request(do="status")).services
    except Unavailable as error:
        time.sleep(POLL_S)
        if died_badly(layout) and not is_locked(layout.supervisor_lock):
            words = logs.last_words(layout.log(SUPERVISOR))
            raise Unavailable(f"The supervisor has ended: {words}.") from error
        return ()


def is_hopeless(service: ServiceStatus) -> bool:
    """Whether more patience will not help. Postgres may need some tries after a crash."""
    if service.name == POSTGRES:
        return False
    return service.failures >= FAILURES_MAX


def explain_unready(layout: Layout, services: tuple[ServiceStatus, ...]) -> Unavailable:
    """The error about the first service that is to blame."""
    hint = "`tcctl doctor` says more, `tcctl down` stops the rest."
    guilty = [service for service in services if service.state != "up"]
    if not guilty:
        words = logs.last_words(layout.log(SUPERVISOR)) or "it says nothing"
        return Unavailable(f"The supervisor does not start: {words}.", hint=hint)
    # What waits for another service is not to blame itself.
    service = next((one for one in guilty if one.state != "waiting"), guilty[0])
    words = logs.last_words(layout.log(service.name)) or service.detail or service.state
    return Unavailable(
        f"{service.name} does not become ready: {words}.",
        hint=f"Its log is {layout.log(service.name)}; {hint}",
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


def down(home: Path, *, purge: bool = False, progress: Progress = lambda _: None) -> None:
    """Stop the cluster of a home; with `purge` delete all that it has made. Safe to repeat.

    Nothing that was acknowledged is lost by a `down` without `purge`. Raises `InvalidArgument` when
    `purge` is asked for a folder that is no home, `Unavailable` when the supervisor does not end.
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
            _stop_supervisor(layout, config, progress)
        _clear_former(layout, progress)
        progress("the cluster is down")
        if purge:
            _purge(layout, config, progress)


def _stop_supervisor(layout: Layout, config: ClusterConfig, progress: Progress) -> None:
    supervisor = identify(SUPERVISOR, read_supervisor_pid(layout))
    wait_s = END_TIMEOUT_S
    try:
        for reply in converse(Path(config.sockets), Request(do="stop"), timeout_s=STOP_SILENCE_S):
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
