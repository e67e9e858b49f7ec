//go:build tools

// Package prometheustool pins Prometheus. A module of its own: its dependencies must not move those of the control plane.
package prometheustool

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
