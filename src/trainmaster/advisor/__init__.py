"""Step times, policies and quotes: pure maths over measured points, NumPy only."""
