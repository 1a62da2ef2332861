"""How the pages of this folder become a site: `make docs`."""

project = html_title = "memplan"
extensions = ["myst_parser"]
exclude_patterns = ["examples"]

# Anchors of headings as any viewer of Markdown makes them: pages link to each other with them.
myst_heading_anchors = 3
# `--option` in a sentence is no dash.
smartquotes = False
# Excerpts with placeholders need not be whole programs to be shown.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
