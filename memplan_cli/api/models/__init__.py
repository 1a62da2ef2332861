"""Models as commands read them: bound to sizes, with every size resolved, and planned."""
