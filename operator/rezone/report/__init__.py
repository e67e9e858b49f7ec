"""Reports of what has ended: read, put together, and drawn as a page of their own.

document    what documents for programs have in common
task        the report of a rebalance, as values
transfer    the report of a leader transfer, as values
compared    a report beside the one before it
build       from objects to values: pure
reading     the objects of a report from the API server
pictures    where bars and labels of a picture stand: pure
page        values to one HTML file that loads nothing
words       quantities and times as people read them
"""
