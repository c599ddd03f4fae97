"""The runner of plans: what follows for a plan from what the cluster knows. Pure.

Nothing is remembered between two looks at a plan: `runner.react` reads the state of the plan and of
everything that it waits for, and says what is to be done. So it makes no difference how often,
when, or by how many control planes a plan is looked at: each decision is appended together with the
event of the step, on the expectation that nobody has moved the plan since; whoever comes second
looks again and finds it done. Ids of operations follow from (plan, step, try, node).

    scopes.py    which bodies of a plan are open, and what a reference in them stands for
    tasks.py     the operations of a step: which to issue, which to wait for, how they ended
    waits.py     whether what a step waits for has come
    begin.py     what a step needs, and the commands with which it begins
    runner.py    react: the next decisions about a plan; next_due: when to look again
    placement.py what of a plan this cluster cannot do
    forecast.py  the dry run: steps, bytes, sources and times
    room.py      what nodes would have to drop for it
"""
