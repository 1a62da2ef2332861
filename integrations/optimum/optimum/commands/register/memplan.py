"""Makes ``optimum-cli memplan`` known: optimum looks for files in this namespace."""

from importlib.util import find_spec

REGISTER_COMMANDS = []

if find_spec("memplan_cli"):  # else no command of optimum's would start
    from memplan_cli.integrations.optimum import MemplanCommand

    REGISTER_COMMANDS.append(MemplanCommand)
