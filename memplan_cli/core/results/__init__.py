"""What memplan answers, as frozen data: the plan, its report, what a runtime was observed to do."""
