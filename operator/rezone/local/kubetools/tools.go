//go:build tools

// Package kubetools pins the commands a control plane on one machine is made of.
// Nothing imports it: the build tag keeps it out, `go mod tidy` still sees it.
package kubetools

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
