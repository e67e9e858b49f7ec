//go:build tools

// Package localpath pins the provisioner of volumes on a node's own disk.
package localpath

import _ "github.com/rancher/local-path-provisioner"
