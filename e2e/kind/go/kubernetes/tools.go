//go:build tools

// Package kubernetes pins what a node of the end-to-end cluster runs, in the very versions of
// operator/rezone/local/kubetools, so that both builds share what is compiled. That module's digest
// names its cache, which is why these programs are not listed there. Etcd only keeps the versions
// of what both depend on equal.
package kubernetes

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kubeadm"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
