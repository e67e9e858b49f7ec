"""`rezone support-bundle`: one archive of what helpers ask for, without secrets and rows.

`redact` and `archive` know nothing of Kubernetes, `collect` reads, `command` is the command.
"""
