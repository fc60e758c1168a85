"""Designs of other papers, rerun: one file per paper, and the study and page of all of them."""
