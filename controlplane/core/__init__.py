"""What the control plane decides, without doing anything: pure functions over the cluster view."""
