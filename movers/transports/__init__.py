"""How bytes move between movers: one module or package for each backend.

`base.py` says what a backend promises and `registry.py` picks one; backends never import each
other.
"""
