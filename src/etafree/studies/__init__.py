"""Studies: tables of cells run on this machine or on a cluster."""
