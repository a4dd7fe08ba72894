"""Many machines: replicas of models, and which of them gets a request."""
