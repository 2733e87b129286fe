"""Sinks: what tasks report is sent to MLflow or Weights & Biases, too; nothing waits for it."""
