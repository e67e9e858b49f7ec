//go:build tools

// Package kubetools pins the programs of Kubernetes 1.36, which tests run on besides those of the module above.
// A module of its own: a minor version brings its own dependencies.
package kubetools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
