"""``python -m kernel --data-dir D [--set key=value …]``"""

from __future__ import annotations

import argparse
import asyncio
import sys

from homeagent_sdk import logging, process, secrets
from homeagent_sdk.confine import confine, standard_read_only
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir

_OWNER_KEY = "HOMEAGENT_API_KEY"


def main() -> int:
    """Run the kernel until it is told to stop."""
    try:
        given = secrets.take_from_environment([_OWNER_KEY])
    except HomeAgentError as error:
        sys.stderr.write(f"{error}\n")
        return process.EXIT_CONFIGURATION
    process.die_with_parent()
    # With the default of 5 ms a busy turn alone would use up the hub's whole budget of lag.
    process.lower_switch_interval()
    parser = argparse.ArgumentParser(prog="python -m kernel", description="The kernel of HomeAgent.")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for this run alone")
    arguments = parser.parse_args()
    data_dir = DataDir(arguments.data_dir)
    try:
        data_dir.create("kernel", "run", "keys", "log")
        logging.configure("kernel", data_dir.root)
        # Before the first thread: it binds only this one and those that it starts.
        confinement = confine(
            read_write=[data_dir.kernel, data_dir.run, data_dir.log],
            read_only=[*standard_read_only("kernel"), data_dir.keys],
            tcp=False,
        )
        overrides = _overrides(arguments.set)
    except HomeAgentError as error:
        sys.stderr.write(f"{error}\n")
        return process.EXIT_CONFIGURATION
    logging.get_logger("kernel").info("kernel confined", confinement=confinement.to_dict())
    return process.run(lambda stopping: _serve(data_dir, overrides, given.get(_OWNER_KEY), stopping))


def _overrides(texts: list[str]) -> dict[str, str]:
    from kernel.config import parse_overrides

    return parse_overrides(texts)


async def _serve(data_dir: DataDir, overrides: dict[str, str], owner_key: str | None, stopping: asyncio.Event) -> None:
    from kernel.service import Kernel

    kernel = Kernel(data_dir, overrides, owner_key)
    try:
        await kernel.start()
        await stopping.wait()
    finally:
        await kernel.stop()


if __name__ == "__main__":
    sys.exit(main())
