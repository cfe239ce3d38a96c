"""The kernel: the bus hub, turns and lanes, stages, tools, channels, the journal and the configuration."""
