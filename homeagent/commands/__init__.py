"""The commands of ``homeagent``, one file for each group; each has ``add_to(app)``."""
