"""Mathematics on prototypes: pure functions on tensors, without knowledge of clients, models or networks."""
