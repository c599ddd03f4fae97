"""TensorCast inside vLLM: turned on with flags, nothing patched.

`plugin.py` is what vLLM finds by itself (entry points `vllm.general_plugins`); it imports neither
vLLM nor torch, and loads the others by name where vLLM asks for them.
"""
