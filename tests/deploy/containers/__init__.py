"""What ``deploy/test-compose`` does: a running stack of containers, and what must hold of it."""
