"""Every file of a user: read within bounds of size, depth, kind and number of values, written whole or not at all.

bytes       regular files of bounded size, unpacked to bounded size
document    YAML, JSON and TOML as plain data
table       columns of CSV, JSON lines and Parquet
write       files put in place at once
"""
