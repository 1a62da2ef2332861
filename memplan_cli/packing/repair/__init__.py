"""Local search that repairs a layout by ejection chains."""
