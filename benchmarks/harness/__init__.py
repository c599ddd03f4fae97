"""The harness of the benchmarks: contenders in turns, in one run, on one machine.

    remote      a worker process and the calls to it; worker: what runs inside of it
    processes   what a whole tree of processes has used of the CPU, and how it is stopped
    memory      the bytes that contenders move, and the place where they have to arrive
    contenders  what there is to run; suites: which work, in which sizes
    rounds      the turns of one suite: seeded order, bytes checked, samples out
    results     samples, statistics, JSON      goals   the table of goals and whether they are met
    report      Markdown                       picture SVG
    guard       whatever ends a run, nothing of it stays
    install     the environments of the peers  machine what it ran on

`remote`, `worker`, `memory` and `processes` import nothing but the standard library: they run in
the environments of the peers.
"""
