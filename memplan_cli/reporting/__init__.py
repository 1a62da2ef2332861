"""Plans and results as reports for people, and as files for other programs."""
