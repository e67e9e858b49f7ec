"""The web page of `rezone console`: zones, their partitions, and what moves.

server      the process: loopback only, one link with a key
protocol    HTTP with a deadline for each request
app         routes of the pages, and what they answer
guard       who may ask: Host, session, origin, form token, headers
events      live updates: bounded streams of the sections that have changed
reading     objects from the API server
actions     what a person may do to a task or a migration, and how it is written
partitions, tasks, zones, jobs, resharding   view models: pure, from objects to what is shown
maps        pictures as SVG
pages       templates, and what they may use
"""
