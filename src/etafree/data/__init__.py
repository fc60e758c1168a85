"""From what users have to arrays: rows, groups, formulas, tables read in parts, pytrees."""
