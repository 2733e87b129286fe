"""Apps beside runs: TensorBoard and notebooks, who may use them, and the processes that look after them."""
