"""The state machines of the log, one file each: State, Status, TRANSITIONS, decide, evolve.

`decide(state, command)` gives the events that a command leads to: none when it is already so, and
it raises Rejected, Conflict or NotFound when it may not be. `evolve(state, recorded)` folds one
recorded event (time enters as `Recorded.at`). Neither does I/O.
"""
