"""One function for each command, as `import memplan` has it: models in any form, results to show."""
