"""Orders of ops with the least live peak, lower bounds on all orders, and witnesses of these bounds."""
