"""The embedded cluster: NATS, Postgres, the control plane and movers on one machine.

`cluster.up` prepares a home folder, starts one detached supervisor and waits until all is ready;
the supervisor (`python -m tensorcast.deploy.supervisor`) is the parent of every other process and
starts again what dies; `cluster.down` asks it to stop all, in order. `doctor.check` says what is
wrong with the machine or with a dead service, and how to mend it.

    cluster   up, down, status: what `tcctl` calls; plain values in and out, nothing is printed
    options   what an `up` can be asked for, and what `cluster.json` keeps of it
    plan      the services of a cluster as values (pure)
    home      where everything lies on disk         nats_server, postgres_server, pgdata   servers
    supervisor, service, spawn, notify, fdstore, control   the process that keeps the others alive

Nothing here imports torch, sqlalchemy or a driver: `up` and the supervisor have to start at once.
"""
