//go:build tools

// Package scoretool pins kube-score, the linter of what the chart installs. A module of its own, as Helm's.
package scoretool

import _ "github.com/zegl/kube-score/cmd/kube-score"
