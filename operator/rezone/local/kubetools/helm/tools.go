//go:build tools

// Package helmtool pins Helm. A module of its own: its dependencies must not move those of the control plane.
package helmtool

import _ "helm.sh/helm/v3/cmd/helm"
