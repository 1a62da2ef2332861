"""Results as frozen data: the plan, its report, and what was observed of a runtime."""
