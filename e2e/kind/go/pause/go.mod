module rezone.dev/e2e/pause

go 1.25
