//go:build tools

// Package kind pins kind: the command, and the files of its node image.
package kind

import _ "sigs.k8s.io/kind"
