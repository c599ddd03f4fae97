"""The policies, one file each: a pure `react(view, recorded)` that answers one event, seen in the
view right after it, with commands. Policies do not know each other; `decisions.py` lists them."""
