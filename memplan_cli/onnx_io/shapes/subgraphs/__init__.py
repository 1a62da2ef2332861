"""Shape inference inside the subgraphs of If, Loop, Scan and SequenceMap."""
