"""The plugin host: one process for each plugin, forked from a zygote, watched, restarted and stopped."""
