//go:build tools

// Package olmtool pins the validator of bundles of the Operator Lifecycle Manager. A module of its own, as Helm's.
package olmtool

import _ "github.com/operator-framework/api/cmd/operator-verify"
