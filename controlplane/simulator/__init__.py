"""A cluster in one process and in virtual time: the real fold, the real policies, the real
decisions; only movers, wires and the clock are played. A seed decides all that happens.

agenda      what happens when
network     who gets bytes from whom, and how fast
machines    movers that only pretend to copy
links       the line between a mover and the log, which can be cut
plans       the runner of plans, with virtual time
world       the log, the schedulers, and what must hold after every event
workload    clusters and their users, for measurements of growth
measures    what a log says of bytes moved, waits and evictions
backtest    a recorded log, decided anew by other policies
plan_review what plans wrote in a recorded log, decided anew
answers     what engines answered to the calls of plans in a recorded log
watchdog    a limit on how long one decision of a policy may take
"""
