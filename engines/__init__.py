"""Adapters: what makes TensorCast a layer of an inference engine, through the engine's own hooks.

They use the client, as any application does, and never the log or a mover. One folder per engine;
only the modules that are loaded inside an engine import it.
"""
