"""What other tools load of memplan: Olive's pass and optimum's command."""
