"""A federation of machines of their own, over Flower."""
