"""The workers of the benchmarks: one module for each system, each with what its suites call.

Modules of peers import nothing of TensorCast: they run in environments of their own. What they do
follows the peers' own examples, in default settings; where something was set, a comment says why.
"""
