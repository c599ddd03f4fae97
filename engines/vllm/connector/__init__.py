"""The KV connector: vLLM's blocks in TensorCast's store, and back.

`connector.py` is the class that vLLM knows; it hands every call to one of two sides. The
scheduler's side (`scheduling.py`) decides what is loaded and saved, out of answers that came
meanwhile (`lookups.py`), by plain functions of values (`tracks.py`). The worker's side
(`working.py`) moves bytes (`memory.py`) in threads of its own. What goes between the two is in
`messages.py`, under which name blocks are kept is in `space.py`, and whoever talks to the node does
it through `link.py`, which notices that it is away and comes back.
"""
