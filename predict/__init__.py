"""Cost models and the schedule of gradient groups. Imports no framework."""
