"""Converted datasets in the formats of others: Minari's and LeRobot's."""
