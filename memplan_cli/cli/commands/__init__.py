"""One module for each command: options, one workflow, one renderer, an exit code."""
