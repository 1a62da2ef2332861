"""Shape inference inside the subgraphs of If, Loop and Scan."""
