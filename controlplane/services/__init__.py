"""The shells of the control plane: each is one loop around pure functions of `core` and `schema`."""
