"""Lower bounds on the live peak over all orders, by minimum cuts."""
