"""The policies of the published systems: FC2's four, and Anwar's lookup."""
