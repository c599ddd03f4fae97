"""Where replicas live other than in memory."""
