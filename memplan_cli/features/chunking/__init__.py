"""Long activations computed in pieces: regions of ops, the axis that each is sliced along."""
