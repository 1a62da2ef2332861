"""Program and settings to plan: candidates, evaluation, choice, and the checks of plan files."""
