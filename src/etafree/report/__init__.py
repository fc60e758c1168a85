"""Pictures of calibrations."""
