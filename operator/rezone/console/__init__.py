"""The web page of `rezone console`: zones, their partitions, and what moves.

process     the process: HTTP with limits and deadlines, on loopback or behind a proxy, and health
app         routes of the pages, and what they answer
task_pages  the two kinds of tasks, as the routes have pages of them
actions     what a person may do to a task or a migration, and how it is written
events      live updates: bounded streams of the sections that have changed
pages       templates, and what they may use
reading     objects from the API server
access      who may ask: Host, session, origin, form token, headers; or whom a proxy names
views       what is shown of objects, and pictures of it as SVG: pure
"""
