"""``python -m homeagent``: the same as ``homeagent``."""

from homeagent.command import main

if __name__ == "__main__":
    main()
