"""A cluster in one process and in virtual time: the real fold, the real policies, the real
decisions; only movers, wires and the clock are played. A seed decides all that happens.

agenda      what happens when
network     who gets bytes from whom, and how fast
machines    movers that only pretend to copy
world       the log, the schedulers, and what must hold after every event
workload    clusters and their users, for measurements of growth
measures    what a log says of bytes moved, waits and evictions
backtest    a recorded log, decided anew by other policies
"""
