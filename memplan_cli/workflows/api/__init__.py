"""One function for each command, as `import memplan` has it: models as paths, bytes or protobufs."""
