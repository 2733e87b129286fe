"""The step-time model of a job: measured points in, predicted step times out."""
