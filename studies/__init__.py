"""Studies behind the documents: how often intervals cover, and learning-rate methods compared."""
