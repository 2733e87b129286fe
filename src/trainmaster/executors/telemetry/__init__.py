"""What members say of themselves and use: logs, metrics, samples; read anywhere."""
