"""What the commands that show objects are made of: what to show, how, and where it comes from.

`views` says what is shown and `explain` why something waits; both are pure. `source` reads the
API server, `render` draws for people and `output` writes for programs.
"""
